// SPDX-License-Identifier: Apache-2.0
// Small pieces of compute against a model GPU: what passes without a turn, and what a wrong guess
// costs at most. Times are the model's.
#include "shim/inference/small_pieces.hpp"

#include <gtest/gtest.h>

#include <vector>

#include "tests/unit/fake_gpu.hpp"

namespace crossover {
namespace {

using Answer = SmallPieces::Answer;

constexpr std::int64_t kUs = 1'000;
constexpr std::int64_t kMs = 1'000'000;
constexpr std::uint64_t kLimit = 300'000;
constexpr StreamKey kMain = 0x1000;
constexpr StreamKey kSide = 0x2000;
constexpr EventKey kEvent = 0x10;

// One thread that launches: an iteration is a collective that the next launch stands behind, a
// piece, a pause or another collective, and a long piece. It asks for the turn when it must.
class Small : public testing::Test {
  protected:
    Stream& main() { return *windows.stream(kMain, kMain, StreamKind::kNonBlocking, 0); }
    void collective(std::int64_t ns, std::uint64_t bytes) {
        const std::uint64_t number = windows.before_collective(main(), {7, bytes, 1});
        gpu.work(kMain, ns);
        windows.after_collective(main(), number, true);
    }
    // One that runs on a stream of its own, beside what is launched next.
    void bucket(std::int64_t ns) {
        Stream& side = *windows.stream(kSide, kSide, StreamKind::kNonBlocking, 0);
        order(main(), side);
        const std::uint64_t number = windows.before_collective(side, {7, 1000, 1});
        gpu.work(kSide, ns);
        windows.after_collective(side, number, true);
    }
    void wait_for_buckets() {
        order(*windows.stream(kSide, kSide, StreamKind::kNonBlocking, 0), main());
    }
    void order(Stream& before, Stream& after) {
        windows.event_recorded(kEvent, before);
        windows.before_wait(after, kEvent);
        gpu.join(after.handle, before.handle);
    }
    // The thread has waited for the collective; the turn was given back meanwhile.
    void cross() {
        gpu.now = std::max(gpu.now, gpu.end_of(kMain));
        while (windows.poll_finished()) {
        }
        holding = false;
        meet();
    }
    void meet() {
        if (windows.meets_collective(main())) {
            windows.unfinished_behind(main());
            pieces.stop();
        }
    }
    std::uint64_t now() const { return static_cast<std::uint64_t>(gpu.now); }
    // Whether the launch went without a turn.
    bool launch(std::int64_t ns) {
        meet();
        Answer answer = Answer::kUnder;
        if (!holding || pieces.following()) {
            answer = pieces.next(main(), now(), holding, kLimit);
        }
        while (!waits_on_gpu && (answer == Answer::kSoon || answer == Answer::kLater)) {
            waited_for_collective |= answer == Answer::kLater;
            gpu.now += 10 * kUs;
            while (windows.poll_finished()) {
            }
            answer = pieces.next(main(), now(), holding, kLimit);
        }
        if (answer != Answer::kUnder && answer != Answer::kPasses && answer != Answer::kBegins) {
            holding = true;
            answer = pieces.next(main(), now(), holding, kLimit);
            EXPECT_EQ(answer, Answer::kUnder);
        }
        gpu.work(kMain, ns);
        windows.compute_submitted(main());
        if (pieces.following() && pieces.made(true)) {
            pieces.marked(now());
        }
        gpu.now += 2 * kUs;
        return answer != Answer::kUnder;
    }
    int launches(int count, std::int64_t ns) {
        int passed = 0;
        for (int each = 0; each < count; ++each) {
            passed += launch(ns) ? 1 : 0;
        }
        return passed;
    }
    // The thread waits until the device has run dry, and for so much longer.
    void pause(std::int64_t ns = 500 * kUs) {
        gpu.now = std::max(gpu.now, gpu.end_of(kMain)) + ns;
        pieces.watch(now(), kLimit);
    }
    // As a data-parallel job: all-reduce, optimizer step, the loss is read back, forward, backward.
    // Returns how many launches of the step passed.
    int iteration(int steps = 5, std::int64_t step_ns = 10 * kUs) {
        collective(20 * kMs, 1000);
        cross();
        const int passed = launches(steps, step_ns);
        pause();
        EXPECT_EQ(launches(30, kMs), 0) << "the forward and backward pass take the turn";
        pause();
        return passed;
    }

    FakeGpu gpu;
    WindowInference windows{gpu};
    SmallPieces pieces{windows};
    bool holding = true;
    bool waited_for_collective = false;
    bool waits_on_gpu = false;  // the stream waits for collective and turn, the thread does not
};

TEST_F(Small, AStepBeforeAPausePassesOnceItWasMeasuredShort) {
    std::vector<int> passed;
    for (int each = 0; each < 12; ++each) {
        passed.push_back(iteration());
    }
    EXPECT_EQ(passed[0], 0) << "nothing is known";
    EXPECT_EQ(passed[1], 0) << "how many launches it has is known, not how long they take";
    for (std::size_t each = 8; each < passed.size(); ++each) {
        EXPECT_EQ(passed[each], 5) << "iteration " << each;
    }
}

TEST_F(Small, AStepBetweenTwoWindowsPasses) {
    int passed = 0;
    for (int each = 0; each < 12; ++each) {
        collective(2 * kMs, 1000);
        cross();
        passed = launches(4, 5 * kUs);
        collective(2 * kMs, 2000);
        cross();
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    EXPECT_EQ(passed, 4);
}

TEST_F(Small, WhatFollowsAPieceBehindACollectivePassesAsWellOrWaitsForThatAndNotForTheTurn) {
    // As an optimizer step in parts behind the last reduce-scatter, which is not worth a wait.
    for (int each = 0; each < 12; ++each) {
        collective(20 * kMs, 1000);
        cross();
        int passed = launches(1, 10 * kUs);
        pause();
        passed += launches(2, 10 * kUs);
        pause();
        if (each >= 10) {
            EXPECT_EQ(passed, 3) << "iteration " << each;
        }
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    EXPECT_FALSE(waited_for_collective);
    collective(20 * kMs, 1000);
    holding = false;
    meet();
    EXPECT_EQ(launches(1, 10 * kUs), 1) << "is launched before the collective ends";
    EXPECT_EQ(launches(2, 10 * kUs), 2) << "so is another small one";
    EXPECT_FALSE(waited_for_collective);
    const std::int64_t end = gpu.end_of(kMain);
    EXPECT_EQ(launches(30, kMs), 0);
    EXPECT_TRUE(waited_for_collective) << "and only then for the turn";
    EXPECT_GE(gpu.now, end - 100 * kUs);
}

TEST_F(Small, WhatWaitsOnTheGpuBehindAPieceIsMeasuredThereAndPassesToo) {
    for (int each = 0; each < 12; ++each) {
        collective(20 * kMs, 1000);
        cross();
        launch(10 * kUs);
        pause();
    }
    waits_on_gpu = true;
    int passed = 0;
    for (int each = 0; each < 12; ++each) {
        collective(20 * kMs, 1000);
        holding = false;
        passed = launches(3, 10 * kUs);
        EXPECT_GE(passed, 1) << "iteration " << each;
        pause();
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    EXPECT_EQ(passed, 3);
}

TEST_F(Small, AsManyPiecesAsMayPassWaitForACollectiveTogether) {
    constexpr int kPieces = SmallPieces::kMostInARow;
    for (int each = 0; each < 12; ++each) {
        collective(20 * kMs, 1000);
        cross();
        for (int piece = 0; piece < kPieces; ++piece) {
            launch(10 * kUs);
            pause();
        }
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    collective(20 * kMs, 1000);
    holding = false;
    EXPECT_EQ(launches(kPieces, 10 * kUs), kPieces);
    EXPECT_FALSE(waited_for_collective);
}

TEST_F(Small, BehindEachOfEqualBucketsIsAnotherPlace) {
    // A slow program: each of its launches may be a stand. What follows the first buckets is long.
    int passed = 0;
    for (int each = 0; each < 40; ++each) {
        for (int layer = 0; layer < 4; ++layer) {
            for (int part = 0; part < 3; ++part) {
                EXPECT_FALSE(launch(kMs));
                gpu.now += 2 * kMs;
            }
            bucket(2 * kMs);
        }
        wait_for_buckets();
        cross();
        passed = launch(10 * kUs) ? 1 : 0;
        pause();
        if (each >= 8) {
            EXPECT_EQ(passed, 1) << "iteration " << each;
        }
    }
}

TEST_F(Small, WhatFollowsAPieceThatWasJustLaunchedIsAskedForAgain) {
    gpu.launch_latency = 20 * kUs;
    for (int each = 0; each < 12; ++each) {
        collective(20 * kMs, 1000);
        cross();
        int passed = launches(1, 10 * kUs);
        if (each < 10) {
            pause();
        }
        passed += launches(2, 10 * kUs);
        pause();
        if (each >= 9) {
            EXPECT_EQ(passed, 3) << "iteration " << each;
        }
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    EXPECT_FALSE(waited_for_collective);
}

TEST_F(Small, APieceThatDoesNotBeginIsGivenUp) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    collective(20 * kMs, 1000);
    cross();
    gpu.launch_latency = 50 * kMs;  // the device is busy
    EXPECT_EQ(launches(5, 10 * kUs), 5);
    const std::int64_t since = gpu.now;
    EXPECT_FALSE(launch(kMs));
    EXPECT_TRUE(holding);
    EXPECT_LE(gpu.now - since, 2 * kMs);
}

TEST_F(Small, ALongPieceNeverPasses) {
    for (int each = 0; each < 50; ++each) {
        EXPECT_EQ(iteration(1, 2 * kMs), 0);
    }
}

TEST_F(Small, APieceThatTurnsOutLongPassesOnceAndThenNeedsTheTurnTwiceAsOftenAsBefore) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    ASSERT_EQ(iteration(), 5);
    EXPECT_EQ(iteration(5, 10 * kMs), 5) << "what was submitted before anybody could know";
    for (int each = 0; each < 20; ++each) {
        EXPECT_EQ(iteration(5, 10 * kMs), 0);
    }
    // Short again: only after two that were measured under a turn.
    std::vector<int> passed;
    for (int each = 0; each < 4; ++each) {
        passed.push_back(iteration());
    }
    EXPECT_EQ(passed[0], 0);
    EXPECT_EQ(passed[1], 0);
}

TEST_F(Small, EveryOtherOneLongPassesWrongEverMoreSeldom) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    int wrong = 0;
    int row = 0;
    for (int each = 0; each < 400; ++each) {
        const bool is_long = each % 2 == 0;
        const int passed = iteration(5, is_long ? 10 * kMs : 10 * kUs);
        row = is_long && passed != 0 ? row + 1 : 0;
        EXPECT_LE(row, 1) << "one after the other";
        wrong += is_long && passed != 0 ? 1 : 0;
    }
    EXPECT_LE(wrong, 1) << "a short one between two long ones is no reason";
}

TEST_F(Small, NoMoreLaunchesPassThanWereMeasured) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    collective(20 * kMs, 1000);
    cross();
    // No pause after the fifth this time, and the device has work.
    EXPECT_EQ(launches(5, 400 * kUs), 5);
    EXPECT_EQ(launches(20, kMs), 0) << "the sixth takes the turn";
    EXPECT_TRUE(holding);
    pause();
    EXPECT_EQ(iteration(), 0) << "and the guess is given up";
}

TEST_F(Small, WhatIsFoundLongByTheWatcherIsToldBeforeTheNextLaunch) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    collective(20 * kMs, 1000);
    cross();
    ASSERT_EQ(launches(5, 10 * kMs), 5);
    for (int each = 0; each < 5; ++each) {
        gpu.now += kMs;
        pieces.watch(now(), kLimit);
    }
    // Another stand, while what passed still runs: its successors there take the turn.
    gpu.now = gpu.end_of(kMain);
    launches(30, kMs);
    pause();
    EXPECT_EQ(iteration(), 0);
}

TEST_F(Small, WaitingForAPeerMakesNoPieceLong) {
    // The loss is all-reduced, and the launch that follows stands behind that for as long as a peer
    // makes it wait.
    int passed = 0;
    for (int each = 0; each < 30; ++each) {
        collective(20 * kMs, 1000);
        cross();
        passed = launches(5, 10 * kUs);
        collective(each % 3 == 0 ? 40 * kMs : 20 * kUs, 4);
        passed += launches(1, 10 * kUs);
        pause();
        while (windows.poll_finished()) {
        }
        EXPECT_EQ(launches(30, kMs), 0);
        pause();
    }
    EXPECT_EQ(passed, 6);
}

TEST_F(Small, AThreadThatLosesItsCoreMakesNoPieceLong) {
    for (int each = 0; each < 12; ++each) {
        iteration();
    }
    collective(20 * kMs, 1000);
    cross();
    EXPECT_EQ(launches(2, 10 * kUs), 2);
    gpu.now += 3 * kMs;
    EXPECT_EQ(launches(3, 10 * kUs), 3);
    pause();
    launches(30, kMs);
    pause();
    EXPECT_EQ(iteration(), 5);
}

TEST_F(Small, AJobOfNothingButSmallPiecesTakesATurnNowAndThen) {
    int in_a_row = 0;
    int longest = 0;
    int turns = 0;
    for (int each = 0; each < 400; ++each) {
        collective(2 * kMs, 1000);
        cross();
        const bool passed = launch(10 * kUs);
        in_a_row = passed ? in_a_row + 1 : 0;
        longest = std::max(longest, in_a_row);
        turns += passed ? 0 : 1;
    }
    EXPECT_GT(longest, 0);
    EXPECT_LE(longest, static_cast<int>(SmallPieces::kMostInARow));
    EXPECT_GE(turns, 400 / static_cast<int>(SmallPieces::kMostInARow + 1));
}

TEST_F(Small, MoreThanTheLimitInAllTakesATurn) {
    std::int64_t row_ns = 0;
    std::int64_t longest_ns = 0;
    for (int each = 0; each < 400; ++each) {
        collective(2 * kMs, 1000);
        cross();
        row_ns = launch(200 * kUs) ? row_ns + 200 * kUs : 0;
        longest_ns = std::max(longest_ns, row_ns);
    }
    EXPECT_GT(longest_ns, 0);
    EXPECT_LE(longest_ns, 2 * static_cast<std::int64_t>(kLimit));
}

TEST_F(Small, ManyLaunchesAreNoSmallPiece) {
    for (int each = 0; each < 20; ++each) {
        EXPECT_EQ(iteration(static_cast<int>(SmallPieces::kMostLaunches) + 1, 100), 0);
    }
}

TEST_F(Small, WhatTheDriverCannotMeasureNeverPasses) {
    gpu.no_timing = true;
    for (int each = 0; each < 20; ++each) {
        EXPECT_EQ(iteration(), 0);
    }
}

TEST_F(Small, LongPiecesAreSeldomLookedAt) {
    for (int each = 0; each < 20; ++each) {
        iteration(1, 2 * kMs);
    }
    const std::size_t before = gpu.records;
    for (int each = 0; each < 64; ++each) {
        collective(20 * kMs, 1000);
        cross();
        launches(30, kMs);
    }
    // Two events and a marker of each collective; the rest is ours.
    EXPECT_LE(gpu.records - before, 64U * 3 + 16);
}

TEST_F(Small, EventsAreUsedAgain) {
    for (int each = 0; each < 300; ++each) {
        iteration();
    }
    EXPECT_LE(gpu.alive, 32U);
}

}  // namespace
}  // namespace crossover
