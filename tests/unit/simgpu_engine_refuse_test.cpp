// SPDX-License-Identifier: Apache-2.0
// The timed model of the virtual GPU: how communicators come about, and the requests it refuses.
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "simgpu_machine.hpp"

namespace simgpu {
namespace {

TEST(SimgpuEngine, CommunicatorsAreReadyOnceAllHaveJoined) {
    Machine machine(plain());
    machine.client(1);
    machine.client(2);
    const std::uint64_t first = machine.comm({{1, 0}, {2, 1}});
    ASSERT_EQ(machine.ready.size(), 2U);
    EXPECT_EQ(machine.ready[0].rank, 0U);
    EXPECT_EQ(machine.ready[1].rank, 1U);
    EXPECT_EQ(machine.ready[0].op, 77U);
    EXPECT_EQ(machine.ready[0].value, first);
    EXPECT_NE(machine.comm({{1, 0}, {2, 1}}), first);
    machine.comm({{1, 3}, {2, 3}});
    ASSERT_EQ(machine.ready.size(), 2U);
    EXPECT_EQ(machine.ready[0].status, 1U);
    EXPECT_EQ(machine.ready[1].status, 1U);
}

TEST(SimgpuEngine, CommunicatorWithBadRankOrSizeIsRefused) {
    Machine machine(plain());
    machine.client(1);
    Request request;
    request.kind = RequestKind::kCommInit;
    request.comm_key = 5;
    request.participants = 2;
    request.rank = 2;
    machine.send(1, request, 0);
    request.rank = 0;
    machine.send(1, request, 0);  // good: waits for rank 1
    ASSERT_EQ(machine.ready.size(), 1U);
    machine.send(1, request, 0);  // rank 0 again
    request.rank = 1;
    request.participants = 3;
    machine.send(1, request, 0);
    request.participants = 2;
    request.device = 4;
    machine.send(1, request, 0);
    ASSERT_EQ(machine.ready.size(), 4U);
    for (const Notice& notice : machine.ready) EXPECT_EQ(notice.status, 2U);
    request.device = 1;
    machine.send(1, request, 0);
    ASSERT_EQ(machine.ready.size(), 6U);
    EXPECT_EQ(machine.ready.back().status, 0U);
}

struct BadRequest {
    const char* name;
    void (*spoil)(Request&);
    const char* error;
};

class Refused : public testing::TestWithParam<BadRequest> {};

TEST_P(Refused, SaysWhyAndChangesNothing) {
    Machine machine(plain());
    machine.client(1);
    machine.client(2);
    machine.stream(1, 1);
    machine.stream(2, 2, 1);
    const std::uint64_t comm = machine.comm({{1, 0}, {2, 1}});
    machine.send(1, Machine::op(OpKind::kKernel, 1, 1, kMs), 0);
    machine.send(2, Machine::collective(1, 2, comm, 1, 6, kMs), 0);
    Request request = Machine::collective(2, 1, comm, 0, 5, kMs);
    GetParam().spoil(request);
    machine.send(1, request, 0);
    ASSERT_EQ(machine.errors.size(), 1U);
    EXPECT_EQ(machine.errors[0], GetParam().error);
    EXPECT_EQ(machine.engine.live_operations(), 2U);
    machine.run();
    EXPECT_EQ(machine.done(1, 1), kMs);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Refused,
    testing::Values(
        BadRequest{"Kind", [](Request& r) { r.kind = static_cast<RequestKind>(77); },
                   "unknown request kind 77"},
        BadRequest{"OpKind", [](Request& r) { r.op_kind = static_cast<OpKind>(9); },
                   "unknown operation kind 9"},
        BadRequest{"OldOp", [](Request& r) { r.op = 1; },
                   "operation 1 does not follow operation 1"},
        BadRequest{"Stream", [](Request& r) { r.stream = 3; }, "unknown stream 3"},
        BadRequest{"OthersStream", [](Request& r) { r.stream = 2; }, "unknown stream 2"},
        BadRequest{"Flags", [](Request& r) { r.flags = 6; }, "unknown flags 6"},
        BadRequest{"Cost", [](Request& r) { r.cost_ns = kNever; },
                   "cost_ns above 1000000000000000"},
        BadRequest{"NoShare", [](Request& r) { r.sm_share = 0; }, "sm_share not in (0, 1]"},
        BadRequest{"NanShare", [](Request& r) { r.sm_share = __builtin_nanf(""); },
                   "sm_share not in (0, 1]"},
        BadRequest{"Comm", [](Request& r) { r.comm_key = 99; }, "rank 0 is not in communicator 99"},
        BadRequest{"OthersRank", [](Request& r) { r.rank = 1; }, "rank 1 is not in communicator 1"},
        BadRequest{"TooMany", [](Request& r) { r.participants = 3; },
                   "rendezvous of 3 in a communicator of 2"},
        BadRequest{"NoMeeting", [](Request& r) { r.participants = 0; },
                   "collective without a rendezvous"},
        BadRequest{"Disagree",
                   [](Request& r) {
                       r.rendezvous = 6;
                       r.participants = 1;
                   },
                   "rendezvous 6 is of 2, not 1"},
        BadRequest{"Bytes", [](Request& r) { r.link_bytes = kNever; },
                   "link_bytes above 1000000000000000000"},
        BadRequest{"Device",
                   [](Request& r) {
                       r.kind = RequestKind::kStreamCreate;
                       r.stream = 9;
                       r.device = 4;
                   },
                   "device 4 not in 0..3"},
        BadRequest{"StreamTwice", [](Request& r) { r.kind = RequestKind::kStreamCreate; },
                   "second creation of stream 1"},
        BadRequest{"AckUnknown", [](Request& r) { r.kind = RequestKind::kAck; },
                   "acknowledged unknown operation 2"},
        BadRequest{"AckUnasked",
                   [](Request& r) {
                       r.kind = RequestKind::kAck;
                       r.op = 1;
                   },
                   "unexpected acknowledgement of operation 1"},
        BadRequest{"LateMeeting",
                   [](Request& r) {
                       r.kind = RequestKind::kRendezvous;
                       r.op = 1;
                   },
                   "rendezvous after its operation 1"},
        BadRequest{"Abort",
                   [](Request& r) {
                       r.kind = RequestKind::kCommAbort;
                       r.rank = 1;
                   },
                   "rank 1 is not in communicator 1"}),
    [](const auto& entry) { return std::string(entry.param.name); });

}  // namespace
}  // namespace simgpu
