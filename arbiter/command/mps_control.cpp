// SPDX-License-Identifier: Apache-2.0
// Conversations with nvidia-cuda-mps-control: see mps_control.hpp.
#include "mps_control.hpp"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <spawn.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <sstream>
#include <vector>

#include "arbiter/file.hpp"
#include "command.hpp"

namespace crossover::command {
namespace {

constexpr const char* kControl = "nvidia-cuda-mps-control";
constexpr int kStartSeconds = 20;
constexpr int kAskSeconds = 10;
constexpr useconds_t kPollUs = 2000;

struct Answer {
    int status = -1;  // exit status; -1: did not run, did not end in time, or a signal ended it
    std::string text;
};

std::string all_of(int descriptor) {
    std::string text;
    char part[4096];
    ssize_t got = 0;
    while ((got = ::pread(descriptor, part, sizeof part, static_cast<off_t>(text.size()))) > 0) {
        text.append(part, static_cast<std::size_t>(got));
    }
    return text;
}

// Files of memory for input and output: a daemon that keeps them open makes nobody wait.
Answer run_bounded(Environment environment, std::vector<std::string> words,
                   const std::string& input, int seconds) {
    Answer answer;
    const std::string program = find_program(environment, words.front());
    const UniqueDescriptor in(::memfd_create("mps-in", MFD_CLOEXEC));
    const UniqueDescriptor out(::memfd_create("mps-out", MFD_CLOEXEC));
    if (program.empty() || in.get() < 0 || out.get() < 0 ||
        ::pwrite(in.get(), input.data(), input.size(), 0) != static_cast<ssize_t>(input.size())) {
        return answer;
    }
    std::vector<char*> arguments;
    for (std::string& word : words) {
        arguments.push_back(word.data());
    }
    arguments.push_back(nullptr);
    const std::vector<char*> entries = environment.pointers();
    posix_spawn_file_actions_t actions;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawn_file_actions_adddup2(&actions, in.get(), STDIN_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out.get(), STDOUT_FILENO);
    ::posix_spawn_file_actions_adddup2(&actions, out.get(), STDERR_FILENO);
    // Above all not the descriptor that tells a user of the daemon: it would never end.
    ::posix_spawn_file_actions_addclosefrom_np(&actions, STDERR_FILENO + 1);
    pid_t child = 0;
    const int error =
        ::posix_spawn(&child, program.c_str(), &actions, nullptr, arguments.data(), entries.data());
    ::posix_spawn_file_actions_destroy(&actions);
    if (error != 0) return answer;
    int status = 0;
    const long polls = seconds * 1'000'000L / kPollUs;
    for (long poll = 0;; ++poll) {
        const pid_t got = ::waitpid(child, &status, WNOHANG);
        if (got == child) break;
        if (got < 0 && errno != EINTR) return answer;
        if (poll == polls) {
            ::kill(child, SIGKILL);
            while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
            }
            answer.text = "it does not answer";
            return answer;
        }
        ::usleep(kPollUs);
    }
    answer.status = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    answer.text = all_of(out.get());
    return answer;
}

}  // namespace

std::string find_program(const Environment& environment, const std::string& name) {
    std::istringstream folders(environment.get("PATH").value_or("/usr/bin:/bin"));
    for (std::string folder; std::getline(folders, folder, ':');) {
        const std::string path = (folder.empty() ? "." : folder) + "/" + name;
        if (::access(path.c_str(), X_OK) == 0) return path;
    }
    return {};
}

MpsControl::MpsControl(Environment environment, const std::string& pipe_folder,
                       const std::string& log_folder)
    : environment_(std::move(environment)) {
    // The daemon serves all later jobs, so nothing of this one's settings may stay in it. What it
    // sees of the GPUs would renumber them for everybody.
    for (const char* name : {"LD_PRELOAD", "CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER",
                             "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE",
                             "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_CLIENT_PRIORITY"}) {
        environment_.remove(name);
    }
    environment_.set("CUDA_MPS_PIPE_DIRECTORY", pipe_folder);
    if (!log_folder.empty()) environment_.set("CUDA_MPS_LOG_DIRECTORY", log_folder);
}

bool MpsControl::start(std::string& fault) const {
    const Answer answer = run_bounded(environment_, {kControl, "-d"}, "", kStartSeconds);
    if (answer.status == 0) return true;
    fault = answer.text.substr(0, answer.text.find('\n'));
    if (fault.empty()) fault = "it ends with an error";
    return false;
}

std::optional<std::string> MpsControl::ask(const std::string& text) const {
    const Answer answer = run_bounded(environment_, {kControl}, text + "\n", kAskSeconds);
    if (answer.status != 0) return std::nullopt;
    return answer.text;
}

bool MpsControl::answers() const { return ask("get_server_list").has_value(); }

std::optional<std::size_t> MpsControl::clients() const {
    const std::optional<std::string> servers = ask("get_server_list");
    if (!servers) return std::nullopt;
    std::size_t count = 0;
    std::istringstream words(*servers);
    for (long server = 0; words >> server;) {
        const std::optional<std::string> list = ask("get_client_list " + std::to_string(server));
        if (!list) continue;
        std::istringstream lines(*list);
        for (long client = 0; lines >> client;) ++count;
    }
    return count;
}

bool MpsControl::quit() const { return ask("quit").has_value(); }

}  // namespace crossover::command
