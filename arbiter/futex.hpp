// SPDX-License-Identifier: Apache-2.0
// The only futex calls and the only clock of the arbiter. Words are shared between processes. No
// policy, no knowledge of the segment. A word is compared by the kernel, never read here, so that
// one whose file was cut short is an answer and not a SIGBUS.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

namespace crossover {

// CLOCK_MONOTONIC in ns.
std::uint64_t monotonic_ns() noexcept;

enum class FutexWait : std::uint32_t {
    kWoken,     // somebody woke the word, or it differs from what was seen
    kTimedOut,  // the deadline has passed
    kGone,      // there is no memory behind the word any more
    kRefused,   // futex_wait_many() only: the kernel does not offer it
};

// Sleeps while `word` holds `seen`, until woken or `deadline_ns` (CLOCK_MONOTONIC). Signals do not
// end the sleep. Where the kernel refuses futexes at all it sleeps in steps of a millisecond
// instead, so it is bounded either way.
FutexWait futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::uint64_t deadline_ns) noexcept;

struct FutexWord {
    const std::atomic<std::uint32_t>* word = nullptr;
    std::uint32_t seen = 0;
};
inline constexpr std::size_t kMostFutexWords = 128;

// The same for `count` words at once, 1 to kMostFutexWords: sleeps while all hold what was seen.
// kRefused (before Linux 5.16, or forbidden) comes at once, and is remembered for the process.
FutexWait futex_wait_many(const FutexWord* words, std::size_t count,
                          std::uint64_t deadline_ns) noexcept;
bool futex_many_refused() noexcept;
// For tests: behaves as on a kernel that refuses, or asks the kernel anew.
void refuse_futex_many(bool refused) noexcept;

// Wakes every sleeper of `word`, in all processes.
void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept;

// Whether memory can be reached behind `word`, asked of the kernel. A system call that does
// nothing: some 200 ns.
bool futex_reachable(const std::atomic<std::uint32_t>& word) noexcept;

}  // namespace crossover
