// SPDX-License-Identifier: Apache-2.0
// Host version of the packing kernel, for machines whose GPU is the virtual one. Nothing else here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "copies.hpp"
#include "kernel_plugin.h"

namespace hvd {

inline void run_copies(SimgpuDim3, SimgpuDim3, void** parameters) {
    const auto& copies = *static_cast<const Copies*>(parameters[0]);
    for (int i = 0; i < copies.count; ++i) {
        for (std::uint64_t at = 0; at < copies.copy[i].count; ++at) {
            element(copies.copy[i], at);
        }
    }
}

// A definition of the virtual device, not a measurement: a launch, and 10^12 bytes a second.
inline std::uint64_t copies_cost(SimgpuDim3, SimgpuDim3, void** parameters) {
    const auto& copies = *static_cast<const Copies*>(parameters[0]);
    std::uint64_t bytes = 0;
    for (int i = 0; i < copies.count; ++i) {
        bytes += copies.copy[i].count * sizeof(float);
    }
    return 2000 + bytes / 1000;
}

inline constexpr std::size_t kCopiesSize[] = {sizeof(Copies)};

inline constexpr SimgpuKernel kHostCopies{"hvd_copies", kCopiesSize, 1,
                                          run_copies,   copies_cost, 0.0F};

}  // namespace hvd
