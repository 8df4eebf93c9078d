// SPDX-License-Identifier: Apache-2.0
// Host versions of the kernels in kernels.cu. Nothing else.
#include <cstddef>
#include <cstdint>

#include "kernel_plugin.h"

namespace {

template <typename T>
T& argument(void** parameters, int index) {
    return *static_cast<T*>(parameters[index]);
}

void scale(SimgpuDim3 grid, SimgpuDim3 block, void** parameters) {
    int* const data = argument<int*>(parameters, 0);
    const int count = argument<int>(parameters, 1);
    const int threads = static_cast<int>(grid.x * block.x);
    for (int i = 0; i < count && i < threads; ++i) {
        data[i] = data[i] * argument<int>(parameters, 2) + i;
    }
}

void add(SimgpuDim3, SimgpuDim3, void** parameters) {
    *argument<double*>(parameters, 0) += argument<double>(parameters, 1);
}

void nothing(SimgpuDim3, SimgpuDim3, void**) {}

std::uint64_t twenty_ms(SimgpuDim3, SimgpuDim3, void**) { return 20'000'000; }

constexpr std::size_t kScale[] = {sizeof(int*), sizeof(int), sizeof(int)};
constexpr std::size_t kAdd[] = {sizeof(double*), sizeof(double)};

constexpr SimgpuKernel kKernels[] = {
    {"cudart_test_scale", kScale, 3, scale, nullptr, 0.0F},
    {"_Z15cudart_test_addIdEvPT_S0_", kAdd, 2, add, nullptr, 0.0F},
    {"cudart_test_long", nullptr, 0, nothing, twenty_ms, 0.0F},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    *count = sizeof(kKernels) / sizeof(kKernels[0]);
    return kKernels;
}
