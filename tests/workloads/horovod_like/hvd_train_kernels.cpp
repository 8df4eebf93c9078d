// SPDX-License-Identifier: Apache-2.0
// Host versions of hvd_train's kernels, for machines whose GPU is the virtual one: those of its
// training, and libhvd's. Nothing else here.
#include <vector>

#include "../dp_host_kernels.hpp"
#include "copies.hpp"

namespace {

void run_copies(SimgpuDim3, SimgpuDim3, void** parameters) {
    const auto& copies = *static_cast<const hvd::Copies*>(parameters[0]);
    for (int i = 0; i < copies.count; ++i) {
        for (std::uint64_t at = 0; at < copies.copy[i].count; ++at) {
            hvd::element(copies.copy[i], at);
        }
    }
}

// A definition of the virtual device, not a measurement: a launch, and 10^12 bytes a second.
std::uint64_t copies_cost(SimgpuDim3, SimgpuDim3, void** parameters) {
    const auto& copies = *static_cast<const hvd::Copies*>(parameters[0]);
    std::uint64_t bytes = 0;
    for (int i = 0; i < copies.count; ++i) {
        bytes += copies.copy[i].count * sizeof(float);
    }
    return 2000 + bytes / 1000;
}

constexpr std::size_t kCopiesSize[] = {sizeof(hvd::Copies)};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    static const std::vector<SimgpuKernel> kernels = [] {
        std::vector<SimgpuKernel> all(std::begin(dp::kHostKernels), std::end(dp::kHostKernels));
        all.push_back({"hvd_copies", kCopiesSize, 1, run_copies, copies_cost, 0.0F});
        return all;
    }();
    *count = kernels.size();
    return kernels.data();
}
