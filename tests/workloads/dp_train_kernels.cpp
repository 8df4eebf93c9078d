// SPDX-License-Identifier: Apache-2.0
// Host versions of dp_train's kernels, for machines whose GPU is the virtual one. Arithmetic comes
// from dp_math.hpp; nothing else here.
#include <cstddef>
#include <cstdint>

#include "dp_math.hpp"
#include "kernel_plugin.h"

namespace {

// Device time of one round of the burn kernel. A definition of the virtual device, not a
// measurement: sixteen dependent multiply-adds at four cycles each and 1.6 GHz.
constexpr std::uint64_t kNsPerRound = 40;

template <typename Arguments>
void run(SimgpuDim3, SimgpuDim3, void** parameters) {
    const Arguments& arguments = *static_cast<const Arguments*>(parameters[0]);
    const int size = dp::count(arguments);
    for (int i = 0; i < size; ++i) {
        dp::element(arguments, i);
    }
}

// Its only result is time.
void run_burn(SimgpuDim3, SimgpuDim3, void**) {}

std::uint64_t burn_cost(SimgpuDim3, SimgpuDim3, void** parameters) {
    return static_cast<const dp::Burn*>(parameters[0])->rounds * kNsPerRound;
}

template <typename Arguments>
constexpr std::size_t kSize[] = {sizeof(Arguments)};

template <typename Arguments>
constexpr SimgpuKernel plain(const char* name) {
    return SimgpuKernel{name, kSize<Arguments>, 1, run<Arguments>, nullptr, 0.0F};
}

constexpr SimgpuKernel kKernels[] = {
    plain<dp::Forward>("dp_forward"),
    plain<dp::Loss>("dp_loss"),
    plain<dp::LossSum>("dp_loss_sum"),
    plain<dp::BackwardWeights>("dp_backward_weights"),
    plain<dp::BackwardData>("dp_backward_data"),
    plain<dp::Step>("dp_step"),
    plain<dp::RecordLoss>("dp_record_loss"),
    SimgpuKernel{"dp_burn", kSize<dp::Burn>, 1, run_burn, burn_cost, 0.0F},
};

}  // namespace

extern "C" __attribute__((visibility("default"))) const SimgpuKernel* simgpu_kernels(
    std::size_t* count) {
    *count = sizeof(kKernels) / sizeof(kKernels[0]);
    return kKernels;
}
