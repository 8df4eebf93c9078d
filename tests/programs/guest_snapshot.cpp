// SPDX-License-Identifier: Apache-2.0
// guest_cuda snapshot: what a library must leave as it found it in the process it is loaded into.
#include <dirent.h>
#include <locale.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <fenv.h>

#include <algorithm>
#include <cstring>
#include <map>

#include "guest_cuda.hpp"

extern char** environ;

namespace guest {

namespace {

using Picture = std::map<std::string, std::string>;

std::string link_of(const std::string& path) {
    char text[512] = "";
    const ssize_t length = ::readlink(path.c_str(), text, sizeof text - 1);
    return length < 0 ? "" : std::string(text, static_cast<std::size_t>(length));
}

std::vector<std::string> names_in(const char* folder) {
    std::vector<std::string> names;
    if (DIR* open = ::opendir(folder)) {
        while (const dirent* entry = ::readdir(open)) {
            if (entry->d_name[0] != '.' && std::to_string(::dirfd(open)) != entry->d_name) {
                names.emplace_back(entry->d_name);
            }
        }
        ::closedir(open);
    }
    std::sort(names.begin(), names.end());
    return names;
}

template <class T>
std::string bytes_of(const T& value) {
    return {reinterpret_cast<const char*>(&value), sizeof value};
}

Picture picture() {
    Picture all;
    for (int signal = 1; signal <= 64; ++signal) {
        struct sigaction action {};
        if (::sigaction(signal, nullptr, &action) == 0) {
            all["action of signal " + std::to_string(signal)] =
                bytes_of(action.sa_handler) + bytes_of(action.sa_flags);
        }
    }
    sigset_t mask;
    ::sigemptyset(&mask);
    ::pthread_sigmask(SIG_SETMASK, nullptr, &mask);
    std::string blocked;
    for (int signal = 1; signal <= 64; ++signal) {
        blocked += ::sigismember(&mask, signal) == 1 ? '1' : '0';
    }
    all["blocked signals"] = blocked;
    stack_t stack{};
    ::sigaltstack(nullptr, &stack);
    all["signal stack"] = bytes_of(stack.ss_sp) + bytes_of(stack.ss_size);
    const mode_t usual = ::umask(0);
    ::umask(usual);
    all["umask"] = bytes_of(usual);
    std::string variables;
    for (char** each = environ; *each != nullptr; ++each) {
        variables += std::string(*each) + "\n";
    }
    all["environment"] = variables + bytes_of(environ);
    all["locale"] = ::setlocale(LC_ALL, nullptr);
    all["locale of the thread"] = bytes_of(::uselocale(nullptr));
    all["working folder"] = link_of("/proc/self/cwd");
    all["rounding"] = bytes_of(::fegetround());
    all["process group"] = bytes_of(::getpgrp()) + bytes_of(::getsid(0));
    for (int limit = 0; limit < RLIMIT_NLIMITS; ++limit) {
        rlimit now{};
        if (::getrlimit(static_cast<__rlimit_resource>(limit), &now) == 0) {
            all["limit " + std::to_string(limit)] = bytes_of(now.rlim_cur) + bytes_of(now.rlim_max);
        }
    }
    for (const std::string& name : names_in("/proc/self/fd")) {
        all["descriptor " + name] = link_of("/proc/self/fd/" + name);
    }
    return all;
}

bool same(const char* when, const Picture& before, const Picture& after) {
    bool equal = true;
    const auto tell = [&](const std::string& what, const std::string& change) {
        std::printf("%s: %s: %s\n", when, what.c_str(), change.c_str());
        equal = false;
    };
    for (const auto& [what, value] : before) {
        const auto now = after.find(what);
        if (now == after.end()) {
            tell(what, "gone");
        } else if (now->second != value) {
            tell(what, "changed");
        }
    }
    for (const auto& [what, value] : after) {
        if (!before.contains(what)) {
            tell(what, "new: " + value);
        }
    }
    return equal;
}

void handler(int) {}

}  // namespace

int snapshot(int, char**) {
    // Nothing of what is compared is at its default.
    ::umask(027);
    ::signal(SIGUSR1, handler);
    ::signal(SIGUSR2, SIG_IGN);
    sigset_t some;
    ::sigemptyset(&some);
    ::sigaddset(&some, SIGHUP);
    ::pthread_sigmask(SIG_BLOCK, &some, nullptr);
    ::setlocale(LC_ALL, "C.UTF-8");
    ::fesetround(FE_DOWNWARD);
    ::setenv("GUEST", "1", 1);

    bool equal = true;
    if (names_in("/proc/self/task").size() != 1) {
        std::printf("threads before the first call\n");
        equal = false;
    }
    const char* folder = std::getenv("CROSSOVER_DIR");
    if (folder != nullptr && !names_in(folder).empty()) {
        std::printf("files before the first call\n");
        equal = false;
    }
    primary();
    const CUdeviceptr at = number();
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    CUstream stream = nullptr;
    need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    CUevent event = nullptr;
    need(cuEventCreate(&event, CU_EVENT_DEFAULT), "cuEventCreate");

    const Picture before = picture();
    need(add(nullptr, at, 100), "add");
    equal = same("after the first launch", before, picture()) && equal;
    for (int i = 0; i < 50; ++i) {
        need(add(stream, at, 500), "add");
        need(cuEventRecord(event, stream), "cuEventRecord");
        need(cuStreamWaitEvent(nullptr, event, 0), "cuStreamWaitEvent");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    equal = same("after more of them", before, picture()) && equal;
    std::printf("value %d\n", value_of(at));
    return equal ? 0 : 1;
}

}  // namespace guest
