// SPDX-License-Identifier: Apache-2.0
// Whether it pays that this job's hidden communication (beside its own compute) gives way to
// another's exposed communication. It does where both share a link; on links of their own it can
// only delay this job. Neither can be asked of a GPU, so both ways are tried, and what made the
// job's own rounds shorter is kept for a while. No clock, no GPU, no arbiter. One thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstddef>
#include <cstdint>

namespace crossover {

class YieldTrial {
  public:
    static constexpr std::uint32_t kSettling = 2;  // rounds after a change that tell nothing
    static constexpr std::uint32_t kMeasured = 4;
    static constexpr std::size_t kStretches = 4;     // by turns without and with
    static constexpr std::uint32_t kKept = 1024;     // rounds until it is tried again
    static constexpr std::uint64_t kLeastGain = 32;  // a 32nd, in each stretch against each
    // After so many collectives without the place that tells rounds apart another one is taken: the
    // first ones of a program do not come again. Twice as many each time, as iterations may be
    // long.
    static constexpr std::uint32_t kLost = 8;
    static constexpr std::uint32_t kMostLost = 4096;

    // A collective has ended at this place of the iteration (any number that comes again in each).
    void ended(std::uint64_t place, std::uint64_t now) noexcept {
        if (place != place_) {
            if (++since_place_ > lost_ || began_ == 0) {
                lost_ = std::min(2 * lost_, kMostLost);
                place_ = place;
                since_place_ = 0;
                begin(now);
            }
            return;
        }
        since_place_ = 0;
        round(now);
    }

    // Whether communication gives way now.
    bool yields() const noexcept { return stretch_ < kStretches ? stretch_ % 2 == 1 : pays_; }

    // What was held was not hidden: the job's compute came to stand behind it.
    void hurts() noexcept {
        if (yields()) {
            stretch_ = kStretches;
            pays_ = false;
            rounds_ = 0;
        }
    }

    // Other jobs have come or gone.
    void restart() noexcept { *this = YieldTrial{}; }

  private:
    void begin(std::uint64_t now) noexcept {
        rounds_ = 0;
        began_ = now;
    }

    void round(std::uint64_t now) noexcept {
        ++rounds_;
        if (stretch_ == kStretches) {
            if (rounds_ >= kKept) {
                stretch_ = 0;
                begin(now);
            }
            return;
        }
        if (rounds_ == kSettling) {
            began_ = now;
        }
        if (rounds_ < kSettling + kMeasured) {
            return;
        }
        took_[stretch_++] = now - began_;
        begin(now);
        if (stretch_ == kStretches) {
            const std::uint64_t with = std::max(took_[1], took_[3]);
            const std::uint64_t without = std::min(took_[0], took_[2]);
            pays_ = with + with / kLeastGain < without;
        }
    }

    std::uint64_t place_ = 0;
    std::uint32_t since_place_ = 0;
    std::uint32_t lost_ = kLost;
    std::uint64_t began_ = 0;  // the stretch, without its settling; 0: no place yet
    std::uint32_t rounds_ = 0;
    std::size_t stretch_ = 0;
    std::array<std::uint64_t, kStretches> took_{};
    bool pays_ = false;
};

}  // namespace crossover
