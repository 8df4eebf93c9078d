// SPDX-License-Identifier: Apache-2.0
// How often the watcher looks: at a phase that runs, by its age and the length that is expected of
// it; at a silence, by how earlier ones went. No clock, no GPU, no arbiter. All times are in ns.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace crossover {

// Asking the GPU costs about a microsecond and a sleep some more, so a phase is asked about as
// often as its age warrants: late by at most a 64th of it, within these limits. A window, for whose
// end threads wait, twice as often.
inline constexpr std::uint64_t kShortestPollNs = 50'000;
inline constexpr std::uint64_t kLongestPollNs = 300'000;
inline constexpr std::uint64_t kAgeFraction = 64;
// So close to the end that is expected, and by how much earlier ones were off, it is asked about as
// often as may be.
inline constexpr std::uint64_t kMarginFraction = 32;
// Before the last eighth of a length that can be relied on, an end is seen late by at most a 16th.
inline constexpr std::uint64_t kFarFraction = 8;
inline constexpr std::uint64_t kFarPollFraction = 16;
inline constexpr std::uint64_t kLongestFarPollNs = 10'000'000;

struct PhaseUnderWay {
    std::uint64_t now = 0;
    std::uint64_t changed_at = 0;  // when something of it was seen to change last
    std::uint64_t began = 0;
    std::uint64_t length = 0;  // expected; 0: unknown
    std::uint64_t spread = 0;  // by how much the last ones of the kind differed
    bool reliable = false;     // they were about as long
    bool window = false;
};

// For how long the phase may be left unasked.
constexpr std::uint64_t poll_pause_ns(const PhaseUnderWay& phase) noexcept {
    const std::uint64_t now = phase.now;
    const std::uint64_t usual = std::clamp(
        (now - std::min(now, phase.changed_at)) / (phase.window ? 2 * kAgeFraction : kAgeFraction),
        kShortestPollNs, kLongestPollNs);
    const std::uint64_t end = phase.began + phase.length;
    const std::uint64_t margin =
        phase.length / kMarginFraction + std::min(phase.spread, phase.length / kFarFraction);
    if (phase.length == 0 || now > end + margin) {
        return usual;
    }
    if (now + margin >= end) {
        return kShortestPollNs;
    }
    const std::uint64_t far = end - phase.length / kFarFraction;
    if (phase.reliable && now < far) {
        const std::uint64_t longest =
            std::clamp(phase.length / kFarPollFraction, kShortestPollNs, kLongestFarPollNs);
        return std::max(kShortestPollNs, std::min(std::max(usual, longest), far - now));
    }
    return std::max(kShortestPollNs, std::min(usual, end - margin - now));
}

// The length of phases that follow each other. One thread.
class PhaseLength {
  public:
    void learn(std::uint64_t ns) noexcept {
        std::copy_backward(last_.begin(), last_.end() - 1, last_.end());
        last_.front() = ns;
    }
    // Of the last one; 0: none yet.
    std::uint64_t ns() const noexcept { return last_[0]; }
    // The last eight were alike, to an eighth. Fewer may be by chance, where each has its own.
    bool reliable() const noexcept { return differ(last_.size()) <= last_.front() / 8; }
    // By how much the last few differ.
    std::uint64_t spread() const noexcept {
        const std::uint64_t difference = differ(4);
        return difference == kUnknown ? 0 : difference;
    }

  private:
    static constexpr std::uint64_t kUnknown = UINT64_MAX;
    std::uint64_t differ(std::size_t count) const noexcept {
        const auto [least, most] =
            std::minmax_element(last_.begin(), last_.begin() + static_cast<std::ptrdiff_t>(count));
        return *least == 0 ? kUnknown : *most - *least;
    }

    std::array<std::uint64_t, 8> last_{};
};

// How long a silence must last for the turn to be given back: a time that the program's owner set,
// or a tenth of it once it has turned out that this program's silences go on for long. One thread.
class IdleGrace {
  public:
    explicit IdleGrace(std::uint64_t full_ns) noexcept : full_ns_(full_ns) {}

    std::uint64_t ns() const noexcept {
        return long_ones_ >= needed_
                   ? std::min(full_ns_, std::max(full_ns_ / kShortFraction, kShortestNs))
                   : full_ns_;
    }
    // The job submitted again so long after the turn was given back.
    void went_on(std::uint64_t away_ns) noexcept {
        if (away_ns >= full_ns_ / kLongFraction) {
            long_ones_ = std::min(long_ones_ + 1, needed_);
            return;
        }
        // For nothing. A program with silences of both kinds has to show more long ones next time.
        if (long_ones_ >= needed_) {
            needed_ = std::min(2 * needed_, kMostNeeded);
        }
        long_ones_ = 0;
    }

  private:
    static constexpr std::uint64_t kShortestNs = 500'000;
    static constexpr std::uint64_t kShortFraction = 10;
    static constexpr std::uint64_t kLongFraction = 4;
    static constexpr std::uint32_t kMostNeeded = 48;

    std::uint64_t full_ns_;
    std::uint32_t needed_ = 3;
    std::uint32_t long_ones_ = 0;  // one after the other
};

}  // namespace crossover
