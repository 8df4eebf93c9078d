// SPDX-License-Identifier: Apache-2.0
// What giving the turn away and having it again costs, as this process has seen it of late, and so
// how long a window must be to pay. No clock, no GPU, no arbiter.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

namespace crossover {

// The median of the last few values: one thread that lost its core for long is no sign. Any thread,
// no lock; a value that is added at the same time may count or not.
class LastFew {
  public:
    static constexpr std::size_t kKept = 7;
    static constexpr std::size_t kNeeded = 3;  // below, nothing is known

    void add(std::uint64_t value) noexcept {
        const std::uint32_t number = added_.fetch_add(1, std::memory_order_relaxed);
        values_[number % kKept].store(value, std::memory_order_relaxed);
    }
    // 0: nothing is known.
    std::uint64_t median() const noexcept {
        const std::size_t count =
            std::min<std::size_t>(added_.load(std::memory_order_relaxed), kKept);
        if (count < kNeeded) {
            return 0;
        }
        std::array<std::uint64_t, kKept> sorted{};
        std::transform(values_.begin(), values_.begin() + count, sorted.begin(),
                       [](const auto& each) { return each.load(std::memory_order_relaxed); });
        std::sort(sorted.begin(), sorted.begin() + count);
        return sorted[(count - 1) / 2];
    }

  private:
    std::array<std::atomic<std::uint64_t>, kKept> values_{};
    std::atomic<std::uint32_t> added_{0};
};

class HandOver {
  public:
    // A thread that waited for the turn went on so many ns after the grant.
    void went_on(std::uint64_t ns) noexcept { grants_.add(ns); }
    // A window was seen to open at most so many ns after it did.
    void seen_open(std::uint64_t within_ns) noexcept { openings_.add(within_ns / 2); }
    // One way, in ns; 0: nothing is known.
    std::uint64_t cost_ns() const noexcept { return grants_.median() + openings_.median(); }
    // A window that is expected to be shorter keeps the turn: another job would have it for less
    // time than the way there and back takes.
    std::uint64_t least_window_ns(std::uint64_t option_ns) const noexcept {
        return std::max(option_ns, 2 * cost_ns());
    }

  private:
    LastFew grants_;
    LastFew openings_;
};

}  // namespace crossover
