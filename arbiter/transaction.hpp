// SPDX-License-Identifier: Apache-2.0
// A stretch of code under the segment's lock: takes it within a bound, repairs after an owner's
// death, and, once the lock is given back, wakes whom the transitions named. What they are stands
// in state.hpp.
#pragma once

#include <cstdint>

#include "arbiter/segment_lock.hpp"
#include "arbiter/state.hpp"
#include "crossover/layout.hpp"
#include "crossover/status.hpp"

namespace crossover {

// Nobody holds the lock for longer than some microseconds, except a stopped process.
inline constexpr std::uint64_t kLockBoundNs = 1'000'000'000;

// Somebody found a fault in it. One load.
bool given_up(const Segment& segment) noexcept;
// Ends the segment for all its clients, for good, without its lock, which may be what is wrong:
// nobody has the turn any more, and every client is woken to see it. Its memory must be there.
void give_up(Segment& segment) noexcept;

class Transaction {
  public:
    // Check status() before anything else: kOk, kTimedOut, kCorrupt, kGivenUp or kCut. `self` is
    // not taken for dead in the sweep that follows a repair. `cuttable`: the memory is a file's.
    explicit Transaction(Segment& segment, std::uint32_t self = kNoSlot,
                         std::uint64_t bound_ns = kLockBoundNs, bool cuttable = true) noexcept;
    ~Transaction() { finish(); }
    Transaction(const Transaction&) = delete;
    Transaction& operator=(const Transaction&) = delete;

    Status status() const noexcept { return status_; }
    Segment& segment() const noexcept { return segment_; }
    Wakes& wakes() noexcept { return wakes_; }
    HeldLock& lock() noexcept { return lock_; }

    // Gives the lock back and wakes. Further calls do nothing. Returns status(); kCorrupt when the
    // lock was found overwritten, kGivenUp when the segment was given up meanwhile.
    Status finish() noexcept;

  private:
    bool cut() const noexcept;

    Segment& segment_;
    Status status_ = Status::kOk;
    bool cuttable_;
    bool locked_ = false;
    HeldLock lock_;
    Wakes wakes_;
};

}  // namespace crossover
