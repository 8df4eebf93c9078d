// SPDX-License-Identifier: Apache-2.0
// Preloaded into a program: every kernel launch comes no sooner than SLOW_LAUNCH_US microseconds
// after the thread's last one, as from a slow interpreter. The thread sleeps meanwhile, so that
// several such programs do not fight for cores. Knows nothing of Crossover.
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <time.h>

#include <cstdint>
#include <cstdlib>

namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

std::uint64_t now_ns() {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::uint64_t pace_ns() {
    const char* text = std::getenv("SLOW_LAUNCH_US");
    return text == nullptr ? 0 : std::strtoull(text, nullptr, 10) * 1000;
}

// As long as the program stays behind, nothing is caught up: an interpreter does not get faster.
void wait_for_pace() {
    static const std::uint64_t pace = pace_ns();
    thread_local std::uint64_t last = 0;
    if (pace == 0) {
        return;
    }
    const std::uint64_t now = now_ns();
    const std::uint64_t due = last + pace;
    if (now < due) {
        const timespec until{static_cast<time_t>(due / kSecond), static_cast<long>(due % kSecond)};
        ::clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    }
    // A sleep that ends late is this machine's fault, not the interpreter's.
    last = now < due ? due : now;
}

}  // namespace

#define CX_SLOW(name, kind)                                                             \
    extern "C" __attribute__((visibility("default"))) cudaError_t name(                 \
        kind function, dim3 grid, dim3 block, void** arguments, size_t shared,          \
        cudaStream_t stream) {                                                          \
        using Launch = cudaError_t (*)(kind, dim3, dim3, void**, size_t, cudaStream_t); \
        static const auto real = reinterpret_cast<Launch>(::dlsym(RTLD_NEXT, #name));   \
        wait_for_pace();                                                                \
        return real(function, grid, block, arguments, shared, stream);                  \
    }
CX_SLOW(cudaLaunchKernel, const void*)
CX_SLOW(__cudaLaunchKernel, cudaKernel_t)  // what nvcc 13 compiles launches to
