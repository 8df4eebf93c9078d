// SPDX-License-Identifier: Apache-2.0
// Window inference against a model GPU: each test is the order of calls of one way of training.
// What it expects of windows to come stands in windows_prediction_test.cpp.
#include <thread>

#include "shim/inference/thread_end.hpp"
#include "tests/unit/windows_program.hpp"

namespace crossover {
namespace {

TEST_F(Windows, ComputeIsDrainedOnlyWhenItsMarkerIsDone) {
    Stream& main = stream(kMain);
    EXPECT_TRUE(windows.drained());
    launch(main, 10 * kMs);
    EXPECT_FALSE(windows.drained()) << "no marker covers the launch";
    EXPECT_TRUE(windows.mark_open_streams());
    gpu.now = 10 * kMs - 1;
    EXPECT_FALSE(windows.drained());
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
    launch(main, kMs);
    EXPECT_FALSE(windows.drained());
}

TEST_F(Windows, SideStreamCollectiveOpensAWindowFromDrainedToItsEnd) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    const std::uint64_t number = compute_and_sum(main, comm, 40 * kMs, 20 * kMs);
    wait(main, kDone, comm);
    EXPECT_EQ(windows.newest_in_flight(), number);
    gpu.now = 39 * kMs;
    EXPECT_FALSE(windows.drained());
    gpu.now = 40 * kMs;
    EXPECT_TRUE(windows.drained());
    EXPECT_EQ(launch(main, 0), number) << "the optimizer's launch is the crossing";
    EXPECT_FALSE(finish_at(60 * kMs - 1));
    const auto done = finish_at(60 * kMs);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->number, number);
    EXPECT_EQ(done->running_ns, 20U * kMs);
    EXPECT_EQ(done->exposed_ns, 20U * kMs);
    EXPECT_EQ(windows.newest_in_flight(), 0U);
    EXPECT_EQ(launch(main, 0), 0U);
}

// As Horovod's asynchronous completion: a thread of its own puts the stream on which another
// launches behind a collective.
TEST_F(Windows, WhatIsLaunchedWhileAnotherThreadPutsItsStreamBehindIsBehindNothing) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    const std::uint64_t number = compute_and_sum(main, comm, 10 * kMs, 20 * kMs);
    EXPECT_EQ(windows.before_wait(main, kDone), number);
    launch(main, 5 * kMs);  // before the driver has the wait
    gpu.join(kMain, kComm);
    windows.after_wait(main, {number, true});
    gpu.now = 10 * kMs;
    EXPECT_EQ(windows.newest_in_flight(), number);
    EXPECT_EQ(windows.stands_behind(), 0U);
    gpu.now = 16 * kMs;
    EXPECT_EQ(windows.stands_behind(), 0U) << "nobody can tell that it is over";
}

TEST_F(Windows, ALaunchUnderWayWhileItsStreamIsPutBehindMayBeBehindNothing) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    const std::uint64_t number = compute_and_sum(main, comm, 10 * kMs, 20 * kMs);
    wait(main, kDone, comm);
    windows.after_wait(main, {number, true});
    gpu.now = 10 * kMs;
    launch(main, 5 * kMs);
    EXPECT_EQ(windows.stands_behind(), number);
    windows.after_wait(main, {number, false});
    EXPECT_EQ(windows.stands_behind(), 0U);
}

// The collective is on the stream itself, or on one that the legacy default stream waits for.
TEST_F(Windows, WhatIsLaunchedBesideACollectiveOnItsOwnStreamIsBehindNothing) {
    Stream& main = stream(kMain);
    launch(main, 10 * kMs);
    const std::uint64_t number = windows.before_collective(main, {7, 1000, 1});
    launch(main, 5 * kMs);
    gpu.work(kMain, 20 * kMs);
    windows.after_collective(main, number, true);
    gpu.now = 10 * kMs;
    EXPECT_EQ(windows.stands_behind(), 0U);
}

TEST_F(Windows, CollectiveOnTheComputeStreamPutsItsOwnNextLaunchBehind) {
    Stream& main = stream(kMain);
    launch(main, 10 * kMs);
    const std::uint64_t number = collective(main, 5 * kMs);
    EXPECT_FALSE(main.communication) << "the stream carries the job's compute";
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
    EXPECT_EQ(launch(main, kMs), number);
    gpu.now = 15 * kMs;
    const auto done = windows.poll_finished();
    ASSERT_TRUE(done);
    EXPECT_EQ(done->exposed_ns, 5U * kMs);
}

TEST_F(Windows, PackingKernelsOnACommunicationStreamBelongToTheCollective) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    for (int iteration = 0; iteration < 2; ++iteration) {
        for (int layer = 0; layer < 8; ++layer) {
            launch(main, kMs);
        }
        record(kReady, main);
        wait(comm, kReady, main);
        if (!comm.communication) {
            launch(comm, kMs / 10);  // pack
        } else {
            comm.launches.fetch_add(1);
        }
        collective(comm, 4 * kMs);
        comm.launches.fetch_add(1);  // unpack
        EXPECT_TRUE(comm.communication);
        gpu.now = gpu.end_of(kComm);
        ASSERT_TRUE(windows.poll_finished());
        EXPECT_TRUE(windows.drained());
    }
}

TEST_F(Windows, BlockedCpuOpensTheWindowWithoutAnyStreamWait) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    for (int iteration = 0; iteration < 2; ++iteration) {
        launch(main, 10 * kMs);
        record(kReady, main);
        wait(comm, kReady, main);
        collective(comm, 6 * kMs);
        const auto expected = windows.expected_window_ns();
        EXPECT_EQ(expected.has_value(), iteration > 0);
        EXPECT_TRUE(!expected || *expected == 6U * kMs);
        gpu.now = gpu.end_of(kMain);
        EXPECT_TRUE(windows.drained());
        gpu.now = gpu.end_of(kComm);
        const auto done = windows.poll_finished();
        ASSERT_TRUE(done);
        EXPECT_EQ(done->exposed_ns, 6U * kMs);
    }
    EXPECT_FALSE(windows.expected_window_ns()) << "nothing is in flight";
}

TEST_F(Windows, LegacyDefaultStreamFollowsImplicitOrder) {
    Stream& legacy = stream(kMain, StreamKind::kLegacyDefault);
    Stream& blocking = stream(kComm, StreamKind::kBlocking);
    Stream& free = stream(kOther);
    launch(legacy, kMs);
    const std::uint64_t number = collective(blocking, 5 * kMs);
    EXPECT_EQ(windows.unfinished_behind(legacy), number)
        << "the legacy stream waits for blocking streams";
    EXPECT_EQ(windows.unfinished_behind(free), 0U);
    gpu.now = gpu.end_of(kComm);
    ASSERT_TRUE(windows.poll_finished());
    const std::uint64_t second = collective(legacy, 5 * kMs);
    EXPECT_EQ(windows.unfinished_behind(blocking), second)
        << "blocking streams wait for the legacy stream";
    EXPECT_EQ(windows.unfinished_behind(free), 0U);
}

TEST_F(Windows, CapturedWorkIsLeftAlone) {
    Stream& main = stream(kMain);
    launch(main, kMs);
    gpu.captured.insert(kMain);
    const std::size_t before = gpu.records;
    EXPECT_EQ(windows.before_collective(main, {7, 1000, 1}), 0U);
    windows.after_collective(main, 0, true);
    EXPECT_FALSE(windows.mark_open_streams());
    EXPECT_EQ(gpu.records, before);
    EXPECT_EQ(windows.newest_in_flight(), 0U);
    EXPECT_FALSE(windows.faulty());
}

TEST_F(Windows, ARefusedLaunchIsNoCollective) {
    Stream& comm = stream(kComm);
    const std::uint64_t number = windows.before_collective(comm, {7, 1000, 1});
    ASSERT_NE(number, 0U);
    windows.after_collective(comm, number, false);
    EXPECT_TRUE(windows.finished(number));
    EXPECT_EQ(windows.newest_in_flight(), 0U);
    EXPECT_EQ(windows.unfinished_behind(comm), 0U);
}

TEST_F(Windows, AFaultyEventEndsInference) {
    Stream& main = stream(kMain);
    launch(main, kMs);
    gpu.refuse_records = true;
    windows.mark_open_streams();
    EXPECT_TRUE(windows.faulty());
    EXPECT_FALSE(windows.drained()) << "a faulty device is never taken for drained";
}

TEST_F(Windows, MoreInFlightThanAreFollowedPassUntracked) {
    Stream& comm = stream(kComm);
    std::uint64_t tracked = 0;
    for (int each = 0; each < 300; ++each) {
        tracked += collective(comm, kMs) != 0 ? 1 : 0;
    }
    EXPECT_EQ(tracked, 256U);
    gpu.now = gpu.end_of(kComm);
    std::uint64_t finished = 0;
    while (windows.poll_finished()) {
        ++finished;
    }
    EXPECT_EQ(finished, 256U);
    EXPECT_NE(collective(comm, kMs), 0U);
}

TEST_F(Windows, CollectivesOnTwoStreamsEndInAnyOrder) {
    Stream& slow = stream(kComm);
    Stream& quick = stream(kOther);
    const std::uint64_t first = collective(slow, 10 * kMs);
    const std::uint64_t second = collective(quick, kMs);
    const auto done = finish_at(kMs);
    ASSERT_TRUE(done);
    EXPECT_EQ(done->number, second);
    EXPECT_FALSE(windows.poll_finished());
    EXPECT_EQ(windows.newest_in_flight(), first);
    EXPECT_FALSE(windows.finished(first));
}

TEST_F(Windows, DestroyedStreamsLeaveNoTraceAndTheirWorkStillCounts) {
    Stream* gone = &stream(kOther);
    launch(*gone, 10 * kMs);
    windows.remove_stream(kOther);
    EXPECT_EQ(windows.find_stream(kOther), nullptr);
    EXPECT_FALSE(windows.drained());
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
    Stream& again = stream(kOther);  // the driver gives the handle out anew
    EXPECT_EQ(again.submitted.load(), 0U);
}

TEST_F(Windows, RestartTakesEveryStreamForRunning) {
    Stream& main = stream(kMain);
    gpu.work(kMain, 10 * kMs);  // while nobody looked
    EXPECT_TRUE(windows.drained());
    windows.restart();
    EXPECT_FALSE(windows.drained());
    EXPECT_TRUE(windows.mark_open_streams());
    EXPECT_FALSE(windows.drained());
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
    static_cast<void>(main);
}

TEST_F(Windows, EventsAreUsedAgain) {
    for (int iteration = 0; iteration < 1000; ++iteration) {
        ddp_iteration(kMs, kMs);
        gpu.now = std::max(gpu.end_of(kMain), gpu.end_of(kComm));
        ASSERT_TRUE(windows.poll_finished());
    }
    EXPECT_LE(gpu.alive, 16U);
}

TEST_F(Windows, LaunchesBehindACollectiveStandStillUntilItEnds) {
    Stream& main = stream(kMain);
    Stream& comm = stream(kComm);
    const std::uint64_t first = ddp_iteration(10 * kMs, 20 * kMs);
    ASSERT_NE(first, 0U);
    gpu.work(kMain, 5 * kMs);  // the optimizer, launched behind the collective
    windows.compute_submitted(main);
    gpu.now = 10 * kMs - 1;
    EXPECT_EQ(windows.stands_behind(), 0U) << "the backward pass runs";
    gpu.now = 10 * kMs;
    EXPECT_EQ(windows.stands_behind(), first);
    EXPECT_FALSE(windows.drained()) << "the optimizer has not run: the turn stays";
    // The thread runs ahead by an iteration.
    const std::uint64_t second = ddp_iteration(10 * kMs, 20 * kMs);
    ASSERT_GT(second, first);
    EXPECT_EQ(windows.stands_behind(), first);
    EXPECT_TRUE(windows.still_runs(first));
    gpu.now = 30 * kMs;
    EXPECT_FALSE(windows.still_runs(first)) << "before anybody has polled";
    ASSERT_TRUE(finish_at(30 * kMs));
    EXPECT_EQ(windows.stands_behind(), 0U) << "the optimizer and the next forward pass run";
    gpu.now = 45 * kMs;
    EXPECT_EQ(windows.stands_behind(), second);
    gpu.now = gpu.end_of(kComm);
    ASSERT_TRUE(windows.poll_finished());
    EXPECT_EQ(windows.stands_behind(), 0U) << "nothing is in flight";
    static_cast<void>(comm);
}

TEST_F(Windows, AStreamThatNothingHoldsBackKeepsTheJobFromStandingStill) {
    Stream& main = stream(kMain);
    Stream& other = stream(kOther);
    launch(main, kMs);
    const std::uint64_t number = collective(main, 20 * kMs);
    launch(main, kMs);
    gpu.now = kMs;
    EXPECT_EQ(windows.stands_behind(), number) << "its own next launch is behind it";
    launch(other, 5 * kMs);
    EXPECT_EQ(windows.stands_behind(), 0U);
    EXPECT_TRUE(windows.mark_open_streams());
    EXPECT_EQ(windows.stands_behind(), 0U);
    gpu.now = 6 * kMs;
    EXPECT_EQ(windows.stands_behind(), number);
}

TEST_F(Windows, LegacyStreamStandsBehindACollectiveOnABlockingOne) {
    Stream& legacy = stream(kMain, StreamKind::kLegacyDefault);
    Stream& blocking = stream(kComm, StreamKind::kBlocking);
    Stream& free = stream(kOther);
    for (Stream* each : {&legacy, &free}) {
        launch(*each, kMs);
    }
    const std::uint64_t number = collective(blocking, 5 * kMs);
    gpu.now = kMs;
    launch(legacy, kMs);
    EXPECT_EQ(windows.stands_behind(), number);
    launch(free, kMs);
    EXPECT_EQ(windows.stands_behind(), 0U) << "a non-blocking stream waits for nothing";
}

TEST_F(Windows, APerThreadStreamIsMarkedAtItsOwnThreadsEventRecords) {
    Stream& comm = stream(kComm);
    std::thread([&] {
        Stream& own = stream(kMain, StreamKind::kPerThread);
        launch(own, 10 * kMs);
        record(kReady, own);
        const std::size_t before = gpu.records;
        record(kReady, own);
        EXPECT_EQ(gpu.records, before) << "nothing was launched since";
    }).join();
    // Another thread submits the collective, as Horovod's does.
    windows.before_wait(comm, kReady);
    gpu.join(kComm, kMain);
    collective(comm, 5 * kMs);
    gpu.now = 10 * kMs - 1;
    EXPECT_FALSE(windows.drained());
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
}

TEST_F(Windows, AThreadThatEndsLeavesItsPerThreadStreamMarked) {
    static WindowInference* inference = nullptr;
    inference = &windows;
    std::thread([&] {
        ASSERT_TRUE(at_thread_end(
            [](std::uintptr_t key) noexcept { inference->remove_stream(key); }, kMain));
        launch(stream(kMain, StreamKind::kPerThread), 10 * kMs);
        EXPECT_FALSE(windows.drained());
    }).join();
    EXPECT_EQ(windows.find_stream(kMain), nullptr);
    gpu.now = 10 * kMs - 1;
    EXPECT_FALSE(windows.drained());
    gpu.now = 10 * kMs;
    EXPECT_TRUE(windows.drained());
    windows.restart();
    EXPECT_TRUE(windows.drained()) << "of a stream that is gone nothing new can come";
}

TEST_F(Windows, AThreadThatEndsAfterItsContextIsNoFault) {
    launch(stream(kMain, StreamKind::kPerThread), kMs);
    gpu.refuse_records = true;
    windows.remove_stream(kMain);
    EXPECT_FALSE(windows.faulty());
    EXPECT_TRUE(windows.drained());
}

}  // namespace
}  // namespace crossover
