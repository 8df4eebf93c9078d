// SPDX-License-Identifier: Apache-2.0
// Locks that live in the segment's 64-byte fields: robust, process-shared mutexes, so that the
// kernel itself tells when an owner died, in any PID namespace. Owner death is an ordinary result
// here; what it means for the state stands in state.hpp, who waits for how long in transaction.hpp.
//
// The content of the field is not trusted: a lock whose kind is not ours is kCorrupt before libc
// sees it, every wait is bounded, and what libc would follow on unlock is put back first.
#pragma once

#include <cstddef>
#include <cstdint>

#include "arbiter/futex.hpp"

namespace crossover {

enum class LockResult : std::uint32_t {
    kLocked,     // held now
    kOwnerDied,  // held now; the last owner died with it, call mark_consistent() after repair
    kBusy,       // somebody alive holds it (try_lock only)
    kTimedOut,
    kCorrupt,  // not a lock of this layout, or given up by somebody who could not repair
    kGone,     // lock_until() only: there is no memory behind it any more
};

// What a holder remembers of the lock word and list links; private memory of the holder.
struct HeldLock {
    std::byte* storage = nullptr;
    std::uint32_t thread = 0;
    void* links[2] = {};
};

// Makes an unlocked lock in 64 bytes that nobody else uses yet. False only if libc refuses robust
// process-shared mutexes.
bool make_lock(std::byte* storage) noexcept;

// Never waits. On kLocked and kOwnerDied fills `held`.
LockResult try_lock(std::byte* storage, HeldLock& held) noexcept;

// Waits until `deadline_ns` (CLOCK_MONOTONIC). On kLocked and kOwnerDied fills `held`.
LockResult lock_until(std::byte* storage, std::uint64_t deadline_ns, HeldLock& held) noexcept;

enum class LockWatch : std::uint32_t {
    kHeld,     // `word` is filled
    kFree,     // nobody holds it, or who did is dead
    kCorrupt,  // not a lock of this layout
};
// For sleeping until the lock is given back or its owner dies, be that the end of a process: from
// here on the kernel wakes one sleeper of `word` when that happens. Never waits; any thread.
LockWatch watch(std::byte* storage, FutexWord& word) noexcept;

// After kOwnerDied, once the state is right again. Without it unlock() makes the lock kCorrupt for
// everybody.
void mark_consistent(const HeldLock& held) noexcept;

// To be called on a held lock after this thread took or gave back a long-held lock inside it: the
// links have changed by right.
void note_links(HeldLock& held) noexcept;

// Whether a long-held lock still lies in the thread's list where note_links() saw it last.
bool links_are_as_noted(const HeldLock& held) noexcept;

// Puts the links of a long-held lock, as noted last, back into its field, whose content was lost.
// The thread's other locks stay in order by them. By the thread that holds it.
void restore_links(const HeldLock& held) noexcept;

// Unlocks a lock held briefly by this thread, whose locks nest. False if its content had been
// overwritten meanwhile: it was put back and unlocked, but the segment is not to be trusted.
bool unlock(HeldLock& held) noexcept;

// Unlocks a lock held for long, among other such locks of the thread, in any order. False, and
// nothing touched, if it is not this thread's any more: its memory must then stay mapped as long as
// the thread lives.
bool unlock_long_held(HeldLock& held) noexcept;

}  // namespace crossover
