// SPDX-License-Identifier: Apache-2.0
// Kernels of the runtime's tests, as a program compiled by nvcc has them: launched by triple
// chevrons, or by address.
#pragma once

#include <cuda_runtime_api.h>

namespace simgpu::test {

// data[i] = data[i] * factor + i, for i < count.
void launch_scale(int* data, int count, int factor, cudaStream_t stream);
// The same kernel's address, for cudaLaunchKernel and its relatives; parameters (int*, int, int).
const void* scale_kernel();
// A kernel with a mangled name, data[0] += value.
void launch_add(double* data, double value, cudaStream_t stream);
// A kernel of 20 ms of virtual time without an effect.
void launch_long(cudaStream_t stream);
// Address of a __device__ array of eight ints.
const void* device_table();

}  // namespace simgpu::test
