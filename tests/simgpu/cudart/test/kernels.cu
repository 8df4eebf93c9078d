// SPDX-License-Identifier: Apache-2.0
// Device code of the runtime's tests; host versions are in plugin.cpp.
#include "kernels.hpp"

extern "C" __global__ void cudart_test_scale(int* data, int count, int factor) {
    const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
    if (i < count) {
        data[i] = data[i] * factor + i;
    }
}

extern "C" __global__ void cudart_test_long() {}

template <typename T>
__global__ void cudart_test_add(T* data, T value) {
    data[0] += value;
}

__device__ int cudart_test_table[8];

namespace simgpu::test {

void launch_scale(int* data, int count, int factor, cudaStream_t stream) {
    cudart_test_scale<<<(count + 63) / 64, 64, 0, stream>>>(data, count, factor);
}

const void* scale_kernel() { return reinterpret_cast<const void*>(&cudart_test_scale); }

void launch_add(double* data, double value, cudaStream_t stream) {
    cudart_test_add<double><<<1, 1, 0, stream>>>(data, value);
}

void launch_long(cudaStream_t stream) { cudart_test_long<<<1, 1, 0, stream>>>(); }

const void* device_table() { return &cudart_test_table; }

}  // namespace simgpu::test
