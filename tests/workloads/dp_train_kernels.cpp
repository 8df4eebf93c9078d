// SPDX-License-Identifier: Apache-2.0
// dp_train's kernels for the virtual GPU. Nothing else here.
#include "dp_host_kernels.hpp"

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    *count = sizeof(dp::kHostKernels) / sizeof(dp::kHostKernels[0]);
    return dp::kHostKernels;
}
