// SPDX-License-Identifier: Apache-2.0
// Locking, repair and waking around transitions.
#include "arbiter/transaction.hpp"

#include "arbiter/futex.hpp"
#include "arbiter/liveness.hpp"

namespace crossover {
namespace {

// Cheap signs that this is still the segment that was checked when it was opened.
bool looks_right(const Segment& segment) noexcept {
    const Header& header = segment.header;
    return header.magic == kSegmentMagic && header.total_bytes == sizeof(Segment) &&
           header.version.load(std::memory_order_relaxed) == kLayoutVersion &&
           header.unlinked.load(std::memory_order_relaxed) <= 1 &&
           (segment.arbitration.turn.word.load(std::memory_order_relaxed) & kTurnJobMask) <=
               kMaxJobs;
}

}  // namespace

Transaction::Transaction(Segment& segment, std::uint32_t self, std::uint64_t bound_ns) noexcept
    : segment_(segment) {
    const LockResult result =
        lock_until(segment.arbitration.lock, monotonic_ns() + bound_ns, lock_);
    if (result == LockResult::kTimedOut || result == LockResult::kBusy) {
        status_ = Status::kTimedOut;
        return;
    }
    if (result == LockResult::kCorrupt) {
        status_ = Status::kCorrupt;
        return;
    }
    locked_ = true;
    if (!looks_right(segment)) {
        // After an owner's death the lock stays inconsistent: corrupt for everybody, at once.
        status_ = Status::kCorrupt;
        return;
    }
    if (result == LockResult::kOwnerDied) {
        const std::uint64_t now_ns = monotonic_ns();
        repair(segment, now_ns, wakes_);
        ++segment.arbitration.repaired_count;
        mark_consistent(lock_);
        reap_dead_clients(segment, self, now_ns, wakes_);
    }
}

Status Transaction::finish() noexcept {
    if (!locked_) return status_;
    locked_ = false;
    if (!unlock(lock_)) status_ = Status::kCorrupt;
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        if (wakes_.grants.contains(slot)) futex_wake_all(segment_.clients[slot].grant);
        if (wakes_.notices.contains(slot)) futex_wake_all(segment_.clients[slot].notice);
    }
    return status_;
}

}  // namespace crossover
