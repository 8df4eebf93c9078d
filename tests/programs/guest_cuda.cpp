// SPDX-License-Identifier: Apache-2.0
// A small CUDA program with many ways of living and dying: guest_cuda SUBCOMMAND. It knows nothing
// of Crossover; tests run it bare and preloaded. It prints what it saw, as plain words; its exit
// status is 0 unless something could not be done. No test logic here beyond its own results.
#include "guest_cuda.hpp"

#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <pthread.h>
#include <signal.h>
#include <spawn.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <system_error>
#include <thread>

extern char** environ;

namespace guest {

namespace {

// A job that computes without a pause until its standard input ends.
int loop(int, char** arguments) {
    const auto cost_us = static_cast<unsigned>(std::atoi(arguments[0]));
    primary();
    const CUdeviceptr at = number();
    ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
    bool told = false;
    for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) != 0;) {
        need(add(nullptr, at, cost_us), "add");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
        if (!told) {
            say("ready");
            told = true;
        }
    }
    return 0;
}

// So many steps of "training" and the result.
int steps(int, char** arguments) {
    const int count = std::atoi(arguments[0]);
    primary();
    const CUdeviceptr at = number();
    for (int i = 0; i < count; ++i) {
        need(add(nullptr, at, 200), "add");
    }
    std::printf("value %d\n", value_of(at));
    return 0;
}

// The UUID of each device it sees, then a launch on the first, then waits for its input's end.
int devices(int, char**) {
    need(cuInit(0), "cuInit");
    int count = 0;
    need(cuDeviceGetCount(&count), "cuDeviceGetCount");
    for (int i = 0; i < count; ++i) {
        CUuuid uuid{};
        need(cuDeviceGetUuid(&uuid, i), "cuDeviceGetUuid");
        for (const char byte : uuid.bytes) {
            std::printf("%02x", static_cast<unsigned char>(byte));
        }
        std::printf("\n");
        primary(i);
        need(add(nullptr, number(), 1), "add");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    say("ready");
    for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) > 0;) {
    }
    return 0;
}

// Registers by a launch, then becomes another image of itself.
int exec_itself(int, char**) {
    primary();
    const CUdeviceptr at = number();
    need(add(nullptr, at, 100), "add");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    say("first image");
    for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) > 0 && byte != '\n';) {
    }
    char self[] = "/proc/self/exe";
    char name[] = "guest_cuda";
    char command[] = "loop";
    char cost[] = "500";
    char* words[] = {name, command, cost, nullptr};
    ::execv(self, words);
    return 1;
}

bool ended_well(pid_t child) {
    int status = -1;
    while (::waitpid(child, &status, 0) < 0 && errno == EINTR) {
    }
    return WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

// Data-loader workers: children come and go in every way while another thread launches in a loop.
int forks(int, char** arguments) {
    const int children = std::atoi(arguments[0]);
    const CUcontext context = primary();
    const CUdeviceptr at = number();
    std::atomic<bool> stop{false};
    std::atomic<int> launched{0};
    std::thread busy([&] {
        need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        CUevent event = nullptr;
        need(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        while (!stop.load()) {
            need(add(nullptr, at, 20), "add");
            need(cuEventRecord(event, nullptr), "cuEventRecord");
            need(cuStreamWaitEvent(nullptr, event, 0), "cuStreamWaitEvent");
            if (launched.fetch_add(1) % 16 == 0) {
                need(cuCtxSynchronize(), "cuCtxSynchronize");
            }
        }
    });
    while (launched.load() == 0) {
        std::this_thread::yield();
    }
    char path[] = "/bin/true";
    char* words[] = {path, nullptr};
    int bad = 0;
    for (int i = 0; i < children; ++i) {
        pid_t child = -1;
        switch (i % 5) {
            case 0:  // with exit handlers, after the look-ups a library's start makes
                child = ::fork();
                if (child == 0) {
                    const bool found =
                        ::dlsym(RTLD_DEFAULT, "getenv") != nullptr && ::getenv("PATH") != nullptr;
                    std::exit(found ? 0 : 3);
                }
                break;
            case 1:
                child = ::fork();
                if (child == 0) {
                    ::_exit(add(nullptr, at, 1) == CUDA_SUCCESS ? 4 : 0);  // the driver refuses
                }
                break;
            case 2:
                child = ::fork();
                if (child == 0) {
                    ::execv(path, words);
                    ::_exit(5);
                }
                break;
            case 3:
                child = ::vfork();
                if (child == 0) {
                    ::execv(path, words);
                    ::_exit(5);
                }
                break;
            default:
                if (::posix_spawn(&child, path, nullptr, nullptr, words, environ) != 0) {
                    child = -1;
                }
        }
        bad += child > 0 && ended_well(child) ? 0 : 1;
    }
    stop.store(true);
    busy.join();
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    std::printf("bad %d, result %s\n", bad, value_of(at) == launched.load() ? "right" : "wrong");
    return 0;
}

// ------------------------------------------------------------------------------------------------
// ends

CUdeviceptr late_number = 0;

void launch_late(const char* when) {
    if (late_number != 0) {
        const CUresult result = add(nullptr, late_number, 1);
        std::fprintf(stderr, "%s: %s\n", when,
                     result == CUDA_SUCCESS || result == CUDA_ERROR_DEINITIALIZED ? "fine" : "bad");
    }
}
[[gnu::destructor]] void at_the_very_end() { launch_late("destructor"); }
struct Late {
    ~Late() { launch_late("static object"); }
} late;

// Ends while a thread launches on, in the way named.
int ends(int, char** arguments) {
    const std::string how = arguments[0];
    const CUcontext context = primary();
    const CUdeviceptr at = number();
    need(add(nullptr, at, 100), "add");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    std::atomic<bool> running{false};
    std::thread busy([&, context, at] {
        if (cuCtxSetCurrent(context) == CUDA_SUCCESS) {
            while (add(nullptr, at, 50) == CUDA_SUCCESS) {
                running.store(true);
                cuCtxSynchronize();
            }
        }
        for (;;) {
            ::pause();  // until the process ends
        }
    });
    busy.detach();
    while (!running.load()) {
        std::this_thread::yield();
    }
    say("leaving");
    if (how == "exit") {
        std::atexit([] { launch_late("atexit"); });
        late_number = at;
        std::exit(11);
    } else if (how == "_exit") {
        ::_exit(12);
    } else if (how == "quick_exit") {
        std::quick_exit(13);
    } else if (how == "abort") {
        std::abort();
    } else if (how == "terminate") {
        ::kill(::getpid(), SIGTERM);
    } else if (how == "thread") {
        ::pthread_exit(nullptr);  // the other thread never ends, so a signal does it
    }
    ::pause();
    return 1;
}

// Many threads make the process's first launch at once.
int threads(int, char** arguments) {
    const int count = std::atoi(arguments[0]);
    const CUcontext context = primary();
    const CUdeviceptr at = number();
    pthread_barrier_t start;
    ::pthread_barrier_init(&start, nullptr, static_cast<unsigned>(count));
    std::vector<std::thread> all;
    for (int i = 0; i < count; ++i) {
        all.emplace_back([&] {
            need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
            ::pthread_barrier_wait(&start);
            for (int launch = 0; launch < 20; ++launch) {
                need(add(nullptr, at, 1), "add");
            }
        });
    }
    for (std::thread& each : all) {
        each.join();
    }
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    std::printf("value %d\n", value_of(at));
    return 0;
}

// Contexts vanish under threads that launch: "destroy" one of its own, "reset" or "release" the
// primary one; "later", when each has launched, or "first", when they may not have done so yet. The
// driver may refuse what comes too late; afterwards another context works.
int vanish(int, char** arguments) {
    const std::string how = arguments[0];
    const bool first = std::string(arguments[1]) == "first";
    CUcontext context = nullptr;
    for (int round = 0; round < 3; ++round) {
        if (how == "destroy") {
            need(cuInit(0), "cuInit");
            need(cuCtxCreate(&context, nullptr, 0, 0), "cuCtxCreate");
        } else {
            context = primary();
        }
        const CUdeviceptr at = number();
        std::atomic<int> running{0};
        std::atomic<bool> stop{false};
        std::vector<std::thread> all;
        for (int i = 0; i < 4; ++i) {
            all.emplace_back([&] {
                if (cuCtxSetCurrent(context) != CUDA_SUCCESS) {
                    return;
                }
                running.fetch_add(first || add(nullptr, at, 20) == CUDA_SUCCESS ? 1 : 0);
                while (!stop.load() && add(nullptr, at, 20) == CUDA_SUCCESS) {
                }
            });
        }
        while (running.load() < 4) {
            std::this_thread::yield();
        }
        if (first) {
            ::usleep(100'000);
        }
        if (how == "destroy") {
            need(cuCtxDestroy(context), "cuCtxDestroy");
        } else if (how == "reset") {
            need(cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
        } else {
            need(cuDevicePrimaryCtxRelease(0), "cuDevicePrimaryCtxRelease");
        }
        stop.store(true);
        for (std::thread& each : all) {
            each.join();
        }
        ::usleep(20'000);  // whoever still looks at the context's streams and events does it now
    }
    primary();
    const CUdeviceptr at = number();
    need(add(nullptr, at, 1), "add");
    std::printf("value %d\n", value_of(at));
    return 0;
}

// Threads without a context, and streams of another device than the thread's.
int contexts(int, char**) {
    const CUcontext first = primary(0);
    const CUdeviceptr at_first = number();
    CUstream on_first = nullptr;
    need(cuStreamCreate(&on_first, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    const CUcontext second = primary(1);
    const CUdeviceptr at_second = number();
    CUstream on_second = nullptr;
    need(cuStreamCreate(&on_second, CU_STREAM_NON_BLOCKING), "cuStreamCreate");

    std::thread([&] {
        std::printf("no context: default stream %d, other stream %d\n",
                    static_cast<int>(add(nullptr, at_first, 1)),
                    static_cast<int>(add(on_first, at_first, 1)));
    }).join();
    need(cuCtxSetCurrent(first), "cuCtxSetCurrent");
    std::printf("first's thread on second's stream %d\n",
                static_cast<int>(add(on_second, at_second, 1)));
    for (int i = 0; i < 10; ++i) {
        need(cuCtxPushCurrent(second), "cuCtxPushCurrent");
        need(add(on_second, at_second, 1), "add");
        need(add(nullptr, at_second, 1), "add");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
        CUcontext popped = nullptr;
        need(cuCtxPopCurrent(&popped), "cuCtxPopCurrent");
        need(add(on_first, at_first, 1), "add");
        need(add(nullptr, at_first, 1), "add");
        need(cuCtxSynchronize(), "cuCtxSynchronize");
    }
    std::printf("values %d", value_of(at_first));
    need(cuCtxSetCurrent(second), "cuCtxSetCurrent");
    std::printf(" %d\n", value_of(at_second));
    return 0;
}

// An ordinary user from here on, with room for no further thread where `limited` is 1.
int as_nobody(int, char** arguments) {
    primary();
    const CUdeviceptr at = number();
    constexpr unsigned kNobody = 65534;
    if (::setgroups(0, nullptr) != 0 || ::setresgid(kNobody, kNobody, kNobody) != 0 ||
        ::setresuid(kNobody, kNobody, kNobody) != 0) {
        return 77;
    }
    if (std::atoi(arguments[0]) == 1) {
        const rlimit none{0, 0};
        ::setrlimit(RLIMIT_NPROC, &none);
        try {
            std::thread([] {}).join();
            say("a thread was created");
        } catch (const std::system_error&) {
        }
    }
    for (int i = 0; i < 160; ++i) {
        need(add(nullptr, at, 1), "add");
    }
    std::printf("value %d\n", value_of(at));
    return 0;
}

struct Command {
    const char* name;
    int words;
    int (*run)(int, char**);
};
constexpr Command kCommands[] = {
    {"loop", 1, loop},
    {"steps", 1, steps},
    {"devices", 0, devices},
    {"exec", 0, exec_itself},
    {"forks", 1, forks},
    {"ends", 1, ends},
    {"threads", 1, threads},
    {"vanish", 2, vanish},
    {"contexts", 0, contexts},
    {"snapshot", 0, snapshot},
    {"as_nobody", 1, as_nobody},
    {"waits_for_turn", 1, waits_for_turn},
    {"waits_at_crossing", 1, waits_at_crossing},
    {"leaving_threads", 1, leaving_threads},
    {"queues", 1, queues},
    {"queues_many", 1, queues_many},
    {"queues_at_crossing", 1, queues_at_crossing},
};

}  // namespace
}  // namespace guest

int main(int argc, char** argv) {
    for (const guest::Command& command : guest::kCommands) {
        if (argc >= 2 && std::strcmp(command.name, argv[1]) == 0 && argc == command.words + 2) {
            return command.run(command.words, argv + 2);
        }
    }
    std::fprintf(stderr, "guest_cuda: no such subcommand\n");
    return 2;
}
