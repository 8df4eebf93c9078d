// SPDX-License-Identifier: Apache-2.0
// What a kernel's name says about NCCL, for every release since 2.3. Source: the kernel symbols of
// NCCL's releases. Pure: no driver, no cache, no policy.
//   2.3 to 2.7    ncclAllReduceRingLLKernel_sum_f32, ncclSendRecvKernel_copy_i8
//   2.8 to 2.18   ncclKernel_AllReduce_RING_LL_Sum_float
//   2.19 on       ncclDevKernel_AllReduce_Sum_f32_RING_LL, ncclDevKernel_SendRecv, _Generic
//   2.27          ncclSymDevKernel_* besides, from 2.28 on ncclSymkDevKernel_*
//   since 2.12    oneRankReduce: what a communicator of one rank launches
//   2.32          ncclProgressCounterCaptureGpuTime: writes down the time
#pragma once

#include <cstddef>
#include <string_view>

namespace crossover {

enum class KernelName {
    kOther,   // not NCCL's, or of a release that is not known here
    kNccl,    // carries a collective or a message
    kHelper,  // NCCL's own, but waits for no peer
};

namespace nccl_names {

constexpr bool skip(std::string_view& text, std::string_view prefix) noexcept {
    if (!text.starts_with(prefix)) {
        return false;
    }
    text.remove_prefix(prefix.size());
    return true;
}

// The function's own name in `_Z<length><name>…`; anything else stays as it is. Templates append
// their arguments after the name, so that the length also cuts them off.
constexpr std::string_view plain(std::string_view name) noexcept {
    std::string_view rest = name;
    if (!skip(rest, "_Z")) {
        return name;
    }
    skip(rest, "L");  // a function of its own translation unit
    std::size_t length = 0;
    std::size_t digits = 0;
    while (digits < rest.size() && digits < 4 && rest[digits] >= '0' && rest[digits] <= '9') {
        length = length * 10 + static_cast<std::size_t>(rest[digits] - '0');
        ++digits;
    }
    rest.remove_prefix(digits);
    return digits == 0 || length > rest.size() ? name : rest.substr(0, length);
}

// <Collective>[<Algorithm>][<Protocol>]Kernel_<operation>_<type>, `nccl` taken off.
constexpr bool before_2_8(std::string_view name) noexcept {
    bool known = false;
    for (const std::string_view collective :
         {"AllReduce", "AllGather", "ReduceScatter", "Reduce", "Broadcast", "SendRecv"}) {
        if (skip(name, collective)) {
            known = true;
            break;
        }
    }
    for (const std::string_view algorithm : {"Ring", "Tree", "CollNet"}) {
        if (skip(name, algorithm)) {
            break;
        }
    }
    for (const std::string_view protocol : {"LL128", "LL", "Simple"}) {
        if (skip(name, protocol)) {
            break;
        }
    }
    return known && name.starts_with("Kernel_");
}

}  // namespace nccl_names

// `name` plain or mangled.
constexpr KernelName kernel_name(std::string_view name) noexcept {
    name = nccl_names::plain(name);
    if (name == "oneRankReduce" || name == "ncclProgressCounterCaptureGpuTime") {
        return KernelName::kHelper;
    }
    if (!nccl_names::skip(name, "nccl")) {
        return KernelName::kOther;
    }
    for (const std::string_view family :
         {"DevKernel_", "Kernel_", "SymDevKernel_", "SymkDevKernel_"}) {
        // The families carry a collective's name, which begins with a capital.
        std::string_view rest = name;
        if (nccl_names::skip(rest, family)) {
            return !rest.empty() && rest.front() >= 'A' && rest.front() <= 'Z' ? KernelName::kNccl
                                                                               : KernelName::kOther;
        }
    }
    return nccl_names::before_2_8(name) ? KernelName::kNccl : KernelName::kOther;
}

}  // namespace crossover
