// SPDX-License-Identifier: Apache-2.0
// The gate in the GPU's queues (CROSSOVER_GATE=stream): launches come back, their work waits for
// the turn, and everything that ends a wait ends that one. Runs on a virtual machine.
#include <gtest/gtest.h>
#include <signal.h>

#include <memory>
#include <sstream>

#include "guest_machine.hpp"

namespace crossover::test {
namespace {

using Words = std::vector<std::string>;

Words stream_gate(Words more = {}) {
    more.insert(more.end(), {"CROSSOVER_JOB=guest", "CROSSOVER_GATE=stream"});
    return more;
}

// A job that computes all the time and keeps its turn for as long as `lease_ms`.
std::unique_ptr<Guest> peer_with(const char* lease_ms) {
    auto peer = std::make_unique<Guest>(
        Words{"loop", "2000"},
        Words{"CROSSOVER_JOB=peer", std::string("CROSSOVER_LEASE_MS=") + lease_ms});
    EXPECT_TRUE(peer->wait_for_line("ready"));
    await([&] {
        // Devices of processes that left no order behind may be there, too.
        for (const auto& [uuid, device] : look()) {
            for (const ClientSeen& client : device.of(peer->pid())) {
                if (client.claims) return true;
            }
        }
        return false;
    });
    return peer;
}

std::uint64_t turns_of(const char* job) {
    for (const auto& [uuid, device] : look()) {
        if (device.jobs.count(job) == 1) return device.jobs.at(job).turns;
    }
    return 0;
}

// Its work waits on the GPU for a turn that the peer has.
void await_queued(const Guest& guest) {
    await([&] {
        const auto seen = look_at_device().of(guest.pid());
        return !seen.empty() && seen[0].waits;
    });
}

std::string bare(const Words& words) {
    Guest guest(words, {"LD_PRELOAD="});
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    return guest.out();
}

TEST(StreamGate, WorkWaitsWhereTheLaunchingThreadDoesNot) {
    const auto peer = peer_with("10000");
    Guest guest({"queues", "none"}, stream_gate());
    ASSERT_TRUE(guest.wait_for_line("launched"));
    await_queued(guest);
    EXPECT_EQ(turns_of("guest"), 0U);
    guest.send_line();
    ASSERT_TRUE(guest.wait_for_line("it waits"));
    EXPECT_EQ(exit_status_of(peer->finish()), 0);  // the turn is free
    ASSERT_TRUE(guest.wait_for_line("value 1"));
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.err(), "");
}

TEST(StreamGate, TheHoldersDeathLetsItThrough) {
    const auto peer = peer_with("10000");
    Guest guest({"queues", "none"}, stream_gate());
    ASSERT_TRUE(guest.wait_for_line("launched"));
    await_queued(guest);
    peer->send(SIGKILL);
    ASSERT_TRUE(guest.wait_for_line("done"));
    EXPECT_EQ(turns_of("guest"), 1U) << "by a turn, not past it";
    guest.send_line();
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.err(), "");
}

TEST(StreamGate, AStoppedHolderKeepsItNoLongerThanItsLease) {
    const auto peer = peer_with("50");
    peer->send(SIGSTOP);
    Guest guest({"queues", "none"}, stream_gate());
    ASSERT_TRUE(guest.wait_for_line("done"));
    EXPECT_GT(turns_of("guest"), 0U);
    guest.send_line();
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    peer->send(SIGCONT);
    EXPECT_EQ(exit_status_of(peer->finish()), 0);
    EXPECT_EQ(guest.err(), "");
}

class StreamGateEnds : public testing::TestWithParam<const char*> {};

TEST_P(StreamGateEnds, WhatWaitsOnTheGpu) {
    const std::string how = GetParam();
    const auto peer = peer_with("10000");
    const std::uint64_t turns = turns_of("peer");
    Guest guest({"queues", how}, stream_gate());
    ASSERT_TRUE(guest.wait_for_line("launched"));
    await_queued(guest);
    guest.send_line();
    ASSERT_TRUE(guest.wait_for_line("it waits"));
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.err(), "");
    if (how == "abort" || how == "destroy" || how == "finalize") {
        EXPECT_NE(guest.out().find("value 1"), std::string::npos) << guest.out();
    }
    EXPECT_EQ(turns_of("peer"), turns) << "its first turn is not over";
    EXPECT_EQ(turns_of("guest"), 0U) << "it passed without one";
    EXPECT_EQ(exit_status_of(peer->finish()), 0);
}

INSTANTIATE_TEST_SUITE_P(All, StreamGateEnds,
                         testing::Values("abort", "destroy", "finalize", "reset", "exit", "_exit"),
                         [](const auto& tested) {
                             const std::string how = tested.param;
                             return how == "_exit" ? std::string("quick_exit") : how;
                         });

// A launch that finds its stream full keeps everybody out of the driver until the GPU goes on,
// which is the moment that the library has to bring about.
TEST(StreamGate, AFullQueueThatLocksTheDriverDoesNotKeepItClosed) {
    const Words many{"queues_many", "3000"};
    const std::string expected = bare(many);
    const auto peer = peer_with("10000");
    Guest guest(many, stream_gate({"SIMGPU_FULL_QUEUE=locks"}));
    ASSERT_TRUE(guest.wait_for_line("ready"));
    guest.send_line();
    await_queued(guest);
    EXPECT_EQ(exit_status_of(peer->finish()), 0);
    ASSERT_TRUE(guest.wait_for_line("value 3001"));
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.err(), "");
    EXPECT_NE(expected.find("value 3001"), std::string::npos) << expected;
}

TEST(StreamGate, LaunchesBehindACollectiveComeBackBeforeItsEnd) {
    const Words words{"queues_at_crossing", "40"};
    const std::string expected = bare(words);
    const auto ahead = [&](const char* gate) {
        const auto peer = peer_with("20");
        Guest guest(words, {"CROSSOVER_JOB=guest", std::string("CROSSOVER_GATE=") + gate});
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_EQ(guest.out(), expected);
        EXPECT_EQ(exit_status_of(peer->finish()), 0);
        std::istringstream said(guest.err());
        std::string word;
        int count = -1;
        said >> word >> count;
        return count;
    };
    const int waiting = ahead("cpu");
    const int going_on = ahead("stream");
    EXPECT_EQ(going_on, 40);
    EXPECT_LT(waiting, going_on) << "else this test tells nothing";
}

TEST(StreamGate, WithoutStreamMemoryOperationsThreadsWaitAndALineSaysSo) {
    for (const bool asked : {true, false}) {
        const auto peer = peer_with("20");
        Guest guest({"steps", "50"}, {"CROSSOVER_JOB=guest", "SIMGPU_STREAM_MEM_OPS=none",
                                      asked ? "CROSSOVER_GATE=stream" : "CROSSOVER_GATE=auto"});
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_EQ(guest.out(), "value 50\n");
        EXPECT_EQ(guest.err(), asked ? "crossover: device 0 has no stream memory operations; "
                                       "launching threads wait for the turn\n"
                                     : "");
        EXPECT_EQ(exit_status_of(peer->finish()), 0);
    }
}

TEST(StreamGate, AWordThatIsNoKindOfGateIsRefusedInOneLine) {
    Guest guest({"steps", "5"}, {"CROSSOVER_JOB=guest", "CROSSOVER_GATE=gpu"});
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.out(), "value 5\n");
    EXPECT_NE(guest.err().find("CROSSOVER_GATE"), std::string::npos) << guest.err();
    EXPECT_NE(guest.err().find("cpu|stream|auto"), std::string::npos) << guest.err();
    EXPECT_EQ(guest.err().find('\n'), guest.err().size() - 1);
}

}  // namespace
}  // namespace crossover::test
