// SPDX-License-Identifier: Apache-2.0
// What window inference expects of windows to come, and whether waiting for them pays; graphs that
// compute, which are waited for whole.
#include "tests/unit/windows_program.hpp"

namespace crossover {
namespace {

TEST_F(Windows, AWindowPaysOnlyWhereItsHistorySaysSo) {
    for (const auto& [communicate_ns, pays] :
         {std::pair{20 * kMs, true}, std::pair{kMs / 10, false}}) {
        WindowInference fresh(gpu);
        for (int iteration = 0; iteration < 3; ++iteration) {
            Stream& main = *fresh.stream(kMain, kMain, StreamKind::kNonBlocking, 0);
            Stream& comm = *fresh.stream(kComm, kComm, StreamKind::kNonBlocking, 0);
            fresh.unfinished_behind(main);
            gpu.work(kMain, 5 * kMs);
            fresh.compute_submitted(main);
            fresh.event_recorded(kReady, main);
            fresh.before_wait(comm, kReady);
            gpu.join(kComm, kMain);
            const std::uint64_t number = fresh.before_collective(comm, {7, 1000, 1});
            gpu.work(kComm, communicate_ns);
            fresh.after_collective(comm, number, true);
            fresh.event_recorded(kDone, comm);
            fresh.before_wait(main, kDone);
            gpu.join(kMain, kComm);
            ASSERT_EQ(fresh.unfinished_behind(main), number);
            EXPECT_EQ(fresh.crossing_pays(main, number, kMinWindow), iteration > 0 && pays)
                << "iteration " << iteration << ", window of " << communicate_ns << " ns";
            if (iteration == 0 || !pays) {
                EXPECT_EQ(fresh.unfinished_behind(main), 0U)
                    << "a crossing that does not pay is passed for good";
            }
            gpu.now = gpu.end_of(kComm);
            ASSERT_TRUE(fresh.poll_finished());
        }
    }
}

// Horovod fuses what is ready, so now and then there is a size that never was before.
TEST_F(Windows, ASizeThatIsNewIsTakenToBeLikeTheOthersOfItsCommunicator) {
    for (const auto& [communicate_ns, pays] :
         {std::pair{20 * kMs, true}, std::pair{kMs / 10, false}}) {
        WindowInference fresh(gpu);
        Stream& main = *fresh.stream(kMain, kMain, StreamKind::kNonBlocking, 0);
        for (const std::uint64_t bytes : {1000U, 1000U, 1000U, 750U}) {
            const std::uint64_t number = fresh.before_collective(main, {7, bytes, 1});
            gpu.work(kMain, communicate_ns);
            fresh.after_collective(main, number, true);
            ASSERT_EQ(fresh.unfinished_behind(main), number);
            if (bytes == 750) {
                EXPECT_EQ(fresh.crossing_pays(main, number, kMinWindow), pays);
                EXPECT_EQ(fresh.expected_window_ns(number), communicate_ns);
            }
            gpu.now = gpu.end_of(kMain);
            ASSERT_TRUE(fresh.poll_finished());
        }
        const std::uint64_t number = fresh.before_collective(main, {8, 750, 1});
        gpu.work(kMain, communicate_ns);
        fresh.after_collective(main, number, true);
        EXPECT_FALSE(fresh.expected_window_ns(number)) << "another communicator";
    }
}

// What varies is believed to be short only when it was so a few times: passing a long window by
// costs the other job all of it.
TEST_F(Windows, AShortWindowSeenOnceIsNoReasonToPassTheNext) {
    WindowHistory history;
    history.learn(5, 0);
    EXPECT_FALSE(history.sure(5));
    history.learn(5, 0);
    history.learn(5, 0);
    EXPECT_TRUE(history.sure(5));
    EXPECT_FALSE(history.sure(6));
    history.learn(5 + 2048, 0);
    EXPECT_TRUE(history.sure(5)) << "another signature that shares its bucket";
}

TEST_F(Windows, BucketsHiddenByBackwardAreToldFromTheExposedOne) {
    std::uint64_t exposed[3] = {};
    for (int iteration = 0; iteration < 3; ++iteration) {
        Stream& main = stream(kMain);
        Stream& comm = stream(kComm);
        for (int bucket = 0; bucket < 3; ++bucket) {
            launch(main, 10 * kMs);
            record(kReady, main);
            wait(comm, kReady, main);
            collective(
                comm,
                8 * kMs);  // all of one size: only the place in the iteration tells them apart
            record(kDone + static_cast<EventKey>(bucket), comm);
        }
        for (int bucket = 0; bucket < 3; ++bucket) {
            wait(main, kDone + static_cast<EventKey>(bucket), comm);
        }
        const std::uint64_t behind = windows.unfinished_behind(main);
        EXPECT_EQ(behind, static_cast<std::uint64_t>(3 * iteration + 3))
            << "the newest bucket counts";
        EXPECT_EQ(windows.crossing_pays(main, behind, kMinWindow), iteration > 0);
        gpu.now = gpu.end_of(kComm);
        for (auto& length : exposed) {
            const auto done = windows.poll_finished();
            ASSERT_TRUE(done);
            length = done->exposed_ns;
        }
        EXPECT_EQ(exposed[0], 0U);
        EXPECT_EQ(exposed[1], 0U);
        EXPECT_EQ(exposed[2], 8U * kMs);
    }
}

TEST_F(Windows, ANewPlaceInTheIterationTakesTheWordOfTheSameCollectiveElsewhere) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    ddp_iteration(5 * kMs, 5 * kMs);
    gpu.now = gpu.end_of(kComm);
    ASSERT_TRUE(windows.poll_finished());
    // An evaluation step puts another collective before the known one.
    launch(main, kMs);
    collective(comm, kMs / 10, 8);
    const std::uint64_t behind = ddp_iteration(5 * kMs, 5 * kMs);
    EXPECT_TRUE(windows.crossing_pays(main, behind, kMinWindow));
}

TEST_F(Windows, BehindAGraphThatComputesNothingStandsStill) {
    Stream& main = stream(kMain);
    launch(main, kMs);
    const std::uint64_t graph = windows.before_collective(main, {7, 1000, 1}, true);
    gpu.work(kMain, 10 * kMs);
    windows.after_collective(main, graph, true);
    windows.compute_submitted(main);
    launch(main, kMs);
    gpu.now = 5 * kMs;
    EXPECT_EQ(windows.stands_behind(), 0U) << "the graph may be computing";
}

TEST_F(Windows, WhatComesBehindAGraphThatComputesWaitsForItsWholeRunningTime) {
    Stream& main = stream(kMain);
    const auto graph = [&](std::int64_t ns) {
        const std::uint64_t number = windows.before_collective(main, {7, 1000, 1}, true);
        gpu.work(kMain, ns);
        windows.after_collective(main, number, true);
        return number;
    };
    const auto behind = [&](std::uint64_t number) {
        EXPECT_EQ(windows.unfinished_behind(main), number);
        return windows.crossing_pays(main, number, kMinWindow);
    };
    launch(main, kMs);
    const std::uint64_t first = graph(10 * kMs);
    EXPECT_TRUE(windows.computing_graph_in_flight());
    EXPECT_TRUE(behind(first)) << "the first of its kind may wait for its peers for long";
    gpu.now = kMs;
    EXPECT_TRUE(windows.drained()) << "the graph's own compute is none that the turn is held for";
    EXPECT_EQ(windows.stands_behind(), 0U) << "a window, while the graph may be computing";
    const auto done = finish_at(11 * kMs);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->exposed_ns, 0U);
    EXPECT_FALSE(windows.computing_graph_in_flight());

    const std::uint64_t second = graph(10 * kMs);
    EXPECT_EQ(windows.expected_window_ns(second), 10U * kMs);
    EXPECT_TRUE(behind(second));
    EXPECT_TRUE(finish_at(gpu.end_of(kMain)));
}

TEST_F(Windows, AShortGraphThatComputesIsPassed) {
    Stream& main = stream(kMain);
    const auto graph = [&] {
        const std::uint64_t number = windows.before_collective(main, {7, 1000, 1}, true);
        gpu.work(kMain, kMs / 10);
        windows.after_collective(main, number, true);
        return number;
    };
    graph();
    EXPECT_TRUE(finish_at(gpu.end_of(kMain)));
    const std::uint64_t number = graph();
    EXPECT_EQ(windows.unfinished_behind(main), number);
    EXPECT_FALSE(windows.crossing_pays(main, number, kMinWindow));
    EXPECT_EQ(windows.unfinished_behind(main), 0U);
}

TEST_F(Windows, AGraphsLengthSaysNothingOfACollectiveOfTheSameCall) {
    Stream& main = stream(kMain);
    const std::uint64_t graph = windows.before_collective(main, {7, 1000, 1}, true);
    gpu.work(kMain, 10 * kMs);
    windows.after_collective(main, graph, true);
    EXPECT_TRUE(finish_at(gpu.end_of(kMain)));
    EXPECT_FALSE(windows.expected_window_ns(collective(main, kMs)));
}

TEST_F(Windows, AStreamOfGraphsThatComputeIsNoCommunicationStream) {
    Stream& main = stream(kMain);
    Stream& other = stream(kOther);
    launch(other, kMs);
    record(kReady, other);
    wait(main, kReady, other);
    for (int i = 0; i < 2; ++i) {
        const std::uint64_t graph = windows.before_collective(main, {7, 1000, 1}, true);
        gpu.work(kMain, kMs);
        windows.after_collective(main, graph, true);
    }
    collective(main, kMs);
    EXPECT_FALSE(main.communication.load());
}

TEST_F(Windows, TheExpectedLengthIsThatUntilTheEndOfTheCollectiveAskedFor) {
    Stream& comm = stream(kComm);
    collective(comm, 6 * kMs, 6000);
    collective(comm, 2 * kMs, 2000);
    gpu.now = gpu.end_of(kComm);
    while (windows.poll_finished()) {
    }
    const std::uint64_t longer = collective(comm, 6 * kMs, 6000);
    collective(comm, 2 * kMs, 2000);
    EXPECT_EQ(windows.expected_window_ns(longer), 6U * kMs);
    EXPECT_EQ(windows.expected_window_ns(), 8U * kMs);
    EXPECT_TRUE(windows.is_oldest(longer));
    EXPECT_FALSE(windows.is_oldest(longer + 1));
    EXPECT_TRUE(finish_at(gpu.now + 6 * kMs));
    EXPECT_EQ(windows.expected_window_ns(), 2U * kMs);
    EXPECT_TRUE(windows.is_oldest(longer + 1));
}

// Fused gradients: what came last may be little, behind much that is exposed as well.
TEST_F(Windows, AShortLastOfSeveralIsWaitedForWhereThoseBeforeItAreLong) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    std::uint64_t last = 0;
    for (int iteration = 0; iteration < 5; ++iteration) {
        launch(main, kMs);
        record(kReady, main);
        wait(comm, kReady, main);
        collective(comm, 5 * kMs, 5000);
        last = collective(comm, kMs / 5, 200);
        record(kDone, comm);
        wait(main, kDone, comm);
        EXPECT_EQ(windows.unfinished_behind(main), last);
        if (iteration >= 3) {
            EXPECT_TRUE(windows.crossing_pays(main, last, kMinWindow));
            gpu.now = gpu.end_of(kComm) - kMs / 5;
            EXPECT_TRUE(windows.poll_finished());
            EXPECT_FALSE(windows.crossing_pays(main, last, kMinWindow)) << "the rest is short";
        }
        gpu.now = gpu.end_of(kComm);
        while (windows.poll_finished()) {
        }
    }
}

TEST(WindowHistory, FollowsAChangeAndShrugsAtOneOddWindow) {
    WindowHistory history;
    EXPECT_FALSE(history.predict(5));
    history.learn(5, 8000);
    EXPECT_EQ(*history.predict(5), 8000U);
    history.learn(5, 0);
    EXPECT_EQ(*history.predict(5), 6000U);
    for (int each = 0; each < 40; ++each) {
        history.learn(5, 100);
    }
    EXPECT_LE(*history.predict(5), 110U);
    EXPECT_FALSE(history.predict(5 + 2048)) << "another signature in the same bucket";
}

TEST(WindowHistory, TellsByHowMuchLengthsDiffer) {
    WindowHistory history;
    EXPECT_EQ(history.deviation(5), 0U);
    for (int each = 0; each < 40; ++each) {
        history.learn(5, 8000);
    }
    EXPECT_EQ(history.deviation(5), 0U);
    for (int each = 0; each < 40; ++each) {
        history.learn(5, each % 2 == 0 ? 9000 : 7000);
    }
    EXPECT_NEAR(static_cast<double>(history.deviation(5)), 1000.0, 200.0);
    EXPECT_EQ(history.deviation(5 + 2048), 0U) << "another signature in the same bucket";
}

}  // namespace
}  // namespace crossover
