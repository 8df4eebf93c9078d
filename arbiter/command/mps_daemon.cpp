// SPDX-License-Identifier: Apache-2.0
// Joins, starts and ends the private MPS daemon: see mps_daemon.hpp.
#include "mps_daemon.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <pwd.h>
#include <signal.h>
#include <spawn.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <vector>

#include "arbiter/file.hpp"
#include "arbiter/segment.hpp"
#include "command.hpp"
#include "mps_control.hpp"

namespace crossover::command {
namespace {

namespace fs = std::filesystem;

constexpr useconds_t kPollUs = 5000;
constexpr int kLockSeconds = 60;  // longer than one start or end of a daemon by another process
constexpr int kReadySeconds = 10;

std::string pipe_of(const std::string& folder) { return folder + "/pipe"; }
std::string log_of(const std::string& folder) { return folder + "/log"; }

int open_lock(const std::string& folder, const char* name) {
    return ::open((folder + "/" + name).c_str(), O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0600);
}

// False after `seconds`: somebody else has it.
bool lock_within(int descriptor, int how, int seconds) {
    const long polls = seconds * 1'000'000L / kPollUs;
    for (long poll = 0; ::flock(descriptor, how | LOCK_NB) != 0; ++poll) {
        if (poll >= polls || (errno != EWOULDBLOCK && errno != EINTR)) return false;
        ::usleep(kPollUs);
    }
    return true;
}

// A folder of this user's alone; a fault's text, or empty.
std::string make_private(const std::string& path) {
    if (::mkdir(path.c_str(), 0700) != 0 && errno != EEXIST) {
        return fmt::format("cannot make {}: {}", path, std::strerror(errno));
    }
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || !S_ISDIR(info.st_mode) || info.st_uid != ::geteuid() ||
        (info.st_mode & 022) != 0) {
        return path + " is no folder of this user's alone";
    }
    return {};
}

std::string user_name(uid_t user) {
    const passwd* entry = ::getpwuid(user);
    return entry != nullptr ? entry->pw_name : std::to_string(user);
}

bool on_wsl() {
    std::ifstream file("/proc/sys/kernel/osrelease");
    std::string release;
    std::getline(file, release);
    return release.find("icrosoft") != std::string::npos || ::access("/dev/dxg", F_OK) == 0;
}

bool has_mig(const Environment& environment) {
    if (environment.get("CUDA_VISIBLE_DEVICES").value_or("").find("MIG-") != std::string::npos) {
        return true;
    }
    std::error_code error;
    const fs::path root("/proc/driver/nvidia/capabilities");
    for (fs::directory_iterator gpu(root, error), end; !error && gpu != end; gpu.increment(error)) {
        std::error_code inner;
        for (fs::directory_iterator file(gpu->path() / "mig", inner), last; !inner && file != last;
             file.increment(inner)) {
            if (file->path().filename().string().starts_with("gi")) return true;
        }
    }
    return false;
}

std::string without_end_slash(std::string path) {
    while (path.size() > 1 && path.back() == '/') path.pop_back();
    return path;
}

bool daemon_answers(const Environment& environment, const std::string& pipe_folder) {
    return ::access((pipe_folder + "/control").c_str(), F_OK) == 0 &&
           MpsControl(environment, pipe_folder, "").answers();
}

MpsFacts look(const Environment& environment) {
    MpsFacts facts;
    facts.virtual_gpu = !environment.get("SIMGPU_DIR").value_or("").empty();
    facts.takes_turns = environment.get("CROSSOVER").value_or("on") == "on";
    facts.silent = environment.get("CROSSOVER_LOG").value_or("") == "none";
    if (facts.virtual_gpu) return facts;
    facts.has_control = !find_program(environment, "nvidia-cuda-mps-control").empty();
    Folder folder;
    const std::string configured = environment.get("CROSSOVER_DIR").value_or("");
    if (choose_folder(configured.c_str(), facts.has_control, folder) == Status::kOk) {
        facts.folder = fmt::format("{}/mps-{}", folder.path, ::geteuid());
    } else {
        facts.folder_fault = fmt::format("{} cannot be used", folder.path);
    }
    facts.pipe_variable =
        without_end_slash(environment.get("CUDA_MPS_PIPE_DIRECTORY").value_or(""));
    if (!facts.folder.empty() && facts.pipe_variable == pipe_of(facts.folder)) {
        facts.pipe_variable.clear();  // ours, from a crossover-run around this one
    } else if (!facts.pipe_variable.empty()) {
        facts.pipe_answers = daemon_answers(environment, facts.pipe_variable);
        return facts;
    }
    const char* default_pipe = kDefaultMpsPipe;
    struct stat info {};
    if (::stat((std::string(default_pipe) + "/control").c_str(), &info) == 0) {
        const bool foreign = info.st_uid != ::geteuid() && info.st_uid != 0;
        facts.default_answers = !foreign && daemon_answers(environment, default_pipe);
        if (foreign) facts.default_foreign_user = user_name(info.st_uid);
    }
    facts.wsl = on_wsl();
    facts.mig = has_mig(environment);
    return facts;
}

// Starts this program anew as the folder's keeper: a child of nobody, with nothing of ours open.
std::string start_keeper(const std::string& folder, const Environment& environment) {
    Environment copy = environment;
    copy.remove("LD_PRELOAD");
    std::vector<char*> entries = copy.pointers();
    std::string program = "/proc/self/exe";
    std::string name = "crossover";
    std::string verb = "mps-keep";
    std::string place = folder;
    char* words[] = {name.data(), verb.data(), place.data(), nullptr};
    posix_spawnattr_t attributes;
    ::posix_spawnattr_init(&attributes);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETSID);
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    for (const int descriptor : {STDIN_FILENO, STDOUT_FILENO, STDERR_FILENO}) {
        ::posix_spawn_file_actions_addopen(&actions, descriptor, "/dev/null", O_RDWR, 0);
    }
    // What the caller had open without close-on-exec is not the keeper's to keep.
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    pid_t child = 0;
    const int error =
        ::posix_spawn(&child, program.c_str(), &actions, &attributes, words, entries.data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) return fmt::format("cannot start its keeper: {}", std::strerror(error));
    // It forks and ends at once, so that the command has no child that it knows nothing of.
    int status = 0;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0 ? "" : "cannot start its keeper";
}

// With the folder's lock held. A fault's text, or empty with a daemon that answers.
std::string ensure_daemon(const std::string& folder, const Environment& environment) {
    const MpsControl control(environment, pipe_of(folder), log_of(folder));
    if (!control.answers()) {
        std::string fault;
        if (!control.start(fault)) return "nvidia-cuda-mps-control -d fails: " + fault;
        const long polls = kReadySeconds * 1'000'000L / kPollUs;
        for (long poll = 0; !control.answers(); ++poll) {
            if (poll >= polls) return "the MPS daemon started and does not answer";
            ::usleep(kPollUs);
        }
    }
    const UniqueDescriptor keeper(open_lock(folder, "keeper"));
    if (keeper.get() < 0) return fmt::format("{}/keeper: {}", folder, std::strerror(errno));
    if (::flock(keeper.get(), LOCK_EX | LOCK_NB) != 0) return {};  // there is one
    ::flock(keeper.get(), LOCK_UN);
    return start_keeper(folder, environment);
}

// Fault's text, or empty and a use.
std::string join_private(const std::string& folder, const Environment& environment, MpsUse& use) {
    for (const std::string& path : {folder, pipe_of(folder), log_of(folder)}) {
        if (std::string fault = make_private(path); !fault.empty()) return fault;
    }
    const UniqueDescriptor lock(open_lock(folder, "lock"));
    MpsUse joined(open_lock(folder, "users"));
    if (lock.get() < 0 || !joined.active()) {
        return fmt::format("cannot open {}/lock: {}", folder, std::strerror(errno));
    }
    if (!lock_within(lock.get(), LOCK_EX, kLockSeconds)) {
        return "another process has been starting or ending the MPS daemon for a minute";
    }
    if (!joined.share()) return fmt::format("cannot lock {}/users", folder);
    std::string fault = ensure_daemon(folder, environment);
    if (fault.empty()) use = std::move(joined);
    return fault;
}

}  // namespace

MpsUse::~MpsUse() {
    if (descriptor_ >= 0) ::close(descriptor_);
}

MpsUse& MpsUse::operator=(MpsUse&& other) noexcept {
    std::swap(descriptor_, other.descriptor_);
    return *this;
}

bool MpsUse::share() const noexcept { return lock_within(descriptor_, LOCK_SH, kLockSeconds); }

void MpsUse::inherit() const noexcept {
    if (descriptor_ >= 0) ::fcntl(descriptor_, F_SETFD, 0);
}

MpsUse join_mps(Environment& environment, MpsChoice choice, std::string& line) {
    line.clear();
    if (choice == MpsChoice::kOff) return {};
    const MpsFacts facts = look(environment);
    MpsPlan plan = plan_mps(facts, choice);
    MpsUse use;
    if (plan.way == MpsWay::kPrivate) {
        plan.why_not = join_private(facts.folder, environment, use);
        if (plan.why_not.empty()) {
            environment.set("CUDA_MPS_PIPE_DIRECTORY", pipe_of(facts.folder));
            environment.set("CUDA_MPS_LOG_DIRECTORY", log_of(facts.folder));
            return use;
        }
    }
    if (plan.why_not.empty()) return use;
    if (choice == MpsChoice::kOn) throw UsageError("--mps on: " + plan.why_not);
    // A daemon that is not there is not to be looked for by the program.
    if (!facts.silent) line = mps_missing_line(plan.why_not);
    return use;
}

}  // namespace crossover::command
