// SPDX-License-Identifier: Apache-2.0
// Host versions of the training kernels, for machines whose GPU is the virtual one. Arithmetic
// comes from dp_math.hpp; nothing else here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "dp_math.hpp"
#include "kernel_plugin.h"

namespace dp {

// Device time of one round of the burn kernel. A definition of the virtual device, not a
// measurement: sixteen dependent multiply-adds at four cycles each and 1.6 GHz.
inline constexpr std::uint64_t kNsPerRound = 40;

template <typename Arguments>
void run_on_host(SimgpuDim3, SimgpuDim3, void** parameters) {
    const Arguments& arguments = *static_cast<const Arguments*>(parameters[0]);
    const int size = count(arguments);
    for (int i = 0; i < size; ++i) {
        element(arguments, i);
    }
}

// Its only result is time.
inline void run_burn_on_host(SimgpuDim3, SimgpuDim3, void**) {}

inline std::uint64_t burn_cost(SimgpuDim3, SimgpuDim3, void** parameters) {
    return static_cast<const Burn*>(parameters[0])->rounds * kNsPerRound;
}

template <typename Arguments>
inline constexpr std::size_t kArgumentsSize[] = {sizeof(Arguments)};

template <typename Arguments>
constexpr SimgpuKernel host_kernel(const char* name) {
    return SimgpuKernel{name, kArgumentsSize<Arguments>, 1, run_on_host<Arguments>, nullptr, 0.0F};
}

inline constexpr SimgpuKernel kHostKernels[] = {
    host_kernel<Forward>("dp_forward"),
    host_kernel<Loss>("dp_loss"),
    host_kernel<LossSum>("dp_loss_sum"),
    host_kernel<BackwardWeights>("dp_backward_weights"),
    host_kernel<BackwardData>("dp_backward_data"),
    host_kernel<Step>("dp_step"),
    host_kernel<RecordLoss>("dp_record_loss"),
    host_kernel<Copy>("dp_copy"),
    host_kernel<Add>("dp_add"),
    host_kernel<Rectify>("dp_rectify"),
    SimgpuKernel{"dp_burn", kArgumentsSize<Burn>, 1, run_burn_on_host, burn_cost, 0.0F},
};

}  // namespace dp
