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

namespace crossover {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

timespec to_timespec(std::uint64_t ns) noexcept {
    // The kernel refuses seconds beyond its own limit; a deadline "never" must not become an error.
    constexpr std::uint64_t kLongest = std::uint64_t{1} << 32;
    return {static_cast<time_t>(std::min(ns / kSecond, kLongest)), static_cast<long>(ns % kSecond)};
}

const std::uint32_t* address_of(const std::atomic<std::uint32_t>& word) noexcept {
    return reinterpret_cast<const std::uint32_t*>(&word);
}

}  // namespace

std::uint64_t monotonic_ns() noexcept {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
}

bool futex_wait(const std::atomic<std::uint32_t>& word, std::uint32_t seen,
                std::uint64_t deadline_ns) noexcept {
    const timespec deadline = to_timespec(deadline_ns);
    while (word.load(std::memory_order_acquire) == seen) {
        const long rc = syscall(SYS_futex, address_of(word), FUTEX_WAIT_BITSET, seen, &deadline,
                                nullptr, FUTEX_BITSET_MATCH_ANY);
        if (rc == 0 || errno == EAGAIN || errno == EINTR) {
            // A wake without a change of the word is possible; the deadline bounds the loop.
            if (monotonic_ns() >= deadline_ns) break;
            continue;
        }
        if (errno == ETIMEDOUT) break;
        const std::uint64_t now = monotonic_ns();
        if (now >= deadline_ns) break;
        const timespec step = to_timespec(std::min<std::uint64_t>(deadline_ns - now, 1'000'000));
        nanosleep(&step, nullptr);
    }
    return word.load(std::memory_order_acquire) != seen;
}

void futex_wake_all(const std::atomic<std::uint32_t>& word) noexcept {
    syscall(SYS_futex, address_of(word), FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

}  // namespace crossover
