// SPDX-License-Identifier: Apache-2.0
// Futex system calls by number, since libc has no wrapper. Nothing else belongs here.
#include "arbiter/futex.hpp"

#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>

namespace crossover {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

// As the kernel has it (linux/futex.h from 5.16 on); older headers lack it.
struct WaitvEntry {
    std::uint64_t value = 0;
    std::uint64_t address = 0;
    std::uint32_t flags = 2;  // FUTEX_32, shared between processes
    std::uint32_t reserved = 0;
};
static_assert(sizeof(WaitvEntry) == 24);
#ifdef SYS_futex_waitv
constexpr long kWaitvNumber = SYS_futex_waitv;
#else
constexpr long kWaitvNumber = 449;  // the same on every architecture
#endif

std::atomic<bool> many_refused{false};

timespec to_timespec(std::uint64_t ns) noexcept {
    // The kernel refuses seconds beyond its own limit; a deadline "never" must not become an error.
    constexpr std::uint64_t kLongest = std::uint64_t{1} << 32;
    return {static_cast<time_t>(std::min(ns / kSecond, kLongest)), static_cast<long>(ns % kSecond)};
}

const std::uint32_t* address_of(const std::atomic<std::uint32_t>& word) noexcept {
    return reinterpret_cast<const std::uint32_t*>(&word);
}

// Of a call that the kernel has answered with an errno it may answer in good order.
bool ended_by(int error, FutexWait& result) noexcept {
    switch (error) {
        case EAGAIN:
            result = FutexWait::kWoken;
            return true;
        case ETIMEDOUT:
            result = FutexWait::kTimedOut;
            return true;
        case EFAULT:
            result = FutexWait::kGone;
            return true;
        default:
            return false;
    }
}

}  // namespace

std::uint64_t monotonic_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
}

FutexWait futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                     std::uint64_t deadline_ns) noexcept {
    const timespec deadline = to_timespec(deadline_ns);
    for (;;) {
        const long rc = syscall(SYS_futex, address_of(word), FUTEX_WAIT_BITSET, seen, &deadline,
                                nullptr, FUTEX_BITSET_MATCH_ANY);
        FutexWait result = FutexWait::kWoken;
        if (rc == 0 || ended_by(errno, result)) return result;
        const bool interrupted = errno == EINTR;
        const std::uint64_t now = monotonic_ns();
        if (now >= deadline_ns) return FutexWait::kTimedOut;
        if (interrupted) continue;
        if (word.load(std::memory_order_acquire) != seen) return FutexWait::kWoken;
        const timespec step = to_timespec(std::min<std::uint64_t>(deadline_ns - now, 1'000'000));
        nanosleep(&step, nullptr);
    }
}

FutexWait futex_wait_many(const FutexWord* words, std::size_t count,
                          std::uint64_t deadline_ns) noexcept {
    if (many_refused.load(std::memory_order_relaxed)) return FutexWait::kRefused;
    std::array<WaitvEntry, kMostFutexWords> entries;
    count = std::min(count, entries.size());
    for (std::size_t i = 0; i < count; ++i) {
        entries[i].value = words[i].seen;
        entries[i].address = reinterpret_cast<std::uintptr_t>(words[i].word);
    }
    const timespec deadline = to_timespec(deadline_ns);
    for (;;) {
        const long rc = syscall(kWaitvNumber, entries.data(), static_cast<unsigned>(count), 0U,
                                &deadline, CLOCK_MONOTONIC);
        FutexWait result = FutexWait::kWoken;
        if (rc >= 0 || ended_by(errno, result)) return result;
        if (errno == ENOMEM) return FutexWait::kRefused;  // this time only
        if (errno != EINTR) {
            many_refused.store(true, std::memory_order_relaxed);
            return FutexWait::kRefused;
        }
        if (monotonic_ns() >= deadline_ns) return FutexWait::kTimedOut;
    }
}

bool futex_many_refused() noexcept { return many_refused.load(std::memory_order_relaxed); }

void refuse_futex_many(bool refused) noexcept {
    many_refused.store(refused, std::memory_order_relaxed);
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
    syscall(SYS_futex, address_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

bool futex_reachable(const std::atomic<std::uint32_t>& word) noexcept {
    // Waking nobody makes the kernel look for the page behind the word.
    return syscall(SYS_futex, address_of(word), FUTEX_WAKE, 0, nullptr, nullptr, 0) >= 0 ||
           errno != EFAULT;
}

}  // namespace crossover
