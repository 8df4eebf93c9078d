// SPDX-License-Identifier: Apache-2.0
// What every launch wrapper does around the real call. Thin: no policy, no CUDA type.
#pragma once

#include "shim/gate/driver_device.hpp"
#include "shim/gate/process.hpp"

namespace crossover {

// Calls `real` with the calling thread marked as inside, so that what the real function launches in
// turn passes. `function` is the kernel (0 for a graph or an unnamed runtime kernel);
// `taken(result)` says whether the launch was accepted.
template <class Real, class Taken>
auto launch(std::uintptr_t function, StreamHandle stream, Real&& real, Taken&& taken) noexcept {
    if (!attention()) [[likely]] {
        return real();
    }
    ThreadState& thread = thread_state();
    if (thread.depth != 0) {
        return real();
    }
    ++thread.depth;
    const bool communication = function != 0 && is_nccl_kernel(function, thread.nccl_depth != 0);
    const Launch followed = begin_launch(stream, communication);
    const auto result = real();
    end_launch(followed, taken(result));
    --thread.depth;
    return result;
}

}  // namespace crossover
