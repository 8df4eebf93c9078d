// SPDX-License-Identifier: Apache-2.0
// Host versions of the patterns' kernels, for machines whose GPU is the virtual one: those of the
// training, and of the Horovod-like engine. Nothing else here.
#include <iterator>
#include <vector>

#include "../dp_host_kernels.hpp"
#include "../horovod_like/copies_host.hpp"

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    static const std::vector<SimgpuKernel> kernels = [] {
        std::vector<SimgpuKernel> all(std::begin(dp::kHostKernels), std::end(dp::kHostKernels));
        all.push_back(hvd::kHostCopies);
        return all;
    }();
    *count = kernels.size();
    return kernels.data();
}
