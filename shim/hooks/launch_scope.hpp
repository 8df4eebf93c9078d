// SPDX-License-Identifier: Apache-2.0
// What every launch wrapper does around the real call. Thin: no policy, no CUDA type.
#pragma once

#include <type_traits>

#include "shim/gate/detection.hpp"
#include "shim/gate/driver_device.hpp"
#include "shim/gate/process.hpp"

namespace crossover {

// Where a launch goes: to the entry's real function if it passes without a further look, else to
// `followed`. Either is called with the wrapper's own arguments as the last thing done, so it is a
// plain jump: a launch of a job that is alone costs two loads and writes nothing that threads
// share. `entry` lies in a table that is filled once, by any thread, at any time.
template <class Function>
[[gnu::always_inline]] inline Function route(const Function& entry,
                                             std::type_identity_t<Function> followed) noexcept {
    const Function real = __atomic_load_n(&entry, __ATOMIC_RELAXED);
    // Chosen without a jump: in straight-line code the compiler leaves the arguments where they
    // are, which saves more than half of a wrapper.
    const std::uintptr_t look = -static_cast<std::uintptr_t>((real == nullptr) | attention());
    return reinterpret_cast<Function>((reinterpret_cast<std::uintptr_t>(real) & ~look) |
                                      (reinterpret_cast<std::uintptr_t>(followed) & look));
}

// Calls `real` with the calling thread marked as inside, so that what the real function launches in
// turn passes. `begin(thread)` says what is launched; `taken(result)` whether it was accepted.
template <class Begin, class Real, class Taken>
auto launch_as(Begin&& begin, Real&& real, Taken&& taken) noexcept {
    if (!attention()) [[likely]] {
        return real();
    }
    ThreadState& thread = thread_state();
    if (thread.depth != 0) {
        return real();
    }
    ++thread.depth;
    const Launch followed = begin(thread);
    const auto result = real();
    end_launch(followed, taken(result));
    --thread.depth;
    return result;
}

// `function` is the kernel, 0 for an unnamed runtime kernel.
template <class Real, class Taken>
auto launch(std::uintptr_t function, StreamHandle stream, Real&& real, Taken&& taken) noexcept {
    return launch_as(
        [&](ThreadState& thread) {
            return begin_launch(stream, is_communication(function, thread));
        },
        real, taken);
}

template <class Real, class Taken>
auto launch_graph(std::uintptr_t executable, StreamHandle stream, Real&& real,
                  Taken&& taken) noexcept {
    return launch_as([&](ThreadState&) { return begin_graph_launch(stream, executable); }, real,
                     taken);
}

}  // namespace crossover
