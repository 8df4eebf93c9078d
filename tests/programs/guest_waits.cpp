// SPDX-License-Identifier: Apache-2.0
// Parts of guest_cuda in which a thread launches, and if that launch does not return, another one
// ends the wait in the way it is told: by a call of NCCL, or by ending the process.
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "guest_cuda.hpp"

namespace guest {
namespace {

std::atomic<bool> passed{false};

// What a program's own static object does at exit(): it waits for its thread.
struct JoinedAtExit {
    std::thread thread;
    ~JoinedAtExit() {
        if (thread.joinable()) {
            thread.join();
            say("joined at exit");
        }
    }
} worker;

template <class Function>
Function nccl(const char* name) {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
    auto function =
        library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) {
        std::printf("no %s\n", name);
        std::fflush(stdout);
        std::_Exit(1);
    }
    return function;
}

// No communicator of the program: only what the library does around the call can end the wait.
int end_wait(const std::string& how) {
    const auto one = [](const char* name) { nccl<ncclResult_t (*)(ncclComm_t)>(name)(nullptr); };
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0 && byte != '\n') {
    }
    say(passed.load() ? "it did not wait" : "it waits");
    if (how == "abort") one("ncclCommAbort");
    if (how == "destroy") one("ncclCommDestroy");
    if (how == "finalize") one("ncclCommFinalize");
    if (how == "exit") std::exit(0);
    if (how == "_exit") ::_exit(0);
    worker.thread.join();
    say("passed");
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    ::_exit(0);
}

}  // namespace

int waits_for_turn(int, char** arguments) {
    worker.thread = std::thread([] {
        primary();
        const CUdeviceptr at = number();
        static_cast<void>(add(nullptr, at, 10));  // refused where the driver has ended first
        passed = true;
    });
    return end_wait(arguments[0]);
}

// A communicator over two devices of this process. Its collectives last until both sides are there;
// at the last one the other side never comes.
int waits_at_crossing(int, char** arguments) {
    constexpr int kTold = 12;  // so that the window's length is known
    worker.thread = std::thread([] {
        const CUcontext other_context = primary(1);
        const CUcontext context = primary(0);
        ncclComm_t comms[2];
        const int devices[2] = {0, 1};
        nccl<decltype(&ncclCommInitAll)>("ncclCommInitAll")(comms, 2, devices);
        const auto all_reduce = nccl<decltype(&ncclAllReduce)>("ncclAllReduce");
        CUstream streams[2];
        CUdeviceptr values[2];
        const auto on = [&](int device) {
            need(cuCtxSetCurrent(device == 0 ? context : other_context), "cuCtxSetCurrent");
        };
        for (const int device : {1, 0}) {
            on(device);
            need(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
            values[device] = number();
        }
        const auto reduce = [&](int device) {
            on(device);
            void* value = reinterpret_cast<void*>(values[device]);
            all_reduce(value, value, 1, ncclInt32, ncclSum, comms[device],
                       reinterpret_cast<cudaStream_t>(streams[device]));
        };
        need(add(streams[0], values[0], 200), "add");
        for (int i = 0; i < kTold; ++i) {
            reduce(0);
            std::thread peer([&] {
                std::this_thread::sleep_for(std::chrono::milliseconds(5));
                reduce(1);
            });
            on(0);
            need(add(streams[0], values[0], 200), "add");
            peer.join();
            on(0);
            need(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
        }
        reduce(0);
        say("alone");
        static_cast<void>(add(streams[0], values[0], 200));
        if (cuStreamQuery(streams[0]) == CUDA_SUCCESS) say("the collective has ended");
        passed = true;
    });
    return end_wait(arguments[0]);
}

}  // namespace guest
