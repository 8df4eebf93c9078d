// SPDX-License-Identifier: Apache-2.0
// Host versions of the tests' kernels, as a program's plug-in would have them. Knows nothing of
// CUDA.

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "../../kernel_plugin.h"

namespace {

template <typename T>
T value_of(void** parameters, int index) {
    T value;
    std::memcpy(&value, parameters[index], sizeof value);
    return value;
}

void add(SimgpuDim3, SimgpuDim3, void** parameters) {
    int* const p = value_of<int*>(parameters, 0);
    const int value = value_of<int>(parameters, 1);
    const int count = value_of<int>(parameters, 2);
    for (int i = 0; i < count; ++i) p[i] += value;
}

void affine(SimgpuDim3, SimgpuDim3, void** parameters) {
    int* const p = value_of<int*>(parameters, 0);
    p[0] = p[0] * value_of<int>(parameters, 1) + value_of<int>(parameters, 2);
    *static_cast<int*>(parameters[2]) = -1;  // a kernel may use its parameters as variables
}

void shape(SimgpuDim3 grid, SimgpuDim3 block, void** parameters) {
    std::uint32_t* const p = value_of<std::uint32_t*>(parameters, 0);
    const std::uint32_t all[] = {grid.x, grid.y, grid.z, block.x, block.y, block.z};
    std::memcpy(p, all, sizeof all);
}

// Parameters of many sizes, to show how a packed buffer is read.
void mixed(SimgpuDim3, SimgpuDim3, void** parameters) {
    double* const p = value_of<double*>(parameters, 1);
    p[0] = value_of<char>(parameters, 0);
    p[1] = value_of<short>(parameters, 2);
    p[2] = value_of<double>(parameters, 3);
    p[3] = value_of<float>(parameters, 4);
}

std::uint64_t last_us(void** parameters, int index) {
    return std::uint64_t{1000} * value_of<unsigned>(parameters, index);
}
std::uint64_t cost_of_3(SimgpuDim3, SimgpuDim3, void** parameters) {
    return last_us(parameters, 3);
}

constexpr std::size_t kWithCost[] = {sizeof(int*), sizeof(int), sizeof(int), sizeof(unsigned)};
constexpr std::size_t kPointer[] = {sizeof(void*)};
constexpr std::size_t kMixed[] = {sizeof(char), sizeof(double*), sizeof(short), sizeof(double),
                                  sizeof(float)};

constexpr SimgpuKernel kKernels[] = {
    {"add", kWithCost, 4, add, cost_of_3, 0.1F},
    {"affine", kWithCost, 4, affine, cost_of_3, 0.1F},
    {"shape", kPointer, 1, shape, nullptr, 0},
    {"mixed", kMixed, 5, mixed, nullptr, 0},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    *count = sizeof kKernels / sizeof kKernels[0];
    return kKernels;
}
