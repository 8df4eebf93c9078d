// SPDX-License-Identifier: Apache-2.0
// Clients in containers: the same process and thread ids on both sides, ids that are used again,
// one folder that all of them see. Needs the permission to make namespaces; skips without it.
#include "tests/places/containers.hpp"

#include <sys/syscall.h>

#include <set>
#include <vector>

namespace crossover {
namespace {

// Whether the containers have user namespaces as well.
class ContainersTest : public ProcessTest, public testing::WithParamInterface<bool> {
  protected:
    struct Block {
        std::atomic<int> inside{0}, overlaps{0}, attached{0}, stop{0};
        std::atomic<int> turns[2]{};
        std::atomic<int> holding{0};
    };

    void SetUp() override {
        ProcessTest::SetUp();
        if (!containers_permitted(GetParam())) GTEST_SKIP() << "namespaces are not permitted here";
    }

    std::unique_ptr<Container> container(const std::function<void()>& body) const {
        return std::make_unique<Container>(GetParam(), [body] {
            // All of them: whatever tells clients apart, it is not these.
            CX_CHILD_CHECK(getpid() == 1 && syscall(SYS_gettid) == 1);
            body();
        });
    }

    // A client that takes turns until it is told to stop.
    void take_turns(std::uint64_t job, int place, Block& block) const {
        auto client = must_attach(job);
        ++block.attached;
        CX_CHILD_CHECK(eventually([&] { return block.attached == 2; }));
        while (block.stop == 0) {
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            if (block.inside.fetch_add(1) != 0) ++block.overlaps;
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            block.inside.fetch_sub(1);
            ++block.turns[place];
            client->release();
        }
    }

    // A client that has the turn and never gives it back.
    void hold(std::uint64_t job, Block& block) const {
        auto client = must_attach(job);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block.holding = 1;
        for (;;) pause();
    }
};

TEST_P(ContainersTest, OfEqualProcessIdsTakeTurns) {
    Shared<Block> block;
    auto one = container([&] { take_turns(10, 0, *block); });
    auto two = container([&] { take_turns(20, 1, *block); });
    ASSERT_TRUE(eventually([&] { return block->turns[0] > 300 && block->turns[1] > 300; }));
    {
        const MappedSegment segment = view();
        std::set<std::uint32_t> jobs;
        for (const ClientSlot& client : segment.view()->clients) {
            if (client.attached.load() == 0) continue;
            EXPECT_EQ(client.pid, 1U);
            EXPECT_TRUE(jobs.insert(client.job).second);
        }
        EXPECT_EQ(jobs.size(), 2U);
        EXPECT_EQ(segment.view()->arbitration.reaped_count, 0U);
        // Two in turn: nobody has had many more than the other since both came.
        const std::uint64_t turns[] = {segment.view()->jobs[*jobs.begin()].turns,
                                       segment.view()->jobs[*jobs.rbegin()].turns};
        EXPECT_GT(std::min(turns[0], turns[1]), 300U);
    }
    block->stop = 1;
    one->expect_success();
    two->expect_success();
    EXPECT_EQ(block->overlaps, 0);
    EXPECT_FALSE(file_exists());
}

TEST_P(ContainersTest, AKilledOneHoldsNothing) {
    Shared<Block> block;
    auto victim = container([&] { hold(10, *block); });
    ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
    auto other = container([&] {
        auto client = must_attach(20);
        block->attached = 1;
        // The lease is 10 s: the turn comes since the dead one is found.
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
        CX_CHILD_CHECK(client->segment().arbitration.expired_count == 0);
        CX_CHILD_CHECK(eventually([&] { return !client->contended(); }));
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    victim->kill_now();
    other->expect_success();
    EXPECT_FALSE(file_exists());
}

TEST_P(ContainersTest, ANewOneWithTheDeadOnesIdsIsAnother) {
    in_files_ = true;  // memory goes with the dead one
    Shared<Block> block;
    for (int round = 0; round < 5; ++round) {
        block->holding = 0;
        auto victim = container([&] { hold(10, *block); });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        victim->kill_now();
        // Process 1, thread 1, like the one whose locks lie in the file.
        auto heir = container([&] {
            auto client = must_attach(20);
            CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
            CX_CHILD_CHECK(!client->contended());
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        });
        heir->expect_success();
        EXPECT_FALSE(file_exists());
    }
}

// fork() whose child has the id that is asked for; -1 where the kernel does not offer that.
pid_t fork_with_id(pid_t id) {
    if (!write_text("/proc/sys/kernel/ns_last_pid", std::to_string(id - 1))) return -1;
    const pid_t child = fork();
    if (child == 0) {
        CX_CHILD_CHECK(getpid() == id);
        prctl(PR_SET_PDEATHSIG, SIGKILL);
    }
    return child;
}

TEST_P(ContainersTest, AnIdUsedAgainBesideAThirdIsAnother) {
    // In one PID namespace: a client is killed in its turn, and a process of another job gets its
    // very id while a third job waits. Neither is the dead one held for living nor the new one for
    // dead.
    constexpr pid_t kId = 100;
    in_files_ = true;  // memory goes with the dead one
    Shared<Block> block;
    auto all = container([&] {
        pid_t child = fork_with_id(kId);
        if (child < 0) _exit(kNotPermitted);
        if (child == 0) hold(10, *block);
        CX_CHILD_CHECK(eventually([&] { return block->holding == 1; }));
        kill(child, SIGKILL);
        CX_CHILD_CHECK(waitpid(child, nullptr, 0) == child);
        child = fork_with_id(kId);
        CX_CHILD_CHECK(child >= 0);
        if (child == 0) {
            {
                auto client = must_attach(20);
                CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                block->attached = 1;
                CX_CHILD_CHECK(eventually([&] { return block->stop == 1; }));
                client->release();
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            }
            _exit(0);
        }
        CX_CHILD_CHECK(eventually([&] { return block->attached == 1; }));
        auto third = must_attach(30);
        // Long enough to look at the holder more than once.
        CX_CHILD_CHECK(third->acquire(monotonic_ns() + 300 * kMs) == Wait::kTimedOut);
        CX_CHILD_CHECK(third->segment().arbitration.reaped_count == 1);
        block->stop = 1;
        CX_CHILD_CHECK(third->acquire(in_long()) == Wait::kGranted);
        third->release();
        int status = -1;
        CX_CHILD_CHECK(waitpid(child, &status, 0) == child && status == 0);
    });
    const int status = all->wait();
    if (status == kNotPermitted) GTEST_SKIP() << "process ids cannot be chosen here";
    EXPECT_EQ(status, 0);
}

INSTANTIATE_TEST_SUITE_P(All, ContainersTest, testing::Bool(),
                         [](const auto& row) { return row.param ? "with_users" : "plain"; });

}  // namespace
}  // namespace crossover
