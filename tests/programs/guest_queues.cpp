// SPDX-License-Identifier: Apache-2.0
// Parts of guest_cuda that leave work in the GPU's queue, so that the GPU and not the launching
// thread may be what waits; the program waits for the GPU, and ends in the way it is told.
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

template <class Function>
Function nccl(const char* name) {
    void* library = ::dlopen("libnccl.so.2", RTLD_NOW);
    auto function =
        library == nullptr ? nullptr : reinterpret_cast<Function>(::dlsym(library, name));
    if (function == nullptr) {
        say("no NCCL");
        std::_Exit(1);
    }
    return function;
}

void wait_for_input() {
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0 && byte != '\n') {
    }
}

}  // namespace

// Work is launched, and waited for by another thread while this one ends the wait: no communicator
// of the program, only what is done around the call can end it.
int queues(int, char** arguments) {
    const std::string how = arguments[0];
    const CUcontext context = primary();
    const CUdeviceptr at = number();
    need(add(nullptr, at, 10), "add");
    say("launched");
    std::thread waiter([&] {
        // Where the process ends first, there is nothing to wait for.
        const CUresult set = cuCtxSetCurrent(context);
        const CUresult result = set == CUDA_SUCCESS ? cuStreamSynchronize(nullptr) : set;
        say(result == CUDA_SUCCESS ? "done" : "ended");
    });
    wait_for_input();
    say(cuStreamQuery(nullptr) == CUDA_ERROR_NOT_READY ? "it waits" : "it does not wait");
    const auto one = [](const char* name) { nccl<ncclResult_t (*)(ncclComm_t)>(name)(nullptr); };
    if (how == "abort") one("ncclCommAbort");
    if (how == "destroy") one("ncclCommDestroy");
    if (how == "finalize") one("ncclCommFinalize");
    if (how == "reset") need(cuDevicePrimaryCtxReset(0), "cuDevicePrimaryCtxReset");
    if (how == "exit") std::exit(0);
    if (how == "_exit") ::_exit(0);
    waiter.join();
    if (how != "reset") std::printf("value %d\n", value_of(at));
    std::fflush(stdout);
    ::_exit(0);
}

// More launches than a stream has room for, without a pause.
int queues_many(int, char** arguments) {
    const int count = std::atoi(arguments[0]);
    primary();
    const CUdeviceptr at = number();
    CUstream streams[2];
    for (CUstream& stream : streams) {
        need(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING), "cuStreamCreate");
    }
    say("ready");
    wait_for_input();
    for (int i = 0; i < count; ++i) {
        need(add(streams[0], at, 5), "add");
    }
    say("launched");
    need(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
    need(add(streams[1], at, 5), "add");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    std::printf("value %d\n", value_of(at));
    return 0;
}

// A communicator over two devices of this process. Each collective lasts until the other side
// comes, 5 ms after what is launched behind it. Says how many launches came back before their
// collective had ended.
int queues_at_crossing(int, char** arguments) {
    const int count = std::atoi(arguments[0]);
    const CUcontext contexts[2] = {primary(0), primary(1)};
    ncclComm_t comms[2];
    const int devices[2] = {0, 1};
    nccl<decltype(&ncclCommInitAll)>("ncclCommInitAll")(comms, 2, devices);
    const auto all_reduce = nccl<decltype(&ncclAllReduce)>("ncclAllReduce");
    CUstream streams[2];
    CUdeviceptr values[2];
    CUdeviceptr sums[2];
    CUevent ended = nullptr;
    const auto on = [&](int device) { need(cuCtxSetCurrent(contexts[device]), "cuCtxSetCurrent"); };
    for (const int device : {1, 0}) {
        on(device);
        need(cuStreamCreate(&streams[device], CU_STREAM_NON_BLOCKING), "cuStreamCreate");
        values[device] = number();
        sums[device] = number();
    }
    need(cuEventCreate(&ended, CU_EVENT_DISABLE_TIMING), "cuEventCreate");
    const auto reduce = [&](int device) {
        on(device);
        all_reduce(reinterpret_cast<void*>(values[device]), reinterpret_cast<void*>(sums[device]),
                   1, ncclInt32, ncclSum, comms[device],
                   reinterpret_cast<cudaStream_t>(streams[device]));
    };
    int ahead = 0;
    need(add(streams[0], values[0], 200), "add");
    for (int i = 0; i < count; ++i) {
        reduce(0);
        need(cuEventRecord(ended, streams[0]), "cuEventRecord");
        std::atomic<bool> launched{false};
        std::thread peer([&] {
            for (int ms = 0; ms < 100 && !launched.load(); ++ms) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
            }
            std::this_thread::sleep_for(std::chrono::milliseconds(5));
            reduce(1);
        });
        on(0);
        need(add(streams[0], values[0], 200), "add");
        ahead += cuEventQuery(ended) == CUDA_ERROR_NOT_READY ? 1 : 0;
        launched = true;
        peer.join();
        on(0);
        need(cuStreamSynchronize(streams[0]), "cuStreamSynchronize");
    }
    std::fprintf(stderr, "ahead %d\n", ahead);
    on(0);
    std::printf("value %d sum %d\n", value_of(values[0]), value_of(sums[0]));
    std::fflush(stdout);
    ::_exit(0);
}

}  // namespace guest
