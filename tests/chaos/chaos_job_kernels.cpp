// SPDX-License-Identifier: Apache-2.0
// chaos_job's kernels for the virtual GPU: step: v = mix(v + step); fold: v = mix(v ^ sum). Their
// cost is their last argument, in us. Nothing else here.
#include <cstddef>
#include <cstdint>

#include "chaos_math.hpp"
#include "kernel_plugin.h"

namespace {

constexpr std::size_t kStepSizes[] = {sizeof(std::uint64_t*), sizeof(std::uint64_t),
                                      sizeof(unsigned)};
constexpr std::size_t kFoldSizes[] = {sizeof(std::uint64_t*), sizeof(std::uint64_t*),
                                      sizeof(unsigned)};

template <class T>
T argument(void** parameters, int index) {
    return *static_cast<T*>(parameters[index]);
}

void run_step(SimgpuDim3, SimgpuDim3, void** parameters) {
    auto* const value = argument<std::uint64_t*>(parameters, 0);
    *value = chaos::mix(*value + argument<std::uint64_t>(parameters, 1));
}

void run_fold(SimgpuDim3, SimgpuDim3, void** parameters) {
    auto* const value = argument<std::uint64_t*>(parameters, 0);
    *value = chaos::mix(*value ^ *argument<std::uint64_t*>(parameters, 1));
}

std::uint64_t cost(SimgpuDim3, SimgpuDim3, void** parameters) {
    return std::uint64_t{argument<unsigned>(parameters, 2)} * 1000;
}

constexpr SimgpuKernel kKernels[] = {
    {"chaos_step", kStepSizes, 3, run_step, cost, 0.0F},
    {"chaos_fold", kFoldSizes, 3, run_fold, cost, 0.0F},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    *count = sizeof kKernels / sizeof kKernels[0];
    return kKernels;
}
