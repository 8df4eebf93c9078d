// SPDX-License-Identifier: Apache-2.0
// Clients that are killed, stopped, forked and replaced by exec. The lease of 10 s is out of the
// way, so a turn that moves on here moves because the death was found; the counters prove it.
#include <sched.h>

#include <atomic>
#include <random>
#include <vector>

#include "tests/process/processes.hpp"

namespace crossover {
namespace {

using DeathsTest = ProcessTest;

struct Block {
    std::atomic<int> go{0}, holding{0}, done{0}, attached{0}, fail{0};
    std::atomic<int> child_pid{0};
    std::atomic<std::uint64_t> turns{0}, longest_wait_ns{0};
};

// Takes the turn whenever `go` says a higher number, and says so in `done`.
void serve(Client& client, Block& block) {
    for (int round = 1;; ++round) {
        CX_CHILD_CHECK(eventually([&] { return block.go >= round; }));
        const std::uint64_t begin = monotonic_ns();
        CX_CHILD_CHECK(client.acquire(in_long()) == Wait::kGranted);
        block.longest_wait_ns = std::max(block.longest_wait_ns.load(), monotonic_ns() - begin);
        client.release();
        block.done = round;
    }
}

TEST_F(DeathsTest, AKilledHoldersTurnMovesOn) {
    constexpr int kRounds = 200;
    Shared<Block> block;
    Process other([&] {
        auto client = must_attach(20);
        ++block->attached;
        serve(*client, *block);
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    std::mt19937 random(1);
    for (int round = 1; round <= kRounds; ++round) {
        block->holding = 0;
        Process holder([&] {
            auto client = must_attach(10);
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            block->holding = 1;
            for (;;) pause();
        });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        block->go = round;
        // Before, while and after the other one begins to wait.
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 2'000));
        holder.kill_now();
        ASSERT_TRUE(eventually([&] { return block->done == round; })) << "round " << round;
    }
    const MappedSegment segment = view();
    EXPECT_EQ(segment.view()->arbitration.reaped_count, static_cast<std::uint64_t>(kRounds));
    EXPECT_EQ(segment.view()->arbitration.expired_count, 0U);
    RecordProperty("longest_wait_us", static_cast<int>(block->longest_wait_ns / 1000));
}

// The victim spends nearly all of its time inside transactions, so it dies in them, too.
TEST_F(DeathsTest, AClientKilledAtAnyInstructionHoldsUpNobody) {
    constexpr int kRounds = 200;
    Shared<Block> block;
    Process other([&] {
        auto client = must_attach(20);
        ++block->attached;
        for (;;) {
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            CX_CHILD_CHECK(client->holding());
            ++block->turns;
            client->release();
        }
    });
    std::mt19937 random(2);
    for (int round = 1; round <= kRounds; ++round) {
        block->holding = 0;
        Process victim([&] {
            auto client = must_attach(10);
            block->holding = 1;
            for (;;) {
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                client->release();
            }
        });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        const std::uint64_t before = block->turns;
        ASSERT_TRUE(eventually([&] { return block->turns > before; })) << "both are at it";
        const std::uint64_t until = monotonic_ns() + random() % kMs;
        while (monotonic_ns() < until) {
        }
        victim.kill_now();
        const std::uint64_t after = block->turns;
        ASSERT_TRUE(eventually([&] { return block->turns > after + 20; })) << "round " << round;
    }
    // Reaped by the other one, or by the next victim as it came.
    const MappedSegment segment = view();
    ASSERT_TRUE(eventually([&] { return segment.view()->arbitration.turn.active_jobs == 1; }))
        << "the last one's remains";
    EXPECT_EQ(segment.view()->arbitration.reaped_count, static_cast<std::uint64_t>(kRounds));
    EXPECT_EQ(segment.view()->arbitration.expired_count, 0U);
    EXPECT_GT(segment.view()->arbitration.repaired_count, 0U) << "some died inside a transition";
    RecordProperty("repaired", static_cast<int>(segment.view()->arbitration.repaired_count));
}

// Killed while it attaches or leaves: the file, its locks and its slots stay usable.
TEST_F(DeathsTest, AClientKilledWhileComingOrGoingLeavesAUsableSegment) {
    Shared<Block> block;
    std::mt19937 random(3);
    for (int round = 1; round <= 150; ++round) {
        Process victim([&] {
            for (;;) must_attach(10 + static_cast<std::uint64_t>(getpid() % 7));
        });
        Process second([&] {
            for (;;) must_attach(30);
        });
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
        victim.kill_now();
        second.kill_now();
        Status status = Status::kOk;
        auto client = attach(20, 10'000, status);
        ASSERT_TRUE(client) << status_text(status) << ", round " << round;
        ASSERT_EQ(client->acquire(in_long()), Wait::kGranted);
        EXPECT_FALSE(client->contended()) << "the dead were reaped when it came";
    }
    EXPECT_FALSE(file_exists());
}

TEST_F(DeathsTest, AKilledWaiterIsNotWaitedFor) {
    Shared<Block> block;
    Status status = Status::kOk;
    std::vector<std::unique_ptr<Process>> waiters;
    for (std::uint64_t job = 0; job < 6; ++job) {
        waiters.push_back(std::make_unique<Process>([&, job] {
            auto client = must_attach(100 + job);
            ++block->attached;
            CX_CHILD_CHECK(eventually([&] { return block->go == 1; }));
            client->acquire(in_long());
        }));
    }
    ASSERT_TRUE(eventually([&] { return block->attached == 6; }));
    auto holder = attach(10, 10'000, status);
    auto last = attach(1000, 10'000, status);
    ASSERT_TRUE(holder && last);
    ASSERT_EQ(holder->acquire(0), Wait::kGranted);
    block->go = 1;
    ASSERT_TRUE(
        eventually([&] { return holder->segment().arbitration.turn.waiting_jobs.load() == 6; }));
    for (auto& waiter : waiters) waiter->kill_now();
    holder->release();
    EXPECT_EQ(last->acquire(in_long()), Wait::kGranted);
    EXPECT_EQ(last->segment().arbitration.reaped_count, 6U);
    EXPECT_EQ(last->segment().arbitration.expired_count, 0U);
}

TEST_F(DeathsTest, AStoppedHolderLosesItsLease) {
    Shared<Block> block;
    Process holder([&] {
        auto client = must_attach(10, 80);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block->holding = 1;
        CX_CHILD_CHECK(eventually([&] { return block->go == 1; }));
        CX_CHILD_CHECK(!client->holding());  // also before any thread of it has looked
        CX_CHILD_CHECK(client->acquire(monotonic_ns()) == Wait::kTimedOut);
        client->sleep(client->notice(), 0);
        CX_CHILD_CHECK(!client->holding());
        block->done = 1;
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        client->release();
    });
    ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
    holder.send(SIGSTOP);
    int stopped = 0;
    ASSERT_EQ(waitpid(holder.pid(), &stopped, WUNTRACED), holder.pid());
    Status status = Status::kOk;
    auto client = attach(20, 10'000, status);
    ASSERT_TRUE(client);
    ASSERT_EQ(client->acquire(in_long()), Wait::kGranted);
    EXPECT_EQ(client->segment().arbitration.expired_count, 1U);
    EXPECT_EQ(client->segment().arbitration.reaped_count, 0U) << "it is not dead";
    block->go = 1;
    holder.send(SIGCONT);
    ASSERT_TRUE(eventually([&] { return block->done == 1; }));
    EXPECT_TRUE(client->holding()) << "no double hold";
    client->release();
    holder.expect_success();
}

TEST_F(DeathsTest, TheLastToLeaveTakesTheDeadAlong) {
    Shared<Block> block;
    Status status = Status::kOk;
    auto client = attach(10, 10'000, status);
    ASSERT_TRUE(client);
    Process dead([&] {
        auto own = must_attach(20);
        block->attached = 1;
        pause();
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    dead.kill_now();
    ASSERT_EQ(client->turn().active_jobs, 2U) << "nobody has noticed yet";
    client.reset();
    EXPECT_FALSE(file_exists());
}

TEST_F(DeathsTest, AForkedChildDoesNotKeepItsDeadParentsTurn) {
    Shared<Block> block;
    Process parent([&] {
        auto client = must_attach(10);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        const pid_t child = fork();
        if (child == 0) {
            block->child_pid = getpid();
            for (;;) pause();
        }
        CX_CHILD_CHECK(eventually([&] { return block->child_pid != 0; }));
        block->holding = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
    Status status = Status::kOk;
    auto client = attach(20, 10'000, status);
    ASSERT_TRUE(client);
    EXPECT_EQ(client->acquire(0), Wait::kTimedOut) << "its parent lives";
    parent.kill_now();
    EXPECT_EQ(client->acquire(in_long()), Wait::kGranted);
    EXPECT_EQ(client->segment().arbitration.reaped_count, 1U);
    EXPECT_EQ(client->segment().arbitration.expired_count, 0U);
    EXPECT_EQ(kill(block->child_pid, 0), 0) << "the child lives on";
    kill(block->child_pid, SIGKILL);
}

TEST_F(DeathsTest, AForkedChildHasNoEffectOnTheSegment) {
    Status status = Status::kOk;
    auto client = attach(10, 10'000, status);
    ASSERT_TRUE(client);
    ASSERT_EQ(client->acquire(0), Wait::kGranted);
    const std::uint64_t word = client->segment().arbitration.turn.word;
    for (const bool told : {true, false}) {
        Process child([&] {
            if (told) client->abandon_after_fork();
            CX_CHILD_CHECK(!client->usable());
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kFault);
            CX_CHILD_CHECK(client->release() == 0);
            client->let_go();
            client->wake();
            CX_CHILD_CHECK(client->sleep(client->notice(), in_long()) == client->notice());
            client.reset();
            // A client of its own is another matter.
            auto own = must_attach(20);
            CX_CHILD_CHECK(own->acquire(0) == Wait::kTimedOut);
        });
        child.expect_success();
        EXPECT_TRUE(client->holding());
        EXPECT_EQ(client->segment().arbitration.turn.word, word);
        EXPECT_EQ(client->segment().arbitration.reaped_count, 0U);
        EXPECT_FALSE(client->contended());
        EXPECT_TRUE(file_exists());
    }
}

TEST_F(DeathsTest, ExecCountsAsDeath) {
    // By the attaching thread itself, and while another thread is the one attached.
    for (const bool by_other_thread : {false, true}) {
        Shared<Block> block;
        Process process([&] {
            std::unique_ptr<Client> client;
            const auto hold = [&] {
                client = must_attach(10);
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                block->holding = 1;
            };
            if (by_other_thread) {
                std::thread([&] {
                    hold();
                    for (;;) pause();
                }).detach();
            } else {
                hold();
            }
            CX_CHILD_CHECK(eventually([&] { return block->go == 1; }));
            execl("/bin/sleep", "sleep", "1000", nullptr);
            CX_CHILD_CHECK(!"exec");
        });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        Status status = Status::kOk;
        auto client = attach(20, 10'000, status);
        ASSERT_TRUE(client);
        EXPECT_EQ(client->acquire(0), Wait::kTimedOut);
        block->go = 1;
        EXPECT_EQ(client->acquire(in_long()), Wait::kGranted);
        EXPECT_EQ(client->segment().arbitration.reaped_count, 1U);
        EXPECT_EQ(kill(process.pid(), 0), 0) << "the process lives on as something else";
        process.kill_now();
    }
}

TEST_F(DeathsTest, AClientWhoseThreadEndedIsReapedAndFaulted) {
    Status status = Status::kOk;
    std::unique_ptr<Client> orphan;
    std::thread([&] {
        orphan = attach(10, 10'000, status);
        ASSERT_TRUE(orphan);
        ASSERT_EQ(orphan->acquire(0), Wait::kGranted);
    }).join();
    ASSERT_TRUE(orphan);
    auto client = attach(20, 10'000, status);
    ASSERT_TRUE(client);
    EXPECT_EQ(client->acquire(0), Wait::kGranted);
    EXPECT_EQ(client->segment().arbitration.reaped_count, 1U);
    EXPECT_EQ(orphan->acquire(in_long()), Wait::kFault);
    EXPECT_FALSE(orphan->usable());
    EXPECT_EQ(orphan->release(), 0U);
    orphan.reset();
    EXPECT_TRUE(client->holding());
}

TEST_F(DeathsTest, DeathIsSeenAcrossPidNamespaces) {
    // Two containers' first processes have the same thread id.
    Shared<Block> block;
    const auto contained = [&](auto&& body) {
        return [&block, body] {
            if (unshare(CLONE_NEWPID) != 0) {
                block->fail = 1;
                return;
            }
            const pid_t first = fork();
            if (first == 0) {
                prctl(PR_SET_PDEATHSIG, SIGKILL);
                body();
                _exit(0);
            }
            block->child_pid = first;
            int status = 0;
            waitpid(first, &status, 0);
            _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 0);
        };
    };
    Process holder(contained([&] {
        CX_CHILD_CHECK(getpid() == 1);
        auto client = must_attach(10);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block->holding = 1;
        for (;;) pause();
    }));
    ASSERT_TRUE(eventually([&] { return block->holding == 1 || block->fail == 1; }));
    if (block->fail == 1) GTEST_SKIP() << "PID namespaces are not permitted here";
    const pid_t held_by = block->child_pid;
    Process other(contained([&] {
        CX_CHILD_CHECK(getpid() == 1);
        auto client = must_attach(20);
        CX_CHILD_CHECK(client->acquire(monotonic_ns() + 200 * kMs) == Wait::kTimedOut);
        block->done = 1;
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
        CX_CHILD_CHECK(client->segment().arbitration.expired_count == 0);
    }));
    ASSERT_TRUE(eventually([&] { return block->done == 1; }));
    kill(held_by, SIGKILL);
    other.expect_success();
}

}  // namespace
}  // namespace crossover
