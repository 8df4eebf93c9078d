// SPDX-License-Identifier: Apache-2.0
// Who is woken by a death, and that nobody looks by the clock. Where the kernel cannot wake for a
// death the results are the same, by looking.
#include <dirent.h>

#include <atomic>
#include <fstream>
#include <vector>

#include "tests/process/processes.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kNever = 3'600'000 * kMs;

bool kernel_wakes_for_many() {
    const std::atomic<std::uint32_t> word{0};
    const FutexWord words[1] = {{&word, 1}};
    return futex_wait_many(words, 1, 0) != FutexWait::kRefused;
}

class WakesTest : public ProcessTest, public testing::WithParamInterface<bool> {
  protected:
    void SetUp() override {
        ProcessTest::SetUp();
        if (!blind() && !kernel_wakes_for_many()) GTEST_SKIP() << "needs Linux 5.16";
        refuse_futex_many(blind());
    }
    void TearDown() override {
        refuse_futex_many(false);
        ProcessTest::TearDown();
    }
    static bool blind() { return GetParam(); }
};

INSTANTIATE_TEST_SUITE_P(Kernels, WakesTest, testing::Values(false, true),
                         [](const testing::TestParamInfo<bool>& row) {
                             return row.param ? "looking" : "woken";
                         });

struct Block {
    std::atomic<int> attached{0}, holding{0}, asleep{0}, done{0};
    std::atomic<std::uint64_t> looks{0}, sleeps{0}, sweeps{0}, lockless{0};
    void add(const WaitCounts& counts) {
        looks += counts.looks;
        sleeps += counts.sleeps;
        sweeps += counts.sweeps;
        lockless += counts.lockless;
    }
};

// Asleep in the kernel, as the system tells.
bool sleeps(pid_t pid) {
    std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
    std::string text(std::istreambuf_iterator<char>(in), {});
    const std::size_t name_end = text.rfind(')');
    return name_end != std::string::npos && text.size() > name_end + 2 && text[name_end + 2] == 'S';
}

TEST_P(WakesTest, AHoldersDeathWakesItsWaiter) {
    for (int round = 0; round < 10; ++round) {
        Shared<Block> block;
        Process holder([&] {
            auto client = must_attach(10);
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            block->holding = 1;
            for (;;) pause();
        });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        Process waiter([&] {
            auto client = must_attach(20);
            client->set_periods(kNever, kNever, kNever);
            block->attached = 1;
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            CX_CHILD_CHECK(client->segment().arbitration.expired_count == 0);
            CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
            block->add(client->wait_counts());
        });
        ASSERT_TRUE(eventually([&] {
            return view().view()->arbitration.turn.waiting_jobs == 1 && sleeps(waiter.pid());
        }));
        holder.kill_now();
        waiter.expect_success();
        EXPECT_GE(block->sleeps, 1U);
        EXPECT_TRUE(blind() || block->looks == 0U) << "woken, not looked";
    }
}

// The order of the turn has gone from one to the next since the waiter fell asleep.
TEST_P(WakesTest, TheDeathOfALaterHolderWakesTheWaiterToo) {
    Shared<Block> block;
    Status status = Status::kOk;
    auto first = attach(10, 10'000, status);
    ASSERT_TRUE(first);
    ASSERT_EQ(first->acquire(0), Wait::kGranted);
    Process waiter([&] {
        auto client = must_attach(30);
        client->set_periods(kNever, kNever, kNever);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block->add(client->wait_counts());
    });
    ASSERT_TRUE(eventually([&] { return first->wanted() && sleeps(waiter.pid()); }));
    // Comes when the waiter sleeps already, and has the turn before it.
    Process second([&] {
        auto client = must_attach(20);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block->holding = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(
        eventually([&] { return first->segment().arbitration.turn.waiting_jobs.load() == 2; }));
    first->release();
    ASSERT_TRUE(eventually([&] { return block->holding == 1 && sleeps(waiter.pid()); }));
    second.kill_now();
    waiter.expect_success();
    EXPECT_TRUE(blind() || block->looks == 0U);
}

TEST_P(WakesTest, ADeadIdleNeighbourIsNoticedByThoseWhoSleep) {
    Shared<Block> block;
    const auto idle = [&](std::uint64_t job) {
        return [&block, this, job] {
            auto client = must_attach(job);
            ++block->attached;
            CX_CHILD_CHECK(eventually([&] { return block->attached == 3; }));
            std::uint32_t seen = client->notice();
            while (client->segment().arbitration.turn.active_jobs == 3) {
                seen = client->sleep(seen, monotonic_ns() + kNever);
            }
            CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
            block->add(client->wait_counts());
            ++block->done;
            CX_CHILD_CHECK(eventually([&] { return block->done == 2; }));
        };
    };
    Process one(idle(10));
    Process two(idle(20));
    Process victim([&] {
        auto client = must_attach(30);
        ++block->attached;
        for (;;) pause();
    });
    ASSERT_TRUE(
        eventually([&] { return block->attached == 3 && sleeps(one.pid()) && sleeps(two.pid()); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));
    victim.kill_now();
    one.expect_success();
    two.expect_success();
    EXPECT_GE(block->sweeps, 1U);
    EXPECT_TRUE(blind() || block->sweeps <= 2U) << "each looks no more than once";
}

// As many others as a device can have. Among them the holder, which dies.
TEST_P(WakesTest, OneWaiterWatchesAllOthers) {
    Shared<Block> block;
    Process holder([&] {
        auto client = must_attach(10);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        block->holding = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
    // In parts: the thread sanitizer bears few locks in one thread.
    constexpr int kCrowds = 6;
    static_assert((kMaxClients - 2) % kCrowds == 0);
    std::vector<std::unique_ptr<Process>> crowds;
    for (int crowd = 0; crowd < kCrowds; ++crowd) {
        crowds.push_back(std::make_unique<Process>([&] {
            std::vector<std::unique_ptr<Client>> own;
            for (std::size_t i = 0; i < (kMaxClients - 2) / kCrowds; ++i) {
                own.push_back(must_attach(15 + i % 20));
            }
            ++block->attached;
            for (;;) pause();
        }));
    }
    ASSERT_TRUE(eventually([&] { return block->attached == kCrowds; }));
    Process waiter([&] {
        auto client = must_attach(50);
        client->set_periods(kNever, kNever, kNever);
        CX_CHILD_CHECK(client->slot() == kMaxClients - 1);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        CX_CHILD_CHECK(client->segment().arbitration.reaped_count == 1);
        block->add(client->wait_counts());
    });
    ASSERT_TRUE(eventually(
        [&] { return view().view()->arbitration.turn.waiting_jobs == 1 && sleeps(waiter.pid()); }));
    holder.kill_now();
    waiter.expect_success();
    EXPECT_TRUE(blind() || block->looks == 0U);
}

// The common hand-over takes the segment's lock once, to give, not to take.
TEST_P(WakesTest, AGrantIsTakenWithoutTheLock) {
    Shared<Block> block;
    Status status = Status::kOk;
    auto client = attach(10, 10'000, status);
    ASSERT_TRUE(client);
    constexpr int kTurns = 20;
    ASSERT_EQ(client->acquire(in_long()), Wait::kGranted) << "the first turn is this one's";
    Process other([&] {
        auto own = must_attach(20);
        block->attached = 1;
        for (int turn = 0; turn < kTurns; ++turn) {
            CX_CHILD_CHECK(own->acquire(in_long()) == Wait::kGranted);
            CX_CHILD_CHECK(own->holding());
            CX_CHILD_CHECK(eventually([&] { return own->wanted(); }));
            CX_CHILD_CHECK(own->release() > 0);
            CX_CHILD_CHECK(!own->holding());
        }
        block->add(own->wait_counts());
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    for (int turn = 0; turn < kTurns; ++turn) {
        ASSERT_EQ(client->acquire(in_long()), Wait::kGranted);
        ASSERT_TRUE(client->holding());
        ASSERT_TRUE(eventually([&] { return client->wanted() && sleeps(other.pid()); }));
        client->release();
    }
    // So that its last turn is wanted, too.
    EXPECT_EQ(client->acquire(in_long()), Wait::kGranted);
    other.expect_success();
    EXPECT_GT(block->lockless, 0U);
}

std::uint64_t voluntary_switches(pid_t pid) {
    const std::string folder = "/proc/" + std::to_string(pid) + "/task/";
    std::uint64_t sum = 0;
    DIR* tasks = opendir(folder.c_str());
    EXPECT_NE(tasks, nullptr);
    while (const dirent* task = readdir(tasks)) {
        std::ifstream in(folder + task->d_name + "/status");
        for (std::string line; std::getline(in, line);) {
            const std::string key = "voluntary_ctxt_switches:";
            if (line.compare(0, key.size(), key) == 0) sum += std::stoull(line.substr(key.size()));
        }
    }
    closedir(tasks);
    return sum;
}

TEST_P(WakesTest, IdleClientsNeverWakeUp) {
    if (blind()) GTEST_SKIP() << "they look once a second";
#ifdef __SANITIZE_THREAD__
    GTEST_SKIP() << "the sanitizer's own thread wakes up";
#endif
    Shared<Block> block;
    const auto idle = [&](std::uint64_t job) {
        return [&block, this, job] {
            auto client = must_attach(job);
            ++block->attached;
            std::uint32_t seen = client->notice();
            for (;;) seen = client->sleep(seen, monotonic_ns() + kNever);
        };
    };
    Process one(idle(10));
    Process two(idle(20));
    ASSERT_TRUE(
        eventually([&] { return block->attached == 2 && sleeps(one.pid()) && sleeps(two.pid()); }));
    std::this_thread::sleep_for(std::chrono::milliseconds(500));
    const std::uint64_t before = voluntary_switches(one.pid()) + voluntary_switches(two.pid());
    EXPECT_GT(before, 0U);
    std::this_thread::sleep_for(std::chrono::seconds(3));
    EXPECT_EQ(voluntary_switches(one.pid()) + voluntary_switches(two.pid()), before);
}

}  // namespace
}  // namespace crossover
