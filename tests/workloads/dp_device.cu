// SPDX-License-Identifier: Apache-2.0
// The training kernels and their launches; see dp_device.hpp. Nothing that a host compiler could
// compile as well, but for what is a line or two.
#include <cuda_runtime.h>
#include <time.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "dp_device.hpp"

#define DP_KERNEL(name, Arguments)                                                      \
    extern "C" __global__ void name(Arguments arguments) {                              \
        const int size = dp::count(arguments);                                          \
        for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < size; \
             i += static_cast<int>(gridDim.x * blockDim.x)) {                           \
            dp::element(arguments, i);                                                  \
        }                                                                               \
    }

DP_KERNEL(dp_forward, dp::Forward)
DP_KERNEL(dp_loss, dp::Loss)
DP_KERNEL(dp_loss_sum, dp::LossSum)
DP_KERNEL(dp_backward_weights, dp::BackwardWeights)
DP_KERNEL(dp_backward_data, dp::BackwardData)
DP_KERNEL(dp_step, dp::Step)
DP_KERNEL(dp_record_loss, dp::RecordLoss)
DP_KERNEL(dp_copy, dp::Copy)
DP_KERNEL(dp_add, dp::Add)
DP_KERNEL(dp_rectify, dp::Rectify)

extern "C" __global__ void dp_burn(dp::Burn arguments) {
    const float value = dp::burn_rounds(arguments.rounds, static_cast<float>(threadIdx.x));
    // Never true, which the compiler cannot know: keeps the arithmetic without memory traffic.
    if (value < -1.0F) {
        *arguments.sink = value;
    }
}

namespace dp {
namespace {

constexpr int kThreads = 256;
constexpr int kMaxBlocks = 4096;

template <typename Arguments>
void launch_kernel(void (*kernel)(Arguments), const Arguments& arguments, cudaStream_t stream) {
    const int blocks = std::min((count(arguments) + kThreads - 1) / kThreads, kMaxBlocks);
    kernel<<<blocks, kThreads, 0, stream>>>(arguments);
    check(cudaGetLastError(), "kernel launch");
}

}  // namespace

#define DP_LAUNCH(name, Arguments)                                 \
    template <>                                                    \
    void launch(const Arguments& arguments, cudaStream_t stream) { \
        launch_kernel(name, arguments, stream);                    \
    }

DP_LAUNCH(dp_forward, Forward)
DP_LAUNCH(dp_loss, Loss)
DP_LAUNCH(dp_loss_sum, LossSum)
DP_LAUNCH(dp_backward_weights, BackwardWeights)
DP_LAUNCH(dp_backward_data, BackwardData)
DP_LAUNCH(dp_step, Step)
DP_LAUNCH(dp_record_loss, RecordLoss)
DP_LAUNCH(dp_copy, Copy)
DP_LAUNCH(dp_add, Add)
DP_LAUNCH(dp_rectify, Rectify)

void launch_burn(int blocks, const Burn& burn, cudaStream_t stream) {
    dp_burn<<<blocks, kThreads, 0, stream>>>(burn);
    check(cudaGetLastError(), "kernel launch");
}

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s: %s: %s (%s)\n", program_invocation_short_name, what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
        std::exit(1);
    }
}

cudaStream_t new_stream() {
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreate");
    return stream;
}

cudaEvent_t new_event() {
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "cudaEventCreate");
    return event;
}

void order(cudaStream_t earlier, cudaEvent_t event, cudaStream_t later) {
    check(cudaEventRecord(event, earlier), "cudaEventRecord");
    check(cudaStreamWaitEvent(later, event, 0), "cudaStreamWaitEvent");
}

std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void sleep_until(std::int64_t at_ns) {
    const timespec at{static_cast<time_t>(at_ns / 1'000'000'000),
                      static_cast<long>(at_ns % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
}

}  // namespace dp
