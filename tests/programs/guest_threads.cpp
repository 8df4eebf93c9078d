// SPDX-License-Identifier: Apache-2.0
// guest_cuda's subcommand whose threads leave work on their per-thread default streams.
#include <unistd.h>

#include <thread>

#include "guest_cuda.hpp"

namespace guest {

// One thread after another launches on its per-thread default stream and ends at once. Then nothing
// more is launched; the value is said once it is there, and the process stays until its input ends.
int leaving_threads(int, char** arguments) {
    const int threads = std::atoi(arguments[0]);
    const CUcontext context = primary();
    const CUdeviceptr at = number();
    need(add(nullptr, at, 100), "add");
    need(cuCtxSynchronize(), "cuCtxSynchronize");
    say("ready");
    char byte = 0;
    while (::read(STDIN_FILENO, &byte, 1) > 0 && byte != '\n') {
    }
    for (int i = 0; i < threads; ++i) {
        std::thread([&] {
            need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
            need(add(CU_STREAM_PER_THREAD, at, 5000), "add");
        }).join();
    }
    say("left");
    while (::read(STDIN_FILENO, &byte, 1) > 0) {
    }
    std::printf("value %d\n", value_of(at));
    return 0;
}

}  // namespace guest
