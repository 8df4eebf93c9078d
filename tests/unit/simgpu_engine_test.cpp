// SPDX-License-Identifier: Apache-2.0
// The timed model of the virtual GPU without communication: kernels, streams, copies, time slices.
// What starts and ends when, exactly, without a clock.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <vector>

#include "simgpu_machine.hpp"

namespace simgpu {
namespace {

// ---- kernels and rates ----

struct Work {
    ClientId client;
    std::uint64_t stream;
    int priority;
    std::uint64_t cost_ns;
    float share;
    std::uint64_t end_ns;  // expected
};

struct RateCase {
    const char* name;
    std::vector<Work> work;
};

class Rates : public testing::TestWithParam<RateCase> {};

// All kernels are submitted at 0 on device 0; streams and clients share it under MPS.
TEST_P(Rates, KernelsEndWhenTheFluidModelSays) {
    Machine machine(plain());
    OpId next = 1;
    std::vector<OpId> ids;
    for (const Work& work : GetParam().work) {
        machine.client(work.client);
        if (std::none_of(GetParam().work.begin(),
                         GetParam().work.begin() + static_cast<long>(ids.size()),
                         [&](const Work& earlier) { return earlier.stream == work.stream; })) {
            machine.stream(work.client, work.stream, 0, work.priority);
        }
        machine.send(work.client,
                     Machine::op(OpKind::kKernel, next, work.stream, work.cost_ns, work.share), 0);
        ids.push_back(next++);
    }
    machine.run();
    for (std::size_t i = 0; i < ids.size(); ++i) {
        EXPECT_EQ(machine.done(GetParam().work[i].client, ids[i]), GetParam().work[i].end_ns)
            << "kernel " << i;
    }
    EXPECT_EQ(machine.engine.live_operations(), 0U);
    EXPECT_TRUE(machine.errors.empty());
}

INSTANTIATE_TEST_SUITE_P(
    Table, Rates,
    testing::Values(
        RateCase{"Alone", {{1, 1, 0, 5 * kMs, 1.0F, 5 * kMs}}},
        RateCase{"AloneOnPartTakesItsCost", {{1, 1, 0, 5 * kMs, 0.25F, 5 * kMs}}},
        RateCase{"OneStreamOneAfterTheOther",
                 {{1, 1, 0, 3 * kMs, 1, 3 * kMs}, {1, 1, 0, 4 * kMs, 1, 7 * kMs}}},
        RateCase{"TwoStreamsHalve",
                 {{1, 1, 0, 4 * kMs, 1, 8 * kMs}, {1, 2, 0, 4 * kMs, 1, 8 * kMs}}},
        RateCase{"TwoProcessesHalve",
                 {{1, 1, 0, 4 * kMs, 1, 8 * kMs}, {2, 2, 0, 4 * kMs, 1, 8 * kMs}}},
        RateCase{"RestRunsAtFullRate",
                 {{1, 1, 0, 2 * kMs, 1, 4 * kMs}, {2, 2, 0, 4 * kMs, 1, 6 * kMs}}},
        RateCase{"SmallOnesFitBesideEachOther",
                 {{1, 1, 0, 4 * kMs, 0.5F, 4 * kMs}, {2, 2, 0, 6 * kMs, 0.5F, 6 * kMs}}},
        // 0.2 is granted whole, the other two get 0.4 each: 0.8 and 0.4 of their own rate.
        RateCase{"MaxMinFair",
                 {{1, 1, 0, 10 * kMs, 0.2F, 10 * kMs},
                  {1, 2, 0, 4 * kMs, 0.5F, 5 * kMs},
                  {2, 3, 0, 2 * kMs, 1.0F, 5 * kMs}}},
        RateCase{"UrgentFirst", {{1, 1, 0, 4 * kMs, 1, 7 * kMs}, {1, 2, -1, 3 * kMs, 1, 3 * kMs}}},
        // The urgent kernel leaves half of the device: 3 ms at half rate, then the rest at full
        // rate.
        RateCase{"LessUrgentUsesWhatIsLeft",
                 {{1, 1, -5, 3 * kMs, 0.5F, 3 * kMs}, {2, 2, 0, 4 * kMs, 1, 5500 * kUs}}},
        RateCase{"NoTimeAtAll", {{1, 1, 0, 0, 1, 0}, {1, 1, 0, kMs, 1, kMs}}}),
    [](const auto& entry) { return std::string(entry.param.name); });

TEST(SimgpuEngine, StartsAtTheExactEndHoweverLateTheServerWakes) {
    EngineSettings settings = plain();
    settings.launch_ns = 4 * kUs;
    settings.gap_ns = kUs;
    Machine machine(settings);
    machine.client(1);
    machine.stream(1, 1);
    for (OpId id = 1; id <= 1000; ++id)
        machine.send(1, Machine::op(OpKind::kKernel, id, 1, 100 * kUs), 0);
    machine.engine.advance(kStart + 50'000 * kMs);
    EXPECT_EQ(machine.done(1, 1), 104 * kUs);
    EXPECT_EQ(machine.done(1, 1000), 104 * kUs + 999 * 101 * kUs);
}

TEST(SimgpuEngine, LaunchLatencyCountsFromTheCallNotFromItsArrival) {
    EngineSettings settings = plain();
    settings.launch_ns = 40 * kUs;
    Machine machine(settings);
    machine.client(1);
    machine.stream(1, 1);
    Request kernel = Machine::op(OpKind::kKernel, 1, 1, kMs);
    kernel.submit_ns = kStart + 10 * kUs;
    machine.send(1, kernel, 30 * kUs);
    Request in_future = Machine::op(OpKind::kKernel, 2, 1, kMs);
    in_future.submit_ns = kStart + 1'000 * kMs;
    machine.send(1, in_future, 31 * kUs);
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 50 * kUs + kMs);
    EXPECT_EQ(machine.done(1, 2), 50 * kUs + 2 * kMs);
}

TEST(SimgpuEngine, GapFollowsAWaitOnAnotherStream) {
    EngineSettings settings = plain();
    settings.launch_ns = 4 * kUs;
    settings.gap_ns = kUs;
    Machine machine(settings);
    machine.client(1);
    machine.stream(1, 1);
    machine.stream(1, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, kMs), 0);
    machine.send(1, Machine::wait(2, 2, 1), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 3, 2, kMs), 0);
    machine.run();
    EXPECT_EQ(machine.done(1, 2), kMs + 4 * kUs);
    EXPECT_EQ(machine.done(1, 3), 2 * kMs + 5 * kUs);
}

TEST(SimgpuEngine, NoRoundingAddsUpOverManyRateChanges) {
    Machine machine(plain());
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    // A long kernel beside 3000 short ones that take a third of the device each in turn.
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 700 * kMs), 0);
    for (OpId id = 1; id <= 3000; ++id)
        machine.send(2, Machine::op(OpKind::kKernel, id, 2, 100 * kUs, 0.3F), 0);
    machine.run();
    EXPECT_EQ(machine.done(2, 3000), 300 * kMs);
    // 300 ms at 0.7, the rest alone.
    EXPECT_EQ(machine.done(1, 1), 790 * kMs);
}

// ---- order ----

TEST(SimgpuEngine, MarkersAndWaitsTakeNoTimeAndKeepOrder) {
    Machine machine(plain());
    machine.client(1);
    for (const std::uint64_t stream : {1, 2, 3}) machine.stream(1, stream);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 2 * kMs), 0);
    machine.send(1, Machine::op(OpKind::kMarker, 2, 1), 0);
    machine.send(1, Machine::wait(3, 2, 2), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 4, 2, kMs), 0);
    machine.send(1, Machine::op(OpKind::kMarker, 5, 3), kMs);
    machine.send(1, Machine::wait(6, 3, 1234), kMs);  // unknown: does not hold
    machine.send(1, Machine::wait(7, 3, 5), kMs);     // complete: does not hold
    machine.run();
    EXPECT_EQ(machine.done(1, 2), 2 * kMs);
    EXPECT_EQ(machine.done(1, 3), 2 * kMs);
    EXPECT_EQ(machine.done(1, 4), 3 * kMs);
    EXPECT_EQ(machine.done(1, 5), kMs);
    EXPECT_EQ(machine.done(1, 6), kMs);
    EXPECT_EQ(machine.done(1, 7), kMs);
}

TEST(SimgpuEngine, AWaitKnowsOnlyWhatWasSubmittedBefore) {
    Machine machine(plain());
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(1, 2);
    machine.stream(2, 3);
    machine.send(2, Machine::op(OpKind::kKernel, 5, 3, 100 * kMs),
                 0);  // same number, other process
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 3 * kMs), 0);
    machine.send(1, Machine::wait(2, 1, 5), 0);
    machine.send(1, Machine::op(OpKind::kMarker, 3, 1), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 5, 2, 50 * kMs), 0);
    machine.run();
    EXPECT_EQ(machine.done(1, 3),
              9 * kMs);  // three kernels shared the device until the first ended
}

TEST(SimgpuEngine, ClientWorkHoldsItsStreamUntilAcknowledged) {
    Machine machine(plain());
    machine.client(1);
    machine.stream(1, 1);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, kMs), 0);
    machine.send(1, Machine::op(OpKind::kClient, 2, 1), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 3, 1, kMs), 0);
    machine.run();
    EXPECT_EQ(machine.started(1, 2), kMs);
    EXPECT_EQ(machine.done(1, 2), kNever);
    machine.ack(1, 2, 5 * kMs);
    machine.run();
    EXPECT_EQ(machine.done(1, 2), 5 * kMs);
    EXPECT_EQ(machine.done(1, 3), 6 * kMs);
}

TEST(SimgpuEngine, DoneWaitsForTheClientButTheDeviceDoesNot) {
    Machine machine(plain());
    machine.client(1);
    machine.stream(1, 1);
    machine.stream(1, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 4 * kMs, 1, kNotifyStart), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 2, 1, 4 * kMs, 1, kNotifyStart), 0);
    machine.send(1, Machine::op(OpKind::kMarker, 3, 1), 0);
    machine.send(1, Machine::wait(4, 2, 3), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 5, 2, 2 * kMs, 1, kNotifyStart), 0);
    machine.run(kMs);
    EXPECT_EQ(machine.started(1, 1), 0U);
    machine.ack(1, 1, kMs);  // early: no effect on time
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 4 * kMs);
    EXPECT_EQ(machine.started(1, 2), 4 * kMs);
    EXPECT_EQ(machine.started(1, 5), 8 * kMs);
    for (const OpId id : {2, 3, 5}) EXPECT_EQ(machine.done(1, id), kNever) << id;
    machine.ack(1, 2, 20 * kMs);
    EXPECT_EQ(machine.done(1, 2), 8 * kMs);
    EXPECT_EQ(machine.done(1, 3), 8 * kMs);
    EXPECT_EQ(machine.done(1, 5), kNever);
    machine.ack(1, 5, 21 * kMs);
    EXPECT_EQ(machine.done(1, 5), 10 * kMs);
    EXPECT_TRUE(machine.errors.empty());
}

TEST(SimgpuEngine, AWaitHoldsForNothingThatTheDeviceHasDone) {
    Machine machine(plain());
    machine.client(1);
    machine.stream(1, 1);
    machine.stream(1, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, kMs, 1, kNotifyStart), 0);
    machine.run();
    Request destroy;
    destroy.kind = RequestKind::kStreamDestroy;
    destroy.stream = 1;
    machine.send(1, destroy, 2 * kMs);
    machine.send(1, Machine::wait(2, 2, 1), 2 * kMs);
    EXPECT_EQ(machine.done(1, 2), 2 * kMs);
    machine.ack(1, 1, 3 * kMs);  // its stream was still there for it
    EXPECT_EQ(machine.done(1, 1), kMs);
    EXPECT_TRUE(machine.errors.empty());
}

TEST(SimgpuEngine, DestroyedStreamFinishesItsWorkAndTakesNoMore) {
    Machine machine(plain());
    machine.client(1);
    machine.stream(1, 1);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, kMs), 0);
    machine.send(1, Machine::op(OpKind::kKernel, 2, 1, kMs), 0);
    Request destroy;
    destroy.kind = RequestKind::kStreamDestroy;
    destroy.stream = 1;
    machine.send(1, destroy, 0);
    machine.send(1, Machine::op(OpKind::kKernel, 3, 1, kMs), 0);
    ASSERT_EQ(machine.errors, std::vector<std::string>{"unknown stream 1"});
    machine.run();
    EXPECT_EQ(machine.done(1, 2), 2 * kMs);
    machine.stream(1, 1);  // the number is free again
    EXPECT_EQ(machine.errors.size(), 1U);
}

TEST(SimgpuEngine, CopiesOverlapKernelsAndQueueForEngines) {
    Machine machine(plain());
    machine.client(1);
    machine.client(2);
    for (const std::uint64_t stream : {1, 2, 3}) machine.stream(1, stream);
    machine.stream(2, 4);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 4 * kMs), 0);
    machine.send(1, Machine::op(OpKind::kCopy, 2, 2, 2 * kMs), 0);
    machine.send(1, Machine::op(OpKind::kCopy, 3, 3, 5 * kMs), 0);
    machine.send(2, Machine::op(OpKind::kCopy, 1, 4, 3 * kMs), kMs);
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 4 * kMs);
    EXPECT_EQ(machine.done(1, 2), 2 * kMs);
    EXPECT_EQ(machine.done(1, 3), 5 * kMs);
    EXPECT_EQ(machine.done(2, 1), 5 * kMs);
    const TruthRecord* copy = machine.truth_of(2, 4);
    ASSERT_NE(copy, nullptr);
    EXPECT_EQ(copy->start_ns, kStart + 2 * kMs);
}

// ---- time slices ----

TEST(SimgpuEngine, SlicesAlternateAndKernelsResume) {
    Machine machine(sliced());
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 5 * kMs, 1, kNotifyStart), 0);
    machine.send(2, Machine::op(OpKind::kKernel, 1, 2, 3 * kMs, 1, kNotifyStart), 0);
    machine.ack(1, 1, 0);
    machine.run(3 * kMs);
    machine.ack(2, 1, 3 * kMs);
    machine.run();
    // 1: 0-2, 2: 2-4, 1: 4-6, 2: 6-7, 1: 7-8.
    EXPECT_EQ(machine.started(2, 1), 2 * kMs);
    EXPECT_EQ(machine.done(2, 1), 7 * kMs);
    EXPECT_EQ(machine.done(1, 1), 8 * kMs);
}

TEST(SimgpuEngine, LoneContextRunsOnAndALateOneWaitsForTheSliceBoundary) {
    Machine machine(sliced());
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 20 * kMs), 0);
    machine.send(2, Machine::op(OpKind::kKernel, 1, 2, kMs), 9 * kMs);
    machine.run();
    EXPECT_EQ(machine.done(2, 1), 11 * kMs);
    EXPECT_EQ(machine.done(1, 1), 21 * kMs);
}

TEST(SimgpuEngine, ThreeContextsTakeTurns) {
    Machine machine(sliced());
    for (ClientId id = 1; id <= 3; ++id) {
        machine.client(id);
        machine.stream(id, id);
        machine.send(id, Machine::op(OpKind::kKernel, 1, id, 4 * kMs), 0);
    }
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 8 * kMs);
    EXPECT_EQ(machine.done(2, 1), 10 * kMs);
    EXPECT_EQ(machine.done(3, 1), 12 * kMs);
}

TEST(SimgpuEngine, QueuedKernelsKeepTheSliceOverTheGap) {
    EngineSettings settings = sliced();
    settings.gap_ns = 10 * kUs;
    Machine machine(settings);
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    for (OpId id = 1; id <= 3; ++id)
        machine.send(1, Machine::op(OpKind::kKernel, id, 1, 500 * kUs), 0);
    machine.send(2, Machine::op(OpKind::kKernel, 1, 2, 5 * kMs), 0);
    machine.run();
    EXPECT_EQ(machine.done(1, 3), 1520 * kUs);
    EXPECT_EQ(machine.done(2, 1), 6520 * kUs);
}

TEST(SimgpuEngine, ContextSwitchCostsTime) {
    EngineSettings settings = sliced();
    settings.context_switch_ns = 100 * kUs;
    Machine machine(settings);
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 3 * kMs), 0);
    machine.send(2, Machine::op(OpKind::kKernel, 1, 2, 3 * kMs), 0);
    machine.run();
    // 1: 0-2, 2: 2.1-4.1, 1: 4.2-5.2, 2: 5.3-6.3.
    EXPECT_EQ(machine.done(1, 1), 5200 * kUs);
    EXPECT_EQ(machine.done(2, 1), 6300 * kUs);
}

TEST(SimgpuEngine, CopiesMarkersAndClientWorkNeedNoSlice) {
    Machine machine(sliced(50 * kMs));
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2);
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, 40 * kMs), 0);
    machine.send(2, Machine::op(OpKind::kCopy, 1, 2, kMs), 0);
    machine.send(2, Machine::op(OpKind::kMarker, 2, 2), 0);
    machine.send(2, Machine::op(OpKind::kClient, 3, 2), 0);
    machine.run(30 * kMs);
    EXPECT_EQ(machine.done(2, 2), kMs);
    EXPECT_EQ(machine.started(2, 3), kMs);
}

}  // namespace
}  // namespace simgpu
