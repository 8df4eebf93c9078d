// SPDX-License-Identifier: Apache-2.0
#include "guest_machine.hpp"

#include <fcntl.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <iterator>
#include <stdexcept>

#include "arbiter/segment.hpp"

extern char** environ;

namespace crossover::test {

Guest::Guest(const std::vector<std::string>& words, const std::vector<std::string>& with) {
    std::map<std::string, std::string> variables;
    const auto set = [&](const std::string& variable) {
        const std::size_t at = variable.find('=');
        variables[variable.substr(0, at)] = variable.substr(at + 1);
    };
    for (char** each = environ; *each != nullptr; ++each) set(*each);
    variables["LD_PRELOAD"] = CX_TEST_LIBRARY;
    variables["SIMGPU_KERNELS"] = CX_TEST_KERNELS;
    for (const std::string& each : with) set(each);
    std::vector<std::string> texts;
    for (const auto& [name, value] : variables) texts.push_back(name + "=" + value);
    std::vector<char*> environment;
    for (std::string& each : texts) environment.push_back(each.data());
    environment.push_back(nullptr);

    std::vector<std::string> command{CX_TEST_GUEST};
    command.insert(command.end(), words.begin(), words.end());
    std::vector<char*> arguments;
    for (std::string& each : command) arguments.push_back(each.data());
    arguments.push_back(nullptr);

    char pattern[] = "/tmp/crossover-guest-XXXXXX";
    const int errors = ::mkostemp(pattern, O_CLOEXEC);
    int in[2];
    int out[2];
    if (errors < 0 || ::pipe2(in, O_CLOEXEC) != 0 || ::pipe2(out, O_CLOEXEC) != 0) {
        throw std::runtime_error("no pipe");
    }
    error_file_ = pattern;
    pid_ = ::fork();
    if (pid_ == 0) {
        ::prctl(PR_SET_PDEATHSIG, SIGKILL);
        ::dup2(in[0], STDIN_FILENO);
        ::dup2(out[1], STDOUT_FILENO);
        ::dup2(errors, STDERR_FILENO);
        ::execve(arguments[0], arguments.data(), environment.data());
        ::_exit(127);
    }
    ::close(errors);
    ::close(in[0]);
    ::close(out[1]);
    input_ = in[1];
    output_ = out[0];
}

Guest::~Guest() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::kill(pid_, SIGCONT);
        ::waitpid(pid_, nullptr, 0);
    }
    if (input_ >= 0) ::close(input_);
    if (output_ >= 0) ::close(output_);
    ::unlink(error_file_.c_str());
}

bool Guest::wait_for_line(const std::string& line) {
    const std::string wanted = line + "\n";
    char byte = 0;
    while (out_.size() < wanted.size() || !out_.ends_with(wanted)) {
        const ssize_t got = ::read(output_, &byte, 1);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) return false;
        out_ += byte;
    }
    return true;
}

void Guest::send_line() { [[maybe_unused]] const ssize_t sent = ::write(input_, "\n", 1); }

void Guest::send(int signal) const { ::kill(pid_, signal); }

int Guest::finish() {
    ::close(input_);
    input_ = -1;
    char bytes[4096];
    ssize_t got = 0;
    while ((got = ::read(output_, bytes, sizeof bytes)) > 0 || (got < 0 && errno == EINTR)) {
        if (got > 0) out_.append(bytes, static_cast<std::size_t>(got));
    }
    int status = -1;
    while (::waitpid(pid_, &status, 0) < 0 && errno == EINTR) {
    }
    pid_ = -1;
    std::ifstream errors(error_file_);
    err_.assign(std::istreambuf_iterator<char>(errors), {});
    return status;
}

std::vector<ClientSeen> DeviceSeen::of(pid_t pid) const {
    std::vector<ClientSeen> found;
    for (const auto& [whose, client] : clients) {
        if (whose == pid) found.push_back(client);
    }
    return found;
}

std::map<std::string, DeviceSeen> look(const char* configured) {
    std::map<std::string, DeviceSeen> all;
    Folder folder;
    const char* path = configured != nullptr ? configured : ::getenv("CROSSOVER_DIR");
    if (path == nullptr || choose_folder(path, false, folder) != Status::kOk) return all;
    for (const SegmentFile& file : list_segments(folder)) {
        MappedSegment mapped;
        if (open_read_only(folder, file.path.c_str(), mapped) != Status::kOk) continue;
        char text[2 * sizeof file.device.bytes + 1];
        for (std::size_t i = 0; i < sizeof file.device.bytes; ++i) {
            std::snprintf(text + 2 * i, 3, "%02x", file.device.bytes[i]);
        }
        DeviceSeen& seen = all[text];
        const Segment& segment = *mapped.view();
        for (const JobSlot& job : segment.jobs) {
            if (job.key == 0) continue;
            std::uint64_t expired = 0;
            for (const Event& event : segment.ring.events) {
                expired += event.sequence.load() != 0 && event.job_key == job.key &&
                           static_cast<EventKind>(event.kind) == EventKind::kExpire;
            }
            seen.jobs[job.name] = {job.turns, job.clients, expired};
        }
        for (std::uint32_t i = 0; i < kMaxClients; ++i) {
            const ClientSlot& client = segment.clients[i];
            if (client.attached.load() == 0 || client.job >= kMaxJobs) continue;
            std::uint64_t collectives = 0;
            for (const Event& event : segment.ring.events) {
                const auto kind = static_cast<EventKind>(event.kind);
                collectives += event.sequence.load() != 0 && event.client == i + 1 &&
                               kind == EventKind::kCollectiveBegin &&
                               event.time_ns >= client.attached_ns;
            }
            seen.clients.push_back({static_cast<pid_t>(client.pid),
                                    {segment.jobs[client.job].name, client.windows.load(),
                                     client.crossings.load(), client.communicated_ns.load(),
                                     collectives, client.ordinal, client.claims.load() != 0,
                                     client.waits.load() != 0}});
        }
    }
    return all;
}

DeviceSeen look_at_device(const char* folder) {
    const auto all = look(folder);
    return all.size() == 1 ? all.begin()->second : DeviceSeen{};
}

int exit_status_of(int status) {
    return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

}  // namespace crossover::test
