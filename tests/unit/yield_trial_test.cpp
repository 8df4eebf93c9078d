// SPDX-License-Identifier: Apache-2.0
// Whether hidden communication gives way: what is tried, for how long, and what is kept.
#include "shim/inference/yield_trial.hpp"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint32_t kStretch = YieldTrial::kSettling + YieldTrial::kMeasured;
constexpr std::uint32_t kTrial = kStretch * static_cast<std::uint32_t>(YieldTrial::kStretches);

// A program with these places in each round, which takes as long as `round_ms` says.
class Program {
  public:
    explicit Program(std::vector<std::uint64_t> places, YieldTrial& trial)
        : places_(std::move(places)), trial_(trial) {}

    void rounds(std::uint32_t count, const std::function<double(bool yields)>& round_ms) {
        for (std::uint32_t i = 0; i < count; ++i) {
            const auto took = static_cast<std::uint64_t>(round_ms(trial_.yields()) * 1e6);
            for (const std::uint64_t place : places_) {
                now_ += took / places_.size();
                trial_.ended(place, now_);
            }
            yielded_.push_back(trial_.yields());
        }
    }
    const std::vector<bool>& yielded() const { return yielded_; }
    std::uint64_t now() const { return now_; }

  private:
    std::vector<std::uint64_t> places_;
    YieldTrial& trial_;
    std::uint64_t now_ = 1'000 * kMs;
    std::vector<bool> yielded_;
};

double shared_link(bool yields) { return yields ? 60 : 80; }
double own_links(bool yields) { return yields ? 60 : 50; }

TEST(YieldTrial, TriesBothWaysByTurns) {
    YieldTrial trial;
    Program program({7}, trial);
    EXPECT_FALSE(trial.yields());
    program.rounds(1 + kTrial, shared_link);
    // The first collective is only the beginning of the first round.
    for (std::uint32_t i = 0; i + 1 < kTrial; ++i) {
        EXPECT_EQ(program.yielded()[1 + i], (i + 1) / kStretch % 2 == 1) << i;
    }
}

TEST(YieldTrial, KeepsWhatMakesRoundsShorter) {
    for (const auto& round : {shared_link, own_links}) {
        YieldTrial trial;
        Program program({1, 2, 3, 4}, trial);
        program.rounds(1 + kTrial, round);
        const bool pays = round(true) < round(false);
        EXPECT_EQ(trial.yields(), pays);
        program.rounds(YieldTrial::kKept / 2, round);
        EXPECT_EQ(trial.yields(), pays);
    }
}

TEST(YieldTrial, AGainWithinTheNoiseIsNone) {
    YieldTrial trial;
    Program program({1, 2}, trial);
    int number = 0;
    program.rounds(1 + kTrial,
                   [&](bool yields) { return (yields ? 79 : 80) + (number++ % 3) * 0.5; });
    EXPECT_FALSE(trial.yields());
}

TEST(YieldTrial, OneGoodStretchIsNotEnough) {
    // Something else was over when it began to give way, and is back in the last stretch.
    YieldTrial trial;
    Program program({1}, trial);
    std::uint32_t number = 0;
    program.rounds(1 + kTrial, [&](bool) {
        return ++number > 3 * kStretch ? 90.0 : number > kStretch ? 60.0 : 80.0;
    });
    EXPECT_FALSE(trial.yields());
}

TEST(YieldTrial, IsTriedAgainAfterAWhile) {
    YieldTrial trial;
    Program program({1}, trial);
    program.rounds(1 + kTrial, own_links);
    EXPECT_FALSE(trial.yields());
    program.rounds(YieldTrial::kKept, shared_link);
    EXPECT_FALSE(trial.yields()) << "begins without";
    program.rounds(kTrial, shared_link);
    EXPECT_TRUE(trial.yields());
}

TEST(YieldTrial, APlaceThatDoesNotComeAgainIsGivenUp) {
    YieldTrial trial;
    for (std::uint64_t place = 100; place < 140; ++place) trial.ended(place, place * kMs);
    std::vector<std::uint64_t> places(64);
    for (std::uint64_t i = 0; i < places.size(); ++i) places[i] = i + 1;
    Program program(places, trial);
    program.rounds(12 + kTrial, shared_link);  // each place that is taken and lost costs some
    EXPECT_TRUE(trial.yields());
}

TEST(YieldTrial, WithoutRoundsNothingEverYields) {
    YieldTrial trial;
    for (std::uint64_t place = 1; place < 100'000; ++place) {
        trial.ended(place, place * kMs);
        ASSERT_FALSE(trial.yields());
    }
}

TEST(YieldTrial, WhereItHurtsItEndsAtOnce) {
    YieldTrial trial;
    Program program({1}, trial);
    program.rounds(kStretch, shared_link);
    trial.hurts();
    program.rounds(2, shared_link);
    ASSERT_TRUE(trial.yields()) << "it did not yield then";
    trial.hurts();
    program.rounds(YieldTrial::kKept - 1, shared_link);
    for (std::size_t i = kStretch + 2; i < program.yielded().size(); ++i) {
        ASSERT_FALSE(program.yielded()[i]) << i;
    }
    program.rounds(1 + kTrial, shared_link);
    EXPECT_TRUE(trial.yields()) << "tried again";
    trial.hurts();
    EXPECT_FALSE(trial.yields());
}

TEST(YieldTrial, OthersThatComeOrGoBeginItAnew) {
    YieldTrial trial;
    Program program({1}, trial);
    program.rounds(1 + kTrial, shared_link);
    ASSERT_TRUE(trial.yields());
    trial.restart();
    EXPECT_FALSE(trial.yields());
    program.rounds(1 + kTrial, own_links);
    EXPECT_FALSE(trial.yields());
}

}  // namespace
}  // namespace crossover
