// SPDX-License-Identifier: Apache-2.0
// simgpu-server: command line and process set-up around Server.
#include <sched.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <csignal>
#include <cstdio>
#include <exception>
#include <string>

#include "config.hpp"
#include "server.hpp"

namespace {

constexpr int kBadUsage = 2;

// Precise wake-ups, as far as this machine permits; without them only the notices come later, no
// time is lost.
void ask_for_precision() {
    prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    sched_param param{};
    param.sched_priority = 1;
    if (sched_setscheduler(0, SCHED_FIFO | SCHED_RESET_ON_FORK, &param) != 0) {
        [[maybe_unused]] const int denied = setpriority(PRIO_PROCESS, 0, -10);
    }
    rlimit files{};
    if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
        files.rlim_cur = files.rlim_max;
        setrlimit(RLIMIT_NOFILE, &files);
    }
}

int serve(int argc, char** argv) {
    simgpu::ServerConfig config;
    std::string text;
    switch (simgpu::parse_options(argc, argv, config, text)) {
        case simgpu::ParseResult::kHelp:
            std::fputs(text.c_str(), stdout);
            return 0;
        case simgpu::ParseResult::kBad:
            std::fprintf(stderr, "simgpu-server: %s\n", text.c_str());
            return kBadUsage;
        case simgpu::ParseResult::kRun:
            break;
    }
    if (config.parent != 0) {
        prctl(PR_SET_PDEATHSIG, SIGTERM);
        // It may have ended before the line above.
        if (getppid() != config.parent) {
            std::fprintf(stderr,
                         "simgpu-server: --parent: process %d is not this process's parent (%d)\n",
                         config.parent, static_cast<int>(getppid()));
            return kBadUsage;
        }
    }
    ask_for_precision();
    simgpu::Server server(config);
    if (!server.start(text)) {
        std::fprintf(stderr, "simgpu-server: %s\n", text.c_str());
        return kBadUsage;
    }
    if (config.ready_fd >= 0) {
        if (write(config.ready_fd, "1", 1) != 1) {
            std::fprintf(stderr, "simgpu-server: --ready-fd: %d cannot be written\n",
                         config.ready_fd);
            return kBadUsage;
        }
        close(config.ready_fd);
    }
    return server.run();
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return serve(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "simgpu-server: %s\n", error.what());
        return 1;
    }
}
