// SPDX-License-Identifier: Apache-2.0
// The timed model of the virtual GPU: communicators, rendezvous, links, collectives under time
// slices, and the requests it refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "simgpu_machine.hpp"

namespace simgpu {
namespace {

// ---- collectives ----

// Clients 1 and 2 on devices 0 and 1 with a communicator; streams 1 and 2, and 11 and 12 for
// compute.
class Pair : public testing::Test {
  protected:
    void set_up(const EngineSettings& settings) {
        machine = std::make_unique<Machine>(settings);
        for (ClientId id = 1; id <= 2; ++id) {
            machine->client(id);
            machine->stream(id, id, static_cast<int>(id) - 1);
            machine->stream(id, 10 + id, static_cast<int>(id) - 1);
        }
        comm = machine->comm({{1, 0}, {2, 1}});
        ASSERT_NE(comm, 0U);
    }
    Request all_reduce(OpId id, ClientId client, std::uint64_t number, std::uint64_t bytes,
                       std::uint32_t flags = 0) {
        return Machine::collective(id, client, comm, static_cast<std::uint32_t>(client) - 1, number,
                                   bytes, 2, 0.1F, flags);
    }
    std::unique_ptr<Machine> machine;
    std::uint64_t comm = 0;
};

TEST_F(Pair, BetweenMachinesTheNetworksLatencyAndBandwidthCount) {
    EngineSettings settings = plain();
    settings.nodes = 4;
    settings.latency_ns = 20 * kUs;
    settings.node_latency_ns = 500 * kUs;
    settings.node_link_gbps = 4;
    set_up(settings);
    machine->send(1, all_reduce(1, 1, 0, 3 * kMs / kByteNs), 0);
    machine->send(2, all_reduce(1, 2, 0, 3 * kMs / kByteNs), 0);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 6 * kMs + 500 * kUs);
    EXPECT_EQ(machine->done(2, 1), 6 * kMs + 500 * kUs);
}

TEST_F(Pair, WithinAMachineOfSeveralTheLinkIsItsOwn) {
    EngineSettings settings = plain();
    settings.nodes = 2;
    settings.node_latency_ns = 500 * kUs;
    settings.node_link_gbps = 4;
    set_up(settings);
    machine->send(1, all_reduce(1, 1, 0, 3 * kMs / kByteNs), 0);
    machine->send(2, all_reduce(1, 2, 0, 3 * kMs / kByteNs), 0);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 3 * kMs);
}

TEST_F(Pair, TransferStartsWithTheLastRankAndEndsForAll) {
    EngineSettings settings = plain();
    settings.latency_ns = 20 * kUs;
    set_up(settings);
    machine->send(1, all_reduce(1, 1, 0, 3 * kMs / kByteNs), 0);
    machine->send(2, all_reduce(1, 2, 0, 3 * kMs / kByteNs), 4 * kMs);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 7 * kMs + 20 * kUs);
    EXPECT_EQ(machine->done(2, 1), 7 * kMs + 20 * kUs);
    const TruthRecord* truth = machine->truth_of(1, 1);
    ASSERT_NE(truth, nullptr);
    EXPECT_EQ(truth->kind, OpKind::kCollective);
    EXPECT_EQ(truth->start_ns, kStart);
    EXPECT_EQ(truth->transfer_start_ns, kStart + 4 * kMs);
    EXPECT_EQ(truth->end_ns, kStart + 7 * kMs + 20 * kUs);
    EXPECT_EQ(truth->comm, comm);
}

TEST_F(Pair, EndsOnlyWhenEveryRankHasAcknowledged) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, kMs, kNotifyStart), 0);
    machine->send(2, all_reduce(1, 2, 0, kMs, kNotifyStart), 0);
    machine->run();
    machine->ack(1, 1, 2 * kMs);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), kNever);
    const auto staged = [&](ClientId client) {
        return std::count(machine->order.begin(), machine->order.end(),
                          std::tuple{NoticeKind::kStaged, client, OpId{1}});
    };
    EXPECT_EQ(staged(1), 0) << "not all have brought theirs";
    machine->ack(2, 1, 6 * kMs);
    machine->run();
    EXPECT_EQ(staged(1), 1);
    EXPECT_EQ(staged(2), 1);
    EXPECT_EQ(machine->done(1, 1), 6 * kMs);
    EXPECT_EQ(machine->done(2, 1), 6 * kMs);
}

TEST_F(Pair, OneAfterTheOtherWhateverTheStreams) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, 2 * kMs), 0);
    machine->send(2, all_reduce(1, 2, 0, 2 * kMs), 0);
    Request second = all_reduce(2, 1, 1, 3 * kMs);
    second.stream = 11;
    machine->send(1, second, 0);
    second = all_reduce(2, 2, 1, 3 * kMs);
    second.stream = 12;
    machine->send(2, second, 0);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 2 * kMs);
    EXPECT_EQ(machine->done(1, 2), 5 * kMs);
    EXPECT_EQ(machine->done(2, 2), 5 * kMs);
}

TEST_F(Pair, ResidentCollectiveTakesItsShareFirst) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, 2 * kMs), 0);                  // waits for rank 1
    machine->send(1, Machine::op(OpKind::kKernel, 2, 11, 9 * kMs), 0);  // at 0.9 of its rate
    machine->run();
    EXPECT_EQ(machine->done(1, 2), 10 * kMs);
}

TEST_F(Pair, GroupIsOverWithItsLastRendezvous) {
    set_up(plain());
    // Send and receive in one operation: two rendezvous of two, which share the communicator's
    // link.
    constexpr std::uint64_t kPeerToPeer = std::uint64_t{1} << 32;
    for (ClientId id = 1; id <= 2; ++id) {
        Request more = all_reduce(1, id, kPeerToPeer + 1, 3 * kMs);
        more.kind = RequestKind::kRendezvous;
        machine->send(id, more, 0);
        machine->send(id, all_reduce(1, id, kPeerToPeer, kMs), 0);
    }
    machine->run();
    EXPECT_TRUE(machine->errors.empty());
    EXPECT_EQ(machine->done(1, 1), 4 * kMs);
    EXPECT_EQ(machine->done(2, 1), 4 * kMs);
}

TEST_F(Pair, AbortEndsWhatIsInFlightAndWhatFollows) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, kMs, kNotifyStart), 0);
    machine->send(1, all_reduce(2, 1, 1, kMs), 0);
    machine->send(1, Machine::op(OpKind::kKernel, 3, 1, kMs), 0);
    machine->run();
    EXPECT_EQ(machine->started(1, 1), 0U);
    EXPECT_EQ(machine->done(1, 1), kNever);
    machine->leave(2, RequestKind::kCommAbort, comm, 1, 5 * kMs);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 5 * kMs);
    EXPECT_EQ(machine->status(1, 1), 1U);
    EXPECT_EQ(machine->status(1, 2), 1U);
    EXPECT_EQ(machine->done(1, 3), 6 * kMs);
    EXPECT_EQ(machine->status(1, 3), 0U);
    machine->ack(1, 1, 7 * kMs);  // was under way: no error
    EXPECT_TRUE(machine->errors.empty());
    machine->send(1, all_reduce(4, 1, 2, kMs), 8 * kMs);
    machine->run();
    EXPECT_EQ(machine->status(1, 4), 1U);
    machine->leave(1, RequestKind::kCommAbort, comm, 0, 9 * kMs);
    machine->send(1, all_reduce(5, 1, 3, kMs), 9 * kMs);
    EXPECT_EQ(machine->errors,
              std::vector<std::string>{"rank 0 is not in communicator " + std::to_string(comm)});
}

TEST_F(Pair, PeersOfADeadProcessStayUntilTheyAbort) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, 10 * kMs), 0);
    machine->send(2, all_reduce(1, 2, 0, 10 * kMs), 0);
    machine->engine.remove_client(2, kStart + 3 * kMs);  // in mid-transfer
    machine->run();
    EXPECT_EQ(machine->done(1, 1), kNever);
    EXPECT_EQ(machine->engine.live_operations(), 1U);
    const TruthRecord* truth = machine->truth_of(2, 2);
    ASSERT_NE(truth, nullptr);
    EXPECT_EQ(truth->end_ns, kStart + 3 * kMs);
    machine->leave(1, RequestKind::kCommAbort, comm, 0, 20 * kMs);
    EXPECT_EQ(machine->status(1, 1), 1U);
    EXPECT_EQ(machine->done(1, 1), 20 * kMs);
}

TEST_F(Pair, APeerThatDiesBetweenTransferAndAcknowledgementIsMissed) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, kMs, kNotifyStart), 0);
    machine->send(2, all_reduce(1, 2, 0, kMs, kNotifyStart), 0);
    machine->run();
    machine->engine.remove_client(2, kStart + 3 * kMs);
    machine->ack(1, 1, 4 * kMs);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), kNever);
}

TEST(SimgpuEngine, ALateRankDoesNotMeetADeadOne) {
    Machine machine(plain());
    for (ClientId id = 1; id <= 3; ++id) {
        machine.client(id);
        machine.stream(id, id, static_cast<int>(id) - 1);
    }
    const std::uint64_t comm = machine.comm({{1, 0}, {2, 1}, {3, 2}});
    machine.send(1, Machine::collective(1, 1, comm, 0, 0, kMs, 3), 0);
    machine.send(2, Machine::collective(1, 2, comm, 1, 0, kMs, 3), 0);
    machine.engine.remove_client(1, kStart + kMs);
    machine.send(3, Machine::collective(1, 3, comm, 2, 0, kMs, 3), 2 * kMs);
    machine.run();
    EXPECT_TRUE(machine.errors.empty());
    EXPECT_EQ(machine.done(2, 1), kNever);
    EXPECT_EQ(machine.done(3, 1), kNever);
    EXPECT_EQ(machine.engine.live_operations(), 2U);
}

TEST_F(Pair, ADeadProcessGivesTheDeviceBack) {
    set_up(plain());
    machine->client(3);
    machine->stream(3, 3, 0);
    machine->send(1, Machine::op(OpKind::kKernel, 1, 11, 100 * kMs), 0);
    machine->send(1, Machine::op(OpKind::kCopy, 2, 1, 100 * kMs), 0);
    machine->send(3, Machine::op(OpKind::kKernel, 1, 3, 3 * kMs), 0);
    machine->engine.remove_client(1, kStart + 2 * kMs);
    machine->run();
    EXPECT_EQ(machine->done(3, 1), 4 * kMs);
    EXPECT_EQ(machine->engine.live_operations(), 0U);
    EXPECT_EQ(machine->engine.next_event_ns(), kNever);
}

TEST_F(Pair, DestroyLetsPendingWorkEnd) {
    set_up(plain());
    machine->send(1, all_reduce(1, 1, 0, 2 * kMs), 0);
    machine->send(2, all_reduce(1, 2, 0, 2 * kMs), 0);
    machine->leave(1, RequestKind::kCommDestroy, comm, 0, kMs);
    machine->leave(2, RequestKind::kCommDestroy, comm, 1, kMs);
    machine->run();
    EXPECT_EQ(machine->done(1, 1), 2 * kMs);
    EXPECT_EQ(machine->status(2, 1), 0U);
}

// ---- links ----

// Two jobs of two ranks on devices 0/1 and 2/3, one transfer each.
std::pair<std::uint64_t, std::uint64_t> two_transfers(bool shared_link,
                                                      std::uint64_t second_at_ns) {
    EngineSettings settings = plain();
    settings.shared_link = shared_link;
    Machine machine(settings);
    for (ClientId id = 1; id <= 4; ++id) {
        machine.client(id);
        machine.stream(id, id, static_cast<int>(id) - 1);
    }
    const std::uint64_t first = machine.comm({{1, 0}, {2, 1}}, 7);
    const std::uint64_t second = machine.comm({{3, 2}, {4, 3}}, 8);
    machine.send(1, Machine::collective(1, 1, first, 0, 0, 4 * kMs), 0);
    machine.send(2, Machine::collective(1, 2, first, 1, 0, 4 * kMs), 0);
    machine.send(3, Machine::collective(1, 3, second, 0, 0, 4 * kMs), second_at_ns);
    machine.send(4, Machine::collective(1, 4, second, 1, 0, 4 * kMs), second_at_ns);
    machine.run();
    EXPECT_EQ(machine.done(1, 1), machine.done(2, 1));
    return {machine.done(1, 1), machine.done(3, 1)};
}

TEST(SimgpuEngine, SeparateLinksDoNotDisturbEachOther) {
    EXPECT_EQ(two_transfers(false, 2 * kMs), std::make_pair(4 * kMs, 6 * kMs));
}

TEST(SimgpuEngine, ASharedLinkIsSharedFairly) {
    // First alone for 2 ms, both at half rate for 4 ms, second alone for 2 ms.
    EXPECT_EQ(two_transfers(true, 2 * kMs), std::make_pair(6 * kMs, 8 * kMs));
}

// ---- collectives under time slices ----

// Job A (clients 1, 2) communicates while job B (3, 4) computes 20 ms, on the same two devices,
// slices of 2 ms.
struct SlicedResult {
    std::uint64_t comm_ns;
    std::uint64_t compute_ns;
    std::uint64_t transfer_ns;
};

SlicedResult sliced_jobs(TimesliceComm mode, std::uint64_t bytes) {
    EngineSettings settings = sliced();
    settings.timeslice_comm = mode;
    Machine machine(settings);
    for (ClientId id = 1; id <= 4; ++id) {
        machine.client(id);
        machine.stream(id, id, static_cast<int>(id - 1) % 2);
    }
    const std::uint64_t comm = machine.comm({{1, 0}, {2, 1}});
    for (const ClientId id : {3, 4})
        machine.send(id, Machine::op(OpKind::kKernel, 1, id, 20 * kMs), 0);
    for (const ClientId id : {1, 2}) {
        machine.send(
            id, Machine::collective(1, id, comm, static_cast<std::uint32_t>(id) - 1, 0, bytes), 0);
    }
    machine.run();
    return {machine.done(1, 1), machine.done(3, 1),
            machine.truth_of(1, 1)->transfer_start_ns - kStart};
}

TEST(SimgpuEngine, SpinningCollectiveBurnsItsSlices) {
    // Resident in its first slice, 2-4; 7 ms of transfer until 9 continue beside the other job's
    // slice 8-10, so the kernel ends with its own slice at 10. The other job computed 0-2, 4-6,
    // 8-10 and the last 14 ms alone.
    const SlicedResult result = sliced_jobs(TimesliceComm::kContinue, 7 * kMs);
    EXPECT_EQ(result.transfer_ns, 2 * kMs);
    EXPECT_EQ(result.comm_ns, 10 * kMs);
    EXPECT_EQ(result.compute_ns, 24 * kMs);
}

TEST(SimgpuEngine, StalledTransfersMoveOnlyInTheirSlices) {
    // 7 ms of transfer in slices 2-4, 6-8, 10-12 and 14-15.
    const SlicedResult result = sliced_jobs(TimesliceComm::kStall, 7 * kMs);
    EXPECT_EQ(result.comm_ns, 15 * kMs);
    EXPECT_EQ(result.compute_ns, 27 * kMs);
}

TEST(SimgpuEngine, StallNeedsAllParticipantsAtOnce) {
    EngineSettings settings = sliced();
    settings.timeslice_comm = TimesliceComm::kStall;
    Machine machine(settings);
    for (ClientId id = 1; id <= 3; ++id) machine.client(id);
    machine.stream(1, 1, 0);
    machine.stream(2, 2, 1);
    machine.stream(3, 3, 1);  // competes on the second device only
    const std::uint64_t comm = machine.comm({{1, 0}, {2, 1}});
    machine.send(3, Machine::op(OpKind::kKernel, 1, 3, 20 * kMs), 0);
    machine.send(1, Machine::collective(1, 1, comm, 0, 0, 3 * kMs), 0);
    machine.send(2, Machine::collective(1, 2, comm, 1, 0, 3 * kMs), 0);
    machine.run();
    EXPECT_EQ(machine.done(1, 1), 7 * kMs);
    EXPECT_EQ(machine.done(2, 1), 7 * kMs);
}

TEST(SimgpuEngine, RanksOfHostsOfTheirOwnMayShareADevice) {
    for (const TimesliceComm way : {TimesliceComm::kContinue, TimesliceComm::kStall}) {
        EngineSettings settings = sliced();
        settings.timeslice_comm = way;
        Machine machine(settings);
        for (ClientId id = 1; id <= 2; ++id) {
            machine.client(id);
            machine.stream(id, id, 0);
        }
        EXPECT_EQ(machine.comm({{1, 0}, {2, 0}}), 0U);
        const std::uint64_t comm = machine.comm({{1, 0}, {2, 0}}, 78, true);
        ASSERT_NE(comm, 0U);
        machine.send(1, Machine::collective(1, 1, comm, 0, 0, 3 * kMs), 0);
        machine.send(2, Machine::collective(1, 2, comm, 1, 0, 3 * kMs), 0);
        machine.run();
        // The second rank becomes resident in the second slice; from then on one of them always has
        // the device.
        EXPECT_EQ(machine.done(1, 1), 5 * kMs);
        EXPECT_EQ(machine.done(2, 1), 5 * kMs);
    }
}

// ---- whole jobs ----

// Two jobs of two ranks each on the same two devices: iterations of kernels that take 20 ms in all
// and a transfer of 20 ms. The aggregate is what both would take one after the other, over what
// they take side by side.
double aggregate(EngineSettings settings) {
    constexpr OpId kIterations = 50;
    constexpr OpId kKernels = 10;
    Machine machine(settings);
    for (ClientId id = 1; id <= 4; ++id) {
        machine.client(id);
        machine.stream(id, id, static_cast<int>(id - 1) % 2);
    }
    const std::uint64_t comms[] = {machine.comm({{1, 0}, {2, 1}}, 7),
                                   machine.comm({{3, 0}, {4, 1}}, 8)};
    OpId last = 0;
    for (ClientId id = 1; id <= 4; ++id) {
        OpId next = 1;
        for (OpId iteration = 0; iteration < kIterations; ++iteration) {
            for (OpId i = 0; i < kKernels; ++i)
                machine.send(id, Machine::op(OpKind::kKernel, next++, id, 2 * kMs), 0);
            last = next++;
            machine.send(id,
                         Machine::collective(last, id, comms[(id - 1) / 2],
                                             static_cast<std::uint32_t>(id - 1) % 2, iteration,
                                             20 * kMs, 2, 0.001F),
                         0);
        }
    }
    machine.run();
    const std::uint64_t end_ns = std::max(machine.done(1, last), machine.done(3, last));
    return static_cast<double>(kIterations * 80 * kMs) / static_cast<double>(end_ns);
}

TEST(SimgpuEngine, UncoordinatedJobsGainWhatTheoryAllows) {
    EngineSettings settings = plain();
    // In phase they compute at half rate and then communicate at once: 40 + 20 ms instead of 80.
    EXPECT_NEAR(aggregate(settings), 4.0 / 3.0, 0.01);
    settings.shared_link = true;
    EXPECT_NEAR(aggregate(settings), 1.0, 0.01);
    settings = sliced();
    // A spinning kernel takes every other slice of the job that computes, so nothing is gained over
    // that.
    EXPECT_NEAR(aggregate(settings), 4.0 / 3.0, 0.07);
    settings.timeslice_comm = TimesliceComm::kStall;
    EXPECT_NEAR(aggregate(settings), 1.0, 0.05);
}

TEST(SimgpuEngine, SameRequestsGiveSameNotices) {
    const auto run = [](Sharing sharing) {
        EngineSettings settings = sliced(100 * kUs);
        settings.sharing = sharing;
        settings.shared_link = true;
        settings.launch_ns = 4 * kUs;
        settings.gap_ns = kUs;
        settings.context_switch_ns = 7 * kUs;
        Machine machine(settings);
        for (ClientId id = 1; id <= 4; ++id) {
            machine.client(id);
            for (std::uint64_t stream = 0; stream < 3; ++stream) {
                machine.stream(id, id * 10 + stream, static_cast<int>(id - 1) % 2,
                               -static_cast<int>(stream));
            }
        }
        const std::uint64_t comms[] = {machine.comm({{1, 0}, {2, 1}}, 7),
                                       machine.comm({{3, 0}, {4, 1}}, 8)};
        std::mt19937_64 random(99);
        std::vector<std::uint64_t> number(4);
        for (OpId id = 1; id <= 2000; ++id) {
            for (ClientId client = 1; client <= 4; ++client) {
                const std::uint64_t at_ns = id * 50 * kUs + client;
                const std::uint64_t stream = client * 10 + random() % 3;
                switch (random() % 5) {
                    case 0:
                        machine.send(
                            client,
                            Machine::wait(id, stream, id - std::min<OpId>(id, random() % 9)),
                            at_ns);
                        break;
                    case 1:
                        machine.send(client,
                                     Machine::op(OpKind::kCopy, id, stream, random() % (100 * kUs)),
                                     at_ns);
                        break;
                    case 2:
                        machine.send(
                            client,
                            Machine::collective(id, client * 10 + 2, comms[(client - 1) / 2],
                                                static_cast<std::uint32_t>(client - 1) % 2,
                                                number[client - 1]++, random() % (50 * kUs)),
                            at_ns);
                        break;
                    default:
                        machine.send(client,
                                     Machine::op(OpKind::kKernel, id, stream, random() % (60 * kUs),
                                                 static_cast<float>(random() % 10 + 1) / 10),
                                     at_ns);
                }
            }
        }
        // Ranks issued different numbers of collectives; those without a peer end with the
        // communicator.
        machine.run();
        for (ClientId client = 1; client <= 4; ++client) {
            machine.leave(client, RequestKind::kCommAbort, comms[(client - 1) / 2],
                          static_cast<std::uint32_t>(client - 1) % 2, 50'000 * kMs);
        }
        machine.run(100'000 * kMs);
        EXPECT_TRUE(machine.errors.empty());
        EXPECT_EQ(machine.engine.live_operations(), 0U);
        EXPECT_EQ(machine.order.size(), 8000U + 4U);
        std::vector<std::uint64_t> ends;
        for (ClientId client = 1; client <= 4; ++client) {
            for (OpId id = 1; id <= 2000; ++id) ends.push_back(machine.done(client, id));
        }
        return std::make_pair(machine.order, ends);
    };
    for (const Sharing sharing : {Sharing::kMps, Sharing::kTimeslice})
        EXPECT_EQ(run(sharing), run(sharing));
}

}  // namespace
}  // namespace simgpu
