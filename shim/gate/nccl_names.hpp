// SPDX-License-Identifier: Apache-2.0
// NCCL's kernels by name, for all versions since 2.3: ncclKernel_*, ncclDevKernel_*,
// ncclSymDevKernel_*, ncclSymkDevKernel_* and the older nccl<Collective><Algorithm>Kernel_*.
// Source: kernel symbols of NCCL's releases. Pure.
#pragma once

#include <cctype>
#include <string_view>

namespace crossover {

// `name` plain or mangled (_Z<length><name>…).
constexpr bool is_nccl_kernel_name(std::string_view name) noexcept {
    if (name.starts_with("_Z")) {
        name.remove_prefix(2);
        while (!name.empty() && name.front() >= '0' && name.front() <= '9') {
            name.remove_prefix(1);
        }
    }
    if (!name.starts_with("nccl")) {
        return false;
    }
    name.remove_prefix(4);
    for (const std::string_view family :
         {"Kernel_", "DevKernel_", "SymDevKernel_", "SymkDevKernel_"}) {
        if (name.starts_with(family)) {
            return true;
        }
    }
    // 2.3 to 2.7: ncclAllReduceRingLLKernel_sum_f32.
    return !name.empty() && name.front() >= 'A' && name.front() <= 'Z' &&
           name.find("Kernel_") != std::string_view::npos;
}

}  // namespace crossover
