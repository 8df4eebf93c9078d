// SPDX-License-Identifier: Apache-2.0
// How often the watcher looks, how long a silence must last, and how long a window must be.
#include "shim/inference/pace.hpp"

#include <gtest/gtest.h>

#include "shim/inference/hand_over.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kUs = 1'000;
constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kBegan = 1'000 * kMs;

// Pauses one after the other from the phase's beginning to `until`; the times of the looks.
struct Looks {
    int count = 0;
    std::uint64_t last = kBegan;      // the first at or after `until`
    std::uint64_t longest_pause = 0;  // of those that began before
};
Looks looks(std::uint64_t until, std::uint64_t length, bool reliable) {
    Looks seen;
    while (seen.last < kBegan + until) {
        const std::uint64_t pause = poll_pause_ns({.now = seen.last,
                                                   .changed_at = kBegan,
                                                   .began = kBegan,
                                                   .length = length,
                                                   .reliable = reliable});
        seen.longest_pause = std::max(seen.longest_pause, pause);
        seen.last += pause;
        ++seen.count;
    }
    return seen;
}

TEST(PollPause, OfAPhaseOfUnknownLengthFollowsItsAge) {
    for (const std::uint64_t age : {0 * kMs, 1 * kMs, 5 * kMs, 10 * kMs, 50 * kMs}) {
        const std::uint64_t pause =
            poll_pause_ns({.now = kBegan + age, .changed_at = kBegan, .began = kBegan});
        EXPECT_GE(pause, kShortestPollNs);
        EXPECT_LE(pause, std::max(kShortestPollNs, age / 64));
        EXPECT_LE(pause, kLongestPollNs);
    }
}

TEST(PollPause, TheExpectedEndIsSeenAtOnceHoweverLongThePhase) {
    for (const std::uint64_t length : {1 * kMs, 3 * kMs, 20 * kMs, 300 * kMs, 20'000 * kMs}) {
        for (const bool reliable : {false, true}) {
            EXPECT_LE(looks(length, length, reliable).last, kBegan + length + kShortestPollNs)
                << length;
        }
    }
}

TEST(PollPause, AnEndThatIsOffAsEarlierOnesWereIsSeenAtOnce) {
    constexpr std::uint64_t kLength = 40 * kMs;
    for (const std::uint64_t end : {kLength - 3 * kMs, kLength - kMs, kLength + 3 * kMs}) {
        std::uint64_t now = kBegan;
        while (now < kBegan + end) {
            now += poll_pause_ns({.now = now,
                                  .changed_at = kBegan,
                                  .began = kBegan,
                                  .length = kLength,
                                  .spread = 2 * kMs,
                                  .reliable = true});
        }
        EXPECT_LE(now, kBegan + end + kShortestPollNs) << end;
    }
}

TEST(PollPause, LengthsOfNoUseCostNoMoreThanAQuarterOfThePhase) {
    constexpr std::uint64_t kLength = 40 * kMs;
    const auto pause = [](std::uint64_t age) {
        return poll_pause_ns({.now = kBegan + age,
                              .changed_at = kBegan,
                              .began = kBegan,
                              .length = kLength,
                              .spread = 30 * kMs});
    };
    EXPECT_EQ(pause(kLength - 7 * kMs), kLongestPollNs);
    EXPECT_EQ(pause(kLength + 7 * kMs), kLongestPollNs);
}

TEST(PollPause, AnEarlyEndIsSeenLateByASixteenthAtMost) {
    for (const std::uint64_t length : {1 * kMs, 3 * kMs, 20 * kMs, 100 * kMs}) {
        for (std::uint64_t eighths = 1; eighths <= 8; ++eighths) {
            const std::uint64_t end = length * eighths / 8;
            EXPECT_LE(looks(end, length, true).last, kBegan + end + std::max(length / 16, 50 * kUs))
                << length;
        }
    }
    EXPECT_LE(looks(10'000 * kMs, 20'000 * kMs, true).longest_pause, 10 * kMs);
}

TEST(PollPause, InTheLastEighthAnEarlyEndIsSeenAsEarlyAsOfUnknownLength) {
    const std::uint64_t length = 100 * kMs;
    for (std::uint64_t age = length - length / 8; age < length; age += kMs) {
        EXPECT_LE(poll_pause_ns({.now = kBegan + age,
                                 .changed_at = kBegan,
                                 .began = kBegan,
                                 .length = length,
                                 .reliable = true}),
                  kLongestPollNs);
    }
}

TEST(PollPause, AReliableLengthSavesMostOfTheLooks) {
    const std::uint64_t far = 35 * kMs;
    EXPECT_LT(looks(far, 40 * kMs, true).count * 4, looks(far, 40 * kMs, false).count);
}

TEST(PollPause, AWindowIsAskedAboutTwiceAsOften) {
    const std::uint64_t now = kBegan + 16 * kMs;
    EXPECT_EQ(poll_pause_ns({.now = now, .changed_at = kBegan, .began = kBegan}), 250'000U);
    EXPECT_EQ(poll_pause_ns({.now = now, .changed_at = kBegan, .began = kBegan, .window = true}),
              125'000U);
}

TEST(PollPause, AClockReadBeforeTheLastChangeIsNoAge) {
    EXPECT_EQ(poll_pause_ns({.now = kBegan, .changed_at = kBegan + 1, .began = kBegan}),
              kShortestPollNs);
}

TEST(PhaseLength, IsReliedOnOnceEightWereAlike) {
    PhaseLength length;
    EXPECT_EQ(length.ns(), 0U);
    for (int i = 0; i < 8; ++i) {
        EXPECT_FALSE(length.reliable()) << i;
        length.learn((20 + static_cast<std::uint64_t>(i) % 3) * kMs);
    }
    EXPECT_TRUE(length.reliable());
    EXPECT_EQ(length.ns(), 21 * kMs);
    length.learn(1 * kMs);
    EXPECT_FALSE(length.reliable()) << "forward and backward take turns, or all are irregular";
    EXPECT_EQ(length.ns(), 1 * kMs);
    for (int i = 0; i < 7; ++i) {
        EXPECT_FALSE(length.reliable()) << i;
        length.learn(1 * kMs);
    }
    EXPECT_TRUE(length.reliable());
}

TEST(PhaseLength, TellsByHowMuchTheLastFourDiffer) {
    PhaseLength length;
    for (const std::uint64_t ms : {90, 20, 23, 21}) {
        EXPECT_EQ(length.spread(), 0U) << "too few";
        length.learn(ms * kMs);
    }
    EXPECT_EQ(length.spread(), 70 * kMs);
    length.learn(22 * kMs);
    EXPECT_EQ(length.spread(), 3 * kMs);
}

TEST(IdleGrace, IsShortOnceSilencesGoOnAndOn) {
    IdleGrace grace(5 * kMs);
    for (int i = 0; i < 3; ++i) {
        EXPECT_EQ(grace.ns(), 5 * kMs);
        grace.went_on(3 * kMs);
    }
    EXPECT_EQ(grace.ns(), 500 * kUs);
    for (int i = 0; i < 100; ++i) grace.went_on(7 * kMs);
    EXPECT_EQ(grace.ns(), 500 * kUs);
}

TEST(IdleGrace, IsWholeAgainAfterOneForNothing) {
    IdleGrace grace(5 * kMs);
    for (int i = 0; i < 3; ++i) grace.went_on(3 * kMs);
    grace.went_on(100 * kUs);
    EXPECT_EQ(grace.ns(), 5 * kMs);
    for (int i = 0; i < 5; ++i) {
        grace.went_on(3 * kMs);
        EXPECT_EQ(grace.ns(), 5 * kMs) << "it takes more long ones than before";
    }
    grace.went_on(3 * kMs);
    EXPECT_EQ(grace.ns(), 500 * kUs);
}

TEST(IdleGrace, OneForNothingAmongLongOnesStartsTheCountAnew) {
    IdleGrace grace(5 * kMs);
    for (int i = 0; i < 10; ++i) {
        grace.went_on(3 * kMs);
        grace.went_on(3 * kMs);
        grace.went_on(1 * kMs);
        EXPECT_EQ(grace.ns(), 5 * kMs);
    }
}

TEST(IdleGrace, IsNeverLongerThanTheOneThatWasSet) {
    IdleGrace tiny(100 * kUs);
    for (int i = 0; i < 3; ++i) tiny.went_on(3 * kMs);
    EXPECT_EQ(tiny.ns(), 100 * kUs);
    IdleGrace large(100 * kMs);
    for (int i = 0; i < 3; ++i) large.went_on(50 * kMs);
    EXPECT_EQ(large.ns(), 10 * kMs);
}

TEST(HandOver, BelowItsCostThereAndBackAWindowKeepsTheTurn) {
    HandOver hand_over;
    EXPECT_EQ(hand_over.least_window_ns(300 * kUs), 300 * kUs) << "nothing is known";
    for (std::size_t i = 0; i < LastFew::kNeeded; ++i) {
        hand_over.went_on(200 * kUs);
        hand_over.seen_open(100 * kUs);
    }
    EXPECT_EQ(hand_over.cost_ns(), 250 * kUs);
    EXPECT_EQ(hand_over.least_window_ns(300 * kUs), 500 * kUs);
    EXPECT_EQ(hand_over.least_window_ns(1 * kMs), 1 * kMs) << "the option is the least";
    EXPECT_EQ(hand_over.least_window_ns(0), 500 * kUs);
}

TEST(HandOver, OnceKnownAThreadThatLostItsCoreChangesNothing) {
    HandOver hand_over;
    for (std::size_t i = 0; i < LastFew::kKept; ++i) hand_over.went_on(20 * kUs);
    hand_over.went_on(50 * kMs);
    hand_over.went_on(50 * kMs);
    EXPECT_EQ(hand_over.cost_ns(), 20 * kUs);
}

TEST(HandOver, ALastingChangeIsFollowed) {
    HandOver hand_over;
    for (std::size_t i = 0; i < LastFew::kKept; ++i) hand_over.went_on(20 * kUs);
    for (std::size_t i = 0; i < LastFew::kKept; ++i) hand_over.went_on(900 * kUs);
    EXPECT_EQ(hand_over.cost_ns(), 900 * kUs);
    for (std::size_t i = 0; i < LastFew::kKept; ++i) hand_over.went_on(20 * kUs);
    EXPECT_EQ(hand_over.cost_ns(), 20 * kUs);
}

TEST(HandOver, OneOrTwoMeasurementsAreNone) {
    HandOver hand_over;
    hand_over.went_on(50 * kMs);
    hand_over.went_on(50 * kMs);
    EXPECT_EQ(hand_over.cost_ns(), 0U);
}

}  // namespace
}  // namespace crossover
