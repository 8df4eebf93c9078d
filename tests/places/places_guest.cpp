// SPDX-License-Identifier: Apache-2.0
// A CUDA program that changes itself while it works: places_guest SUBCOMMAND. It knows nothing of
// Crossover; tests run it preloaded. What it is told on standard input it does; a last line says
// whether its results were right. No test logic here.
#include <dlfcn.h>
#include <fcntl.h>
#include <grp.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <thread>

#include "guest_cuda.hpp"

namespace guest {
namespace {

constexpr unsigned kStepUs = 300;

void need(bool done, const char* what) {
    if (!done) {
        std::printf("%s: %s\n", what, std::strerror(errno));
        std::fflush(stdout);
        std::_Exit(1);
    }
}

std::string line_of_input() {
    std::string line;
    for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) == 1 && byte != '\n';) {
        line += byte;
    }
    return line;
}

struct Work {
    CUdeviceptr at = 0;
    int launched = 0;

    void step() {
        guest::need(add(nullptr, at, kStepUs), "add");
        guest::need(cuCtxSynchronize(), "cuCtxSynchronize");
        ++launched;
    }
    // Computes until standard input ends, then tells.
    int finish() {
        ::fcntl(STDIN_FILENO, F_SETFL, O_NONBLOCK);
        for (char byte = 0; ::read(STDIN_FILENO, &byte, 1) != 0;) {
            step();
        }
        say(value_of(at) == launched ? "value right" : "value wrong");
        return 0;
    }
};

std::string text_of(const CUuuid& uuid) {
    std::string text;
    for (const char byte : uuid.bytes) {
        char digits[3];
        std::snprintf(digits, sizeof digits, "%02x", static_cast<unsigned char>(byte));
        text += digits;
    }
    return text;
}

// For each device a line "UUID-of-the-GPU UUID", after a launch on it.
int uuids(char**) {
    using GetUuid = CUresult (*)(CUuuid*, CUdevice);
    const auto first_version = reinterpret_cast<GetUuid>(::dlsym(RTLD_DEFAULT, "cuDeviceGetUuid"));
    need(first_version != nullptr, "cuDeviceGetUuid");
    int count = 0;
    if (const CUresult result = cuInit(0); result != CUDA_ERROR_NO_DEVICE) {
        guest::need(result, "cuInit");
        guest::need(cuDeviceGetCount(&count), "cuDeviceGetCount");
    }
    for (int i = 0; i < count; ++i) {
        CUuuid gpu{};
        CUuuid device{};
        guest::need(first_version(&gpu, i), "cuDeviceGetUuid");
        guest::need(cuDeviceGetUuid_v2(&device, i), "cuDeviceGetUuid_v2");
        primary(i);
        guest::need(add(nullptr, number(), 1), "add");
        guest::need(cuCtxSynchronize(), "cuCtxSynchronize");
        say((text_of(gpu) + " " + text_of(device)).c_str());
    }
    say("ready");
    line_of_input();
    return 0;
}

void become_user(char** words) {
    const auto id = static_cast<uid_t>(std::atoi(words[0]));
    need(::setgroups(0, nullptr) == 0 && ::setresgid(id, id, id) == 0 &&
             ::setresuid(id, id, id) == 0,
         "setresuid");
}

void change_root(char** words) { need(::chroot(words[0]) == 0 && ::chdir("/") == 0, "chroot"); }

// Works, changes when it is told to, works on.
int change(char** words) {
    const std::string how = words[0];
    Work work;
    if (how == "thread") {
        // The thread that made the process's first CUDA calls is gone before the others begin.
        CUcontext context = nullptr;
        std::thread([&] {
            context = primary();
            work.at = number();
            work.step();
        }).join();
        guest::need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    } else {
        primary();
        work.at = number();
        work.step();
    }
    say("ready");
    line_of_input();
    if (how == "user") become_user(words + 1);
    if (how == "root") change_root(words + 1);
    work.step();
    say("changed");
    return work.finish();
}

// Has the turn and much submitted when it is told to go on: as a process that a forked child of its
// outlives, or as another program.
int leave(char** words) {
    const std::string how = words[0];
    primary();
    const CUdeviceptr at = number();
    guest::need(add(nullptr, at, kStepUs), "add");
    guest::need(cuCtxSynchronize(), "cuCtxSynchronize");
    if (how == "child") {
        const pid_t child = ::fork();
        need(child >= 0, "fork");
        if (child == 0) {
            for (;;) {
                ::pause();  // until the test ends it
            }
        }
        say(std::to_string(child).c_str());
    }
    std::atomic<bool> leaving{false};
    const CUcontext context = primary();
    // More submitted than done at any time, so the turn is never given back by itself.
    std::thread busy([&] {
        guest::need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
        CUevent before = nullptr;
        guest::need(cuEventCreate(&before, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
        while (!leaving.load()) {
            for (int i = 0; i < 10; ++i) guest::need(add(nullptr, at, 2000), "add");
            if (cuEventQuery(before) == CUDA_ERROR_NOT_READY) cuEventSynchronize(before);
            guest::need(cuEventRecord(before, nullptr), "cuEventRecord");
        }
    });
    say("ready");
    line_of_input();
    if (how == "program") {
        char path[] = "/bin/sleep";
        char time[] = "1000";
        char* arguments[] = {path, time, nullptr};
        ::execv(path, arguments);
    }
    leaving.store(true);
    busy.join();
    return 1;
}

std::uint64_t mapped_bytes() {
    std::ifstream file("/proc/self/statm");
    std::uint64_t pages = 0;
    file >> pages;
    return pages * static_cast<std::uint64_t>(::sysconf(_SC_PAGESIZE));
}

// Short of something from before its first launch on: "files", or "memory" with so many KiB left.
int starved(char** words) {
    const std::string of = words[0];
    Work work;
    primary();
    work.at = number();
    add_kernel();
    say("ready");
    if (of == "files") {
        while (::open("/dev/null", O_RDONLY | O_CLOEXEC) >= 0) {
        }
        need(errno == EMFILE, "RLIMIT_NOFILE");
    } else {
        const std::uint64_t bytes =
            mapped_bytes() + 1024 * static_cast<std::uint64_t>(std::atoi(words[1]));
        const rlimit limit{bytes, bytes};
        need(::setrlimit(RLIMIT_AS, &limit) == 0, "setrlimit");
    }
    for (int i = 0; i < 100; ++i) {
        // Without memory the driver itself may refuse.
        const CUresult result = add(nullptr, work.at, 1);
        if (result == CUDA_ERROR_OUT_OF_MEMORY) ::_exit(3);
        guest::need(result, "add");
        ++work.launched;
    }
    guest::need(cuCtxSynchronize(), "cuCtxSynchronize");
    return work.finish();
}

struct Command {
    const char* name;
    int words;
    int (*run)(char**);
};
constexpr Command kCommands[] = {
    {"uuids", 0, uuids}, {"change", 2, change}, {"leave", 1, leave}, {"starved", 2, starved}};

}  // namespace
}  // namespace guest

int main(int argc, char** argv) {
    for (const guest::Command& command : guest::kCommands) {
        if (argc >= 2 && std::strcmp(command.name, argv[1]) == 0 && argc == command.words + 2) {
            return command.run(argv + 2);
        }
    }
    std::fprintf(stderr, "places_guest: no such subcommand\n");
    return 2;
}
