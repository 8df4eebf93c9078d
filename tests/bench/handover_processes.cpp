// SPDX-License-Identifier: Apache-2.0
// See handover_processes.hpp.
#include "handover_processes.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <utility>

#include "arbiter/futex.hpp"

namespace crossover::bench {

namespace files = std::filesystem;

void fail(const std::string& why) { throw std::runtime_error(why); }

void sleep_ns(std::uint64_t ns) {
    timespec left{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
    while (nanosleep(&left, &left) != 0 && errno == EINTR) {
    }
}

// ---- children

Child::Child(const std::function<void()>& body) {
    std::fflush(nullptr);
    const pid_t parent = getpid();
    pid_ = fork();
    if (pid_ < 0) fail("cannot start a process");
    if (pid_ != 0) return;
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    if (getppid() != parent) _exit(1);  // it ended before the line above
    int status = 1;
    try {
        body();
        status = 0;
    } catch (const std::exception& error) {
        std::fprintf(stderr, "handover: in a client: %s\n", error.what());
    }
    _exit(status);
}

Child::Child(Child&& other) noexcept : pid_(std::exchange(other.pid_, -1)) {}

Child::~Child() {
    if (pid_ > 0) {
        kill(pid_, SIGKILL);
        waitpid(pid_, nullptr, 0);
    }
}

bool Child::done() {
    if (pid_ < 0) return true;
    int status = 0;
    const pid_t ended = waitpid(pid_, &status, WNOHANG);
    if (ended == 0) return false;
    pid_ = -1;
    if (ended < 0 || status != 0) fail("a client failed");
    return true;
}

void wait_for_all(std::vector<Child>& children, std::uint64_t longest_ns) {
    const std::uint64_t deadline = monotonic_ns() + longest_ns;
    for (;;) {
        bool all = true;
        for (Child& child : children) all = child.done() && all;
        if (all) return;
        if (monotonic_ns() > deadline) {
            fail(fmt::format("not done after {} s: a client hangs", longest_ns / kSecond));
        }
        sleep_ns(kMs);
    }
}

void wait_until(const std::function<bool()>& condition, std::vector<Child>& children,
                const char* what) {
    const std::uint64_t deadline = monotonic_ns() + kLongNs;
    while (!condition()) {
        for (Child& child : children) {
            if (child.done()) fail("a client ended too early");
        }
        if (monotonic_ns() > deadline) fail(fmt::format("waited too long: {}", what));
        sleep_ns(kMs);
    }
}

// ---- segments

SegmentDirectory::SegmentDirectory() {
    const files::path shared = "/dev/shm";
    std::error_code none;
    std::string pattern =
        ((files::is_directory(shared, none) ? shared : files::temp_directory_path()) /
         "crossover-handover-XXXXXX")
            .string();
    if (mkdtemp(pattern.data()) == nullptr) {
        fail(fmt::format("cannot create {}: {}", pattern, std::strerror(errno)));
    }
    path_ = pattern;
}

SegmentDirectory::~SegmentDirectory() {
    std::error_code ignored;
    files::remove_all(path_, ignored);
}

std::unique_ptr<Client> SegmentDirectory::attach(std::uint32_t device, std::uint32_t job) const {
    DeviceUuid uuid;
    for (std::uint8_t i = 0; i < 16; ++i) uuid.bytes[i] = static_cast<std::uint8_t>(17 * i);
    uuid.bytes[15] = static_cast<std::uint8_t>(device);
    Options options;
    path_.copy(options.dir, sizeof options.dir - 1);
    JobIdentity identity;
    identity.key = job + 1;
    std::snprintf(identity.name, sizeof identity.name, "job%u", job);
    Status status = Status::kOk;
    std::unique_ptr<Client> client = Client::attach(uuid, identity, device, options, status);
    if (client == nullptr) fail(fmt::format("attach: {}", status_text(status)));
    return client;
}

std::vector<MappedSegment> SegmentDirectory::look() const {
    Folder folder;
    if (choose_folder(path_.c_str(), false, folder) != Status::kOk) fail(path_ + ": not usable");
    std::vector<MappedSegment> segments;
    for (const SegmentFile& file : list_segments(folder)) {
        const Status status = open_read_only(folder, file.path.c_str(), segments.emplace_back());
        if (status != Status::kOk) fail(fmt::format("{}: {}", file.path, status_text(status)));
    }
    return segments;
}

// ---- what the kernel says

SleepLook::SleepLook(pid_t pid)
    : file_(open(fmt::format("/proc/{}/stat", pid).c_str(), O_RDONLY | O_CLOEXEC)) {
    if (file_ < 0) fail(fmt::format("/proc/{}/stat: {}", pid, std::strerror(errno)));
}

SleepLook::~SleepLook() { close(file_); }

bool SleepLook::sleeps() const {
    char text[512];
    const ssize_t bytes = pread(file_, text, sizeof text - 1, 0);
    if (bytes <= 0) fail("a client has gone");
    text[bytes] = '\0';
    const char* name_end = std::strrchr(text, ')');  // the name may hold anything
    return name_end != nullptr && name_end[1] == ' ' && name_end[2] == 'S';
}

Switches switches_of(pid_t pid) {
    Switches sum;
    for (const auto& task : files::directory_iterator(fmt::format("/proc/{}/task", pid))) {
        std::ifstream status(task.path() / "status");
        int found = 0;
        for (std::string line; std::getline(status, line);) {
            const auto count = [&](const char* name, std::uint64_t& into) {
                if (!line.starts_with(name)) return;
                into += std::stoull(line.substr(line.find(':') + 1));
                ++found;
            };
            count("voluntary_ctxt_switches:", sum.voluntary);
            count("nonvoluntary_ctxt_switches:", sum.involuntary);
        }
        if (found != 2) fail(fmt::format("{}: no counts of switches", task.path().string()));
    }
    return sum;
}

}  // namespace crossover::bench
