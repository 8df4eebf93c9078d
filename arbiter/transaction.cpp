// SPDX-License-Identifier: Apache-2.0
// Locking, repair and waking around transitions.
#include "arbiter/transaction.hpp"

#include <algorithm>
#include <cstddef>

#include "arbiter/futex.hpp"
#include "arbiter/liveness.hpp"
#include "arbiter/segment.hpp"

namespace crossover {
namespace {

// Cheap signs that this is still the segment that was checked when it was opened.
bool looks_right(const Segment& segment) noexcept {
    const Header& header = segment.header;
    return header.magic == kSegmentMagic && header.total_bytes == sizeof(Segment) &&
           header.version.load(std::memory_order_relaxed) == kLayoutVersion &&
           header.end.load(std::memory_order_relaxed) <= SegmentEnd::kGivenUp &&
           (segment.arbitration.turn.word.load(std::memory_order_relaxed) & kTurnJobMask) <=
               kMaxJobs;
}

// Between looks at whether the wait for the lock still makes sense.
constexpr std::uint64_t kStepNs = 50'000'000;

}  // namespace

bool given_up(const Segment& segment) noexcept {
    return segment.header.end.load(std::memory_order_seq_cst) == SegmentEnd::kGivenUp;
}

void give_up(Segment& segment) noexcept {
    // In this order: who has stored the turn word and then finds no mark (client.cpp) has stored it
    // before it is taken away here.
    segment.header.end.store(SegmentEnd::kGivenUp, std::memory_order_seq_cst);
    segment.arbitration.turn.word.store(0, std::memory_order_seq_cst);
    for (ClientSlot& client : segment.clients) {
        client.grant.fetch_add(1, std::memory_order_release);
        client.notice.fetch_add(1, std::memory_order_release);
        futex_wake_all(client.grant);
        futex_wake_all(client.notice);
    }
}

bool Transaction::cut() const noexcept { return cuttable_ && !whole(segment_); }

Transaction::Transaction(Segment& segment, std::uint32_t self, std::uint64_t bound_ns,
                         bool cuttable) noexcept
    : segment_(segment), cuttable_(cuttable) {
    LockResult result = LockResult::kBusy;
    std::uint64_t deadline_ns = 0;
    do {
        if (cut()) {
            status_ = Status::kCut;
            return;
        }
        if (given_up(segment)) {
            status_ = Status::kGivenUp;
            return;
        }
        result = try_lock(segment.arbitration.lock, lock_);
        if (result != LockResult::kBusy) break;
        const std::uint64_t now_ns = monotonic_ns();
        if (deadline_ns == 0) deadline_ns = now_ns + bound_ns;
        result =
            lock_until(segment.arbitration.lock, std::min(deadline_ns, now_ns + kStepNs), lock_);
    } while (result == LockResult::kTimedOut && monotonic_ns() < deadline_ns);
    switch (result) {
        case LockResult::kLocked:
        case LockResult::kOwnerDied:
            break;
        case LockResult::kBusy:
        case LockResult::kTimedOut:
            status_ = Status::kTimedOut;
            return;
        case LockResult::kCorrupt:
            status_ = Status::kCorrupt;
            return;
        case LockResult::kGone:
            status_ = Status::kCut;
            return;
    }
    locked_ = true;
    if (given_up(segment)) {
        status_ = Status::kGivenUp;
        return;
    }
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
    // Who may submit first, then who only looks.
    wakes_.grants.for_each(
        [this](std::uint32_t slot) { futex_wake_all(segment_.clients[slot].grant); });
    wakes_.notices.for_each(
        [this](std::uint32_t slot) { futex_wake_all(segment_.clients[slot].notice); });
    if (status_ != Status::kOk) return status_;
    // Waking may have taken its time.
    if (cut()) {
        status_ = Status::kCut;
    } else if (given_up(segment_)) {
        status_ = Status::kGivenUp;
    }
    return status_;
}

}  // namespace crossover
