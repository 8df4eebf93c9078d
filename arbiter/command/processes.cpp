// SPDX-License-Identifier: Apache-2.0
// Running several programs at once: see processes.hpp.
#include "processes.hpp"

#include <errno.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <spawn.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <cstring>
#include <deque>
#include <fstream>

#include "command.hpp"

namespace crossover::command {
namespace {

constexpr std::uint64_t kGraceNs = 5'000'000'000;  // from SIGTERM to SIGKILL
constexpr std::size_t kTailLines = 12;

// The set of signals that run_together takes for itself, blocked while this object lives.
class TakenSignals {
  public:
    TakenSignals() {
        ::sigemptyset(&set_);
        for (const int number : {SIGCHLD, SIGINT, SIGTERM, SIGHUP, SIGQUIT}) {
            ::sigaddset(&set_, number);
        }
        ::sigprocmask(SIG_BLOCK, &set_, &before_);
    }
    ~TakenSignals() { ::sigprocmask(SIG_SETMASK, &before_, nullptr); }
    TakenSignals(const TakenSignals&) = delete;
    TakenSignals& operator=(const TakenSignals&) = delete;

    const sigset_t& before() const noexcept { return before_; }

    // The number of the signal that came within `ns`, or 0.
    int wait(std::uint64_t ns) const {
        const timespec span{static_cast<time_t>(ns / 1'000'000'000),
                            static_cast<long>(ns % 1'000'000'000)};
        const int number = ::sigtimedwait(&set_, nullptr, &span);
        return number > 0 ? number : 0;
    }

  private:
    sigset_t set_{};
    sigset_t before_{};
};

struct Child {
    pid_t pid = 0;
    bool running = false;
    int wait_status = 0;
};

pid_t start(Program& program, const sigset_t& mask) {
    posix_spawn_file_actions_t actions;
    posix_spawnattr_t attributes;
    ::posix_spawn_file_actions_init(&actions);
    ::posix_spawnattr_init(&attributes);
    ::posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
    ::posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, program.output_file.c_str(),
                                       O_WRONLY | O_CREAT | O_TRUNC, 0644);
    ::posix_spawn_file_actions_adddup2(&actions, STDOUT_FILENO, STDERR_FILENO);
    ::posix_spawnattr_setflags(&attributes, POSIX_SPAWN_SETPGROUP | POSIX_SPAWN_SETSIGMASK);
    ::posix_spawnattr_setsigmask(&attributes, &mask);
    std::vector<char*> words;
    for (std::string& word : program.command) {
        words.push_back(word.data());
    }
    words.push_back(nullptr);
    pid_t pid = 0;
    const int error = ::posix_spawnp(&pid, words.front(), &actions, &attributes, words.data(),
                                     program.environment.pointers().data());
    ::posix_spawn_file_actions_destroy(&actions);
    ::posix_spawnattr_destroy(&attributes);
    if (error != 0) {
        throw Failure(fmt::format("{}: cannot start {}: {}", program.name, program.command.front(),
                                  std::strerror(error)));
    }
    return pid;
}

// The children of one call; whatever way it ends, none is left running.
class Children {
  public:
    explicit Children(const TakenSignals& signals) : signals_(signals) {}
    ~Children() { end_all(); }
    Children(const Children&) = delete;
    Children& operator=(const Children&) = delete;

    void add(pid_t pid) { list_.push_back({pid, true, 0}); }
    const Child& operator[](std::size_t index) const { return list_[index]; }

    // The index of a child that has ended since the last call, or -1.
    int reap() {
        for (std::size_t index = 0; index < list_.size(); ++index) {
            Child& child = list_[index];
            if (child.running && ::waitpid(child.pid, &child.wait_status, WNOHANG) == child.pid) {
                child.running = false;
                return static_cast<int>(index);
            }
        }
        return -1;
    }

    bool any_running() const {
        for (const Child& child : list_) {
            if (child.running) {
                return true;
            }
        }
        return false;
    }

  private:
    void signal_all(int number) const {
        for (const Child& child : list_) {
            if (child.running) {
                ::kill(-child.pid, number);
            }
        }
    }

    void end_all() noexcept {
        signal_all(SIGTERM);
        const std::uint64_t deadline_ns = now_ns() + kGraceNs;
        while (any_running() && now_ns() < deadline_ns) {
            if (reap() < 0) {
                signals_.wait(10'000'000);
            }
        }
        signal_all(SIGKILL);
        for (Child& child : list_) {
            if (child.running) {
                ::waitpid(child.pid, &child.wait_status, 0);
                child.running = false;
            }
        }
    }

    const TakenSignals& signals_;
    std::vector<Child> list_;
};

}  // namespace

std::uint64_t now_ns() {
    timespec time{};
    ::clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(time.tv_nsec);
}

std::string wait_status_text(int wait_status) {
    if (WIFSIGNALED(wait_status)) {
        return fmt::format("signal {} ({})", WTERMSIG(wait_status),
                           ::strsignal(WTERMSIG(wait_status)));
    }
    return fmt::format("exit status {}", WEXITSTATUS(wait_status));
}

std::string last_lines(const std::string& file, std::size_t most) {
    std::ifstream in(file);
    std::deque<std::string> lines;
    for (std::string line; std::getline(in, line);) {
        lines.push_back(std::move(line));
        if (lines.size() > most) {
            lines.pop_front();
        }
    }
    std::string text;
    for (const std::string& line : lines) {
        text += "\n    " + line;
    }
    return text;
}

std::vector<Outcome> run_together(std::vector<Program>& programs, std::uint64_t longest_ns,
                                  std::uint64_t poll_ns, const std::function<void()>& poll) {
    const TakenSignals signals;
    Children children(signals);
    std::vector<Outcome> outcomes(programs.size());
    for (std::size_t index = 0; index < programs.size(); ++index) {
        outcomes[index].begin_ns = now_ns();
        children.add(start(programs[index], signals.before()));
    }
    const std::uint64_t deadline_ns = now_ns() + longest_ns;
    while (children.any_running()) {
        const int number = signals.wait(poll_ns);
        for (int ended = children.reap(); ended >= 0; ended = children.reap()) {
            const auto index = static_cast<std::size_t>(ended);
            outcomes[index].end_ns = now_ns();
            if (children[index].wait_status != 0) {
                throw Failure(fmt::format(
                    "{} ended with {}; output in {}, its last lines:{}", programs[index].name,
                    wait_status_text(children[index].wait_status), programs[index].output_file,
                    last_lines(programs[index].output_file, kTailLines)));
            }
        }
        if (number != 0 && number != SIGCHLD) {
            throw Failure(fmt::format("ended by {}", wait_status_text(number)), 128 + number);
        }
        if (now_ns() >= deadline_ns) {
            throw Failure(fmt::format("not finished after {} s (--limit-s); output in {}",
                                      longest_ns / 1'000'000'000, programs.front().output_file));
        }
        poll();
    }
    return outcomes;
}

}  // namespace crossover::command
