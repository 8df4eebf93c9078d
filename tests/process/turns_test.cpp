// SPDX-License-Identifier: Apache-2.0
// Clients in processes and threads that live: turns alternate, threads share, waits end, notices
// come. Deaths are in deaths_test.cpp, files in files_test.cpp.
#include <atomic>
#include <random>
#include <vector>

#include "tests/process/processes.hpp"

namespace crossover {
namespace {

using TurnsTest = ProcessTest;

TEST_F(TurnsTest, JobsAlternateAndNeverOverlap) {
    constexpr int kTurns = 500;
    struct Block {
        std::atomic<int> ready{0}, inside{0}, overlaps{0}, next{0};
        std::atomic<int> order[2 * kTurns];
    };
    Shared<Block> block;
    std::vector<std::unique_ptr<Process>> children;
    for (int me = 0; me < 2; ++me) {
        children.push_back(std::make_unique<Process>([&, me] {
            auto client = must_attach(static_cast<std::uint64_t>(10 + me));
            ++block->ready;
            CX_CHILD_CHECK(eventually([&] { return block->ready == 2; }));
            CX_CHILD_CHECK(client->contended());
            for (int turn = 0; turn < kTurns; ++turn) {
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                CX_CHILD_CHECK(client->holding());
                if (block->inside.fetch_add(1) != 0) ++block->overlaps;
                block->order[block->next++] = me;
                // Long enough for the other one to come to wait.
                const bool other_is_done = block->next > 2 * kTurns - 1 || block->ready < 2;
                CX_CHILD_CHECK(other_is_done ||
                               eventually([&] { return client->wanted() || block->ready < 2; }));
                block->inside.fetch_sub(1);
                client->release();
                CX_CHILD_CHECK(!client->holding());
            }
            --block->ready;
        }));
    }
    for (auto& child : children) child->expect_success();
    EXPECT_EQ(block->overlaps, 0);
    ASSERT_EQ(block->next, 2 * kTurns);
    int changes = 0;
    for (int i = 1; i < 2 * kTurns; ++i) changes += block->order[i] != block->order[i - 1] ? 1 : 0;
    EXPECT_GE(changes, 2 * kTurns - 3) << "each waits while the other holds, so they alternate";
    EXPECT_FALSE(file_exists()) << "the last one removed it";
}

TEST_F(TurnsTest, ManyJobsNeverOverlapUnderLoad) {
    constexpr int kJobs = 6;
    struct Block {
        std::atomic<int> inside{0}, overlaps{0}, started{0};
    };
    Shared<Block> block;
    std::vector<std::unique_ptr<Process>> children;
    for (int me = 0; me < kJobs; ++me) {
        children.push_back(std::make_unique<Process>([&, me] {
            auto client = must_attach(static_cast<std::uint64_t>(10 + me));
            ++block->started;
            CX_CHILD_CHECK(eventually([&] { return block->started == kJobs; }));
            for (int turn = 0; turn < 1'000; ++turn) {
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                if (block->inside.fetch_add(1) != 0) ++block->overlaps;
                block->inside.fetch_sub(1);
                client->release();
            }
        }));
    }
    for (auto& child : children) child->expect_success();
    EXPECT_EQ(block->overlaps, 0);
    EXPECT_FALSE(file_exists());
}

TEST_F(TurnsTest, RanksOfOneJobShareItsTurn) {
    Status status = Status::kOk;
    auto rank0 = attach(10, 10'000, status);
    auto rank1 = attach(10, 10'000, status);
    auto other = attach(20, 10'000, status);
    ASSERT_TRUE(rank0 && rank1 && other);
    EXPECT_EQ(rank0->acquire(0), Wait::kGranted);
    EXPECT_EQ(other->acquire(0), Wait::kTimedOut);
    EXPECT_EQ(rank1->acquire(0), Wait::kGranted);
    rank0->release();
    EXPECT_EQ(other->acquire(0), Wait::kTimedOut);
    EXPECT_GT(rank1->release(), 0U);
    EXPECT_EQ(other->acquire(0), Wait::kGranted);
    EXPECT_EQ(rank1->release(), 0U) << "not holding: harmless";
}

TEST_F(TurnsTest, ATimedOutWaitLeavesNothingBehind) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    const std::uint64_t deadline = monotonic_ns() + 120 * kMs;
    EXPECT_EQ(b->acquire(deadline), Wait::kTimedOut);
    EXPECT_GE(monotonic_ns(), deadline);
    EXPECT_FALSE(a->wanted());
    a->release();
    EXPECT_FALSE(b->holding());
    EXPECT_EQ(b->segment().arbitration.turn_count, 1U) << "no turn for somebody who left";
}

TEST_F(TurnsTest, AClientSeesThatAnotherJobCommunicates) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    auto peer = attach(10, 10'000, status);
    ASSERT_TRUE(a && b && peer);
    EXPECT_FALSE(a->others_communicate());
    peer->set_phase(ClientPhase::kCommunicating, 1);
    EXPECT_FALSE(a->others_communicate()) << "its own job";
    EXPECT_TRUE(b->others_communicate());
    b->set_phase(ClientPhase::kCommunicating, 2);
    EXPECT_TRUE(a->others_communicate());
    b->set_phase(ClientPhase::kWaiting, 3);
    EXPECT_FALSE(a->others_communicate());
    b->set_phase(ClientPhase::kCommunicating, 4);
    b.reset();
    EXPECT_FALSE(a->others_communicate()) << "it has gone";
}

TEST_F(TurnsTest, ThreadsOfOneClientWaitSideBySide) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    for (int round = 0; round < 20; ++round) {
        ASSERT_EQ(a->acquire(in_long()), Wait::kGranted);
        const std::uint64_t turns = a->segment().arbitration.turn_count;
        std::vector<std::thread> threads;
        std::atomic<int> granted{0}, timed_out{0};
        for (int t = 0; t < 8; ++t) {
            threads.emplace_back([&, t] {
                // One gives up early; the others' wait goes on.
                const std::uint64_t until = t == 0 ? monotonic_ns() + kMs : in_long();
                const Wait result = b->acquire(until);
                granted += result == Wait::kGranted ? 1 : 0;
                timed_out += result == Wait::kTimedOut ? 1 : 0;
            });
        }
        threads[0].join();
        EXPECT_EQ(timed_out, 1);
        ASSERT_TRUE(eventually([&] { return a->wanted(); }));
        a->release();
        for (int t = 1; t < 8; ++t) threads[static_cast<std::size_t>(t)].join();
        EXPECT_EQ(granted, 7);
        EXPECT_EQ(a->segment().arbitration.turn_count, turns + 1) << "one transition for all";
        EXPECT_TRUE(b->holding());
        b->release();
    }
}

TEST_F(TurnsTest, LetGoEndsEveryWait) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    std::vector<std::thread> threads;
    std::atomic<int> aborted{0};
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] { aborted += b->acquire(in_long()) == Wait::kAborted ? 1 : 0; });
    }
    ASSERT_TRUE(eventually([&] { return a->wanted(); }));
    b->let_go();
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(aborted, 4);
    EXPECT_FALSE(a->wanted()) << "they wait no more";
    EXPECT_EQ(b->acquire(in_long()), Wait::kAborted);
    b->allow();
    a->release();
    EXPECT_EQ(b->acquire(0), Wait::kGranted);
}

TEST_F(TurnsTest, LetGoGivesBackATurnThatCameMeanwhile) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    for (int round = 0; round < 200; ++round) {
        ASSERT_EQ(a->acquire(in_long()), Wait::kGranted);
        Wait result = Wait::kFault;
        std::thread waiter([&] { result = b->acquire(in_long()); });
        ASSERT_TRUE(eventually([&] { return a->wanted(); }));
        std::thread abort([&] { b->let_go(); });
        a->release();
        waiter.join();
        abort.join();
        b->allow();
        if (result == Wait::kGranted) {
            EXPECT_TRUE(b->holding());
            b->release();
        } else {
            EXPECT_EQ(result, Wait::kAborted);
        }
        EXPECT_EQ(a->segment().arbitration.turn.word.load() & kTurnJobMask, 0U) << "nobody has it";
    }
}

TEST_F(TurnsTest, NoticesComeWhenAJobComesWaitsAndGoes) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    ASSERT_TRUE(a);
    EXPECT_FALSE(a->contended());
    std::uint32_t seen = a->notice();
    const std::uint64_t deadline = monotonic_ns() + 20 * kMs;
    EXPECT_EQ(a->sleep(seen, deadline), seen) << "nothing happened";
    EXPECT_GE(monotonic_ns(), deadline);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);

    const auto next_notice = [&](auto&& cause) {
        std::thread sleeper([&] {
            const std::uint32_t now = a->sleep(seen, in_long());
            EXPECT_NE(now, seen);
            seen = now;
        });
        cause();
        sleeper.join();
    };
    std::unique_ptr<Client> b;
    next_notice([&] { b = attach(20, 10'000, status); });
    EXPECT_TRUE(a->contended());
    std::thread waiter;
    next_notice(
        [&] { waiter = std::thread([&] { EXPECT_EQ(b->acquire(in_long()), Wait::kAborted); }); });
    EXPECT_TRUE(a->wanted());
    next_notice([&] { a->wake(); });
    b->let_go();
    waiter.join();
    next_notice([&] { b.reset(); });
    EXPECT_FALSE(a->contended());
}

TEST_F(TurnsTest, TheLeaseEndsATurnAndItsHolderIsTold) {
    Status status = Status::kOk;
    auto a = attach(10, 60, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    const std::uint32_t seen = a->notice();
    const std::uint64_t begin = monotonic_ns();
    EXPECT_EQ(b->acquire(in_long()), Wait::kGranted);
    EXPECT_GE(monotonic_ns() - begin, 60 * kMs);
    EXPECT_NE(a->notice(), seen) << "so its watcher wakes up";
    EXPECT_NE(a->sleep(seen, in_long()), seen);
    EXPECT_FALSE(a->holding());
    EXPECT_EQ(a->segment().arbitration.expired_count, 1U);
    EXPECT_EQ(a->acquire(0), Wait::kTimedOut);
    b->release();
    EXPECT_EQ(a->acquire(0), Wait::kGranted) << "it may ask again";
}

TEST_F(TurnsTest, RekeyGivesBackAndJoins) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    JobIdentity same;
    same.key = 20;
    EXPECT_EQ(a->rekey(same), Status::kOk);
    EXPECT_FALSE(a->holding());
    EXPECT_FALSE(a->contended()) << "one job now";
    EXPECT_EQ(b->acquire(0), Wait::kGranted);
    EXPECT_EQ(a->acquire(0), Wait::kGranted);
    EXPECT_EQ(a->rekey(JobIdentity{}), Status::kSystem) << "0 is no key";
    EXPECT_TRUE(a->holding());
}

TEST_F(TurnsTest, AStallIsShownUntilTheNextGrant) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    const ClientSlot& slot = b->segment().clients[b->slot()];
    EXPECT_EQ(b->acquire(0), Wait::kTimedOut);
    EXPECT_EQ(slot.stalled_ns, 0U);
    const std::string site(2 * kCallSiteBytes, 'x');
    b->note_stall(site.c_str(), 4711);
    EXPECT_EQ(slot.stalled_ns, 4711U);
    EXPECT_EQ(std::string(slot.stall_site), site.substr(0, kCallSiteBytes - 1));
    b->note_stall("another thread", 4712);
    EXPECT_EQ(slot.stalled_ns, 4711U) << "the text may be being read";
    const TurnView turn = b->turn();
    EXPECT_TRUE(turn.held);
    EXPECT_STREQ(turn.holder, "job10");
    EXPECT_EQ(turn.active_jobs, 2U);
    a->release();
    ASSERT_EQ(b->acquire(0), Wait::kGranted);
    EXPECT_EQ(slot.stalled_ns, 0U);
    b->note_stall("place", 5);
    EXPECT_EQ(slot.stalled_ns, 5U);
    EXPECT_STREQ(slot.stall_site, "place");
}

// Whoever waits when it comes is let go, though it is allowed again before the waiter has looked.
TEST_F(TurnsTest, AnEndOfWaitingIsNotMissedByThoseWhoWaited) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    auto b = attach(20, 10'000, status);
    ASSERT_TRUE(a && b);
    ASSERT_EQ(a->acquire(0), Wait::kGranted);
    for (int round = 0; round < 100; ++round) {
        std::thread waiter([&] { EXPECT_EQ(b->acquire(in_long()), Wait::kAborted); });
        ASSERT_TRUE(eventually([&] { return a->wanted(); }));
        b->let_go();
        b->allow();
        waiter.join();
        ASSERT_FALSE(a->wanted());
    }
    EXPECT_EQ(b->acquire(0), Wait::kTimedOut);
}

TEST_F(TurnsTest, WhatAClientDoesIsSeenByTheTools) {
    Status status = Status::kOk;
    auto a = attach(10, 10'000, status);
    ASSERT_TRUE(a);
    a->set_phase(ClientPhase::kCommunicating, 1234);
    a->set_mode(Mode::kObserve);
    a->count_window();
    a->count_crossing();
    a->count_crossing();
    a->add_exposed(50);
    a->add_communicated(70);
    const MappedSegment segment = view();
    const ClientSlot& slot = segment.view()->clients[a->slot()];
    EXPECT_EQ(slot.pid, static_cast<std::uint32_t>(getpid()));
    EXPECT_EQ(slot.phase, ClientPhase::kCommunicating);
    EXPECT_EQ(slot.phase_ns, 1234U);
    EXPECT_EQ(slot.mode, 2U);
    EXPECT_EQ(slot.windows, 1U);
    EXPECT_EQ(slot.crossings, 2U);
    EXPECT_EQ(slot.exposed_ns, 50U);
    EXPECT_EQ(slot.communicated_ns, 70U);
    EXPECT_STREQ(segment.view()->jobs[slot.job].name, "job10");
}

}  // namespace
}  // namespace crossover
