// SPDX-License-Identifier: Apache-2.0
// The only futex calls and the only clock of the arbiter. Words are shared between processes. No
// policy, no knowledge of the segment.
#pragma once

#include <atomic>
#include <cstdint>

namespace crossover {

// CLOCK_MONOTONIC in ns.
std::uint64_t monotonic_ns() noexcept;

// Sleeps while `word` holds `seen`, until woken or `deadline_ns` (CLOCK_MONOTONIC). Signals do not
// end the sleep. Returns whether the word differs from `seen` afterwards. Where the kernel refuses
// futexes it sleeps in steps of a millisecond instead, so it is bounded either way.
bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::uint64_t deadline_ns) noexcept;

// Wakes every sleeper of `word`, in all processes.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace crossover
