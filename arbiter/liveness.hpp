// SPDX-License-Identifier: Apache-2.0
// Life locks: a client's attaching thread holds one in its slot as long as it lives, and the kernel
// itself marks it when that thread dies by whatever cause (exec included; a forked child inherits
// nothing). So anybody can tell a dead client, in any PID namespace, and sleep until one dies. All
// calls but one under the segment's lock.
#pragma once

#include <cstdint>

#include "arbiter/segment_lock.hpp"
#include "arbiter/state.hpp"
#include "crossover/layout.hpp"

namespace crossover {

// Fills `words` with the life locks of all attached clients but `self`, at most `room` of them, so
// that the death of one wakes one of those who sleep on its word. Returns how many; `gone`: a lock
// is held by nobody, which a sweep should look into. Without the segment's lock.
std::size_t watch_clients(Segment& segment, std::uint32_t self, FutexWord* words, std::size_t room,
                          bool& gone) noexcept;

// A slot that is free and whose life lock this thread now holds, or kNoSlot.
std::uint32_t take_free_slot(Segment& segment, HeldLock& life) noexcept;

// Reaps dead clients: those of the job that has the turn, or all. `self` is skipped. Returns how
// many.
std::uint32_t reap_dead_holders(Segment& segment, std::uint32_t self, std::uint64_t now_ns,
                                Wakes& wakes) noexcept;
std::uint32_t reap_dead_clients(Segment& segment, std::uint32_t self, std::uint64_t now_ns,
                                Wakes& wakes) noexcept;

}  // namespace crossover
