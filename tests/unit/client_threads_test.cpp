// SPDX-License-Identifier: Apache-2.0
// Real contention inside one process, for the thread sanitizer above all: attaching threads with a
// job each, launching threads on every client, attaching threads that end without leaving. What
// needs processes is in tests/process; nothing of the order of turns is judged here.
#include <gtest/gtest.h>
#include <stdlib.h>

#include <atomic>
#include <barrier>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "arbiter/client.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/policy.hpp"
#include "arbiter/ring.hpp"
#include "arbiter/segment.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kLongNs = 60'000 * kMs;  // "something hangs"

std::uint64_t in_long() { return monotonic_ns() + kLongNs; }

class ClientThreadsTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "crossover-threads-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        device_.bytes[0] = 7;
    }
    void TearDown() override { std::filesystem::remove_all(root_); }

    std::unique_ptr<Client> attach(std::uint64_t key, std::uint64_t lease_ms) const {
        Options options;
        root_.copy(options.dir, sizeof options.dir - 1);
        options.lease_ms = lease_ms;
        JobIdentity job;
        job.key = key;
        std::snprintf(job.name, sizeof job.name, "job%llu", static_cast<unsigned long long>(key));
        Status status = Status::kOk;
        std::unique_ptr<Client> client = Client::attach(device_, job, 0, options, status);
        EXPECT_NE(client, nullptr) << status_text(status);
        return client;
    }
    bool file_exists() const { return !std::filesystem::is_empty(root_); }

    std::string root_;
    DeviceUuid device_;
};

// The claim of a job's clients, kept as the launching threads of several clients do: shared among
// the threads of a job, never beside another job.
struct Inside {
    std::atomic<int> threads{0};
    std::atomic<int> overlaps{0};
};

// Threads of one job inside at once are right; so the job's own count decides.
void compute(std::vector<Inside>& jobs, std::size_t me) {
    jobs[me].threads.fetch_add(1);
    for (std::size_t other = 0; other < jobs.size(); ++other) {
        if (other != me && jobs[other].threads.load() != 0) jobs[me].overlaps.fetch_add(1);
    }
    std::this_thread::yield();
    jobs[me].threads.fetch_sub(1);
}

TEST_F(ClientThreadsTest, JobsInThreadsNeverOverlap) {
    constexpr std::size_t kJobs = 4;
    constexpr int kTurns = 300;
    std::vector<Inside> inside(kJobs);
    std::barrier start(kJobs);
    std::vector<std::thread> threads;
    std::atomic<int> granted{0};
    for (std::size_t me = 0; me < kJobs; ++me) {
        threads.emplace_back([&, me] {
            auto client = attach(10 + me, 10'000);  // its lease is never what ends a turn
            start.arrive_and_wait();
            for (int turn = 0; turn < kTurns && client != nullptr; ++turn) {
                if (client->acquire(in_long()) != Wait::kGranted) break;
                granted.fetch_add(1);
                compute(inside, me);
                client->release();
            }
            start.arrive_and_wait();
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(granted.load(), static_cast<int>(kJobs) * kTurns);
    for (const Inside& job : inside) EXPECT_EQ(job.overlaps.load(), 0);
    EXPECT_FALSE(file_exists()) << "the last one removed it";
}

TEST_F(ClientThreadsTest, APhaseThatItsLeaseCutIsToldOfWhereItEndsWithoutATurn) {
    auto cut = attach(10, 5);
    auto other = attach(20, 10'000);
    ASSERT_NE(cut, nullptr);
    ASSERT_NE(other, nullptr);
    const auto memory = [&] {
        const Segment& segment = cut->segment();
        return segment.jobs[segment.clients[cut->slot()].job].recent_turn_ns;
    };
    ASSERT_EQ(cut->acquire(in_long()), Wait::kGranted);
    cut->phase_over(300 * kMs);
    EXPECT_EQ(memory(), 0U) << "it has the turn";
    std::thread waiter([&] { EXPECT_EQ(other->acquire(in_long()), Wait::kGranted); });
    waiter.join();
    EXPECT_FALSE(cut->holding());
    EXPECT_NE(recent_cut_ns(memory()), 0U);
    cut->phase_over(300 * kMs);
    EXPECT_EQ(memory(), 300 * kMs);
    cut->phase_over(9 * kMs);
    EXPECT_EQ(memory(), 300 * kMs) << "nothing is cut any more";
}

// What the gate's threads do with one client, all at once: several launch, one watches and gives
// the turn back, one tells phases and events, now and then the job gets another name.
TEST_F(ClientThreadsTest, EveryCallFromEveryThreadAtOnce) {
    constexpr std::uint64_t kClients = 3;
    constexpr int kRounds = 200;
    std::barrier start(kClients);
    std::atomic<std::uint64_t> granted{0};
    std::atomic<std::uint64_t> aborted{0};
    std::atomic<std::uint64_t> bad{0};
    std::vector<std::thread> owners;
    for (std::uint64_t me = 0; me < kClients; ++me) {
        owners.emplace_back([&, me] {
            auto client = attach(100 + me, 1);  // leases run out all the time
            start.arrive_and_wait();
            std::atomic<int> launching{2};
            std::vector<std::thread> others;
            for (int launcher = 0; client != nullptr && launcher < 2; ++launcher) {
                others.emplace_back([&] {
                    for (int round = 0; round < kRounds; ++round) {
                        if (!client->holding()) {
                            const Wait wait = client->acquire(monotonic_ns() + 20 * kMs);
                            if (wait == Wait::kGranted) granted.fetch_add(1);
                            if (wait == Wait::kAborted) aborted.fetch_add(1);
                            if (wait == Wait::kFault) bad.fetch_add(1);
                        }
                        client->count_crossing();
                        if (round % 3 == 0) client->release();
                    }
                    launching.fetch_sub(1);
                });
            }
            others.emplace_back([&] {  // the watcher
                std::uint32_t seen = client != nullptr ? client->notice() : 0;
                while (client != nullptr && launching.load() != 0) {
                    seen = client->sleep(seen, monotonic_ns() + kMs);
                    if (client->wanted() && client->holding()) client->release();
                    client->set_phase(ClientPhase::kCommunicating, monotonic_ns());
                    client->record(EventKind::kWindowOpen, 1, monotonic_ns());
                    client->add_exposed(1);
                }
            });
            others.emplace_back([&] {  // a stop for all launching threads, and another name
                std::mt19937_64 random(me);
                while (client != nullptr && launching.load() != 0) {
                    client->let_go();
                    client->wake();
                    client->allow();
                    JobIdentity job;
                    job.key = 200 + random() % (2 * kClients);
                    if (client->rekey(job) != Status::kOk) bad.fetch_add(1);
                    client->set_mode(Mode::kOn);
                    std::this_thread::sleep_for(std::chrono::microseconds(500));
                }
                if (client != nullptr) client->allow();
            });
            // A reader without a lock, as `crossover status` and `trace` are.
            while (client != nullptr && launching.load() != 0) {
                const EventBatch batch = read_events(client->segment(), 0);
                if (batch.next < batch.events.size()) bad.fetch_add(1);
                std::this_thread::yield();
            }
            for (std::thread& other : others) other.join();
        });
    }
    for (std::thread& owner : owners) owner.join();
    EXPECT_EQ(bad.load(), 0U);
    EXPECT_GT(granted.load(), kClients);
    EXPECT_FALSE(file_exists()) << "the last one removed it";
}

// A client whose attaching thread ends without leaving is dead: its turn goes to those who wait,
// and its slot can be used again.
TEST_F(ClientThreadsTest, ThreadsThatEndWhileHoldingAreReaped) {
    constexpr int kDeaths = 60;
    constexpr std::size_t kLiving = 2;
    std::vector<std::unique_ptr<Client>> graves;  // never destroyed by the thread that attached
    std::atomic<bool> over{false};
    std::atomic<std::uint64_t> turns{0};
    std::atomic<int> bad{0};
    std::barrier ready(kLiving + 1);
    std::vector<std::thread> living;
    for (std::size_t me = 0; me < kLiving; ++me) {
        living.emplace_back([&, me] {
            auto client = attach(10 + me, 10'000);
            ready.arrive_and_wait();
            while (client != nullptr && !over.load()) {
                if (client->acquire(in_long()) != Wait::kGranted) {
                    bad.fetch_add(1);
                    break;
                }
                turns.fetch_add(1);
                client->release();
            }
        });
    }
    ready.arrive_and_wait();
    int served = 0;
    for (int death = 0; death < kDeaths && bad.load() == 0; ++death) {
        const std::uint64_t before = turns.load();
        std::thread([&] {
            auto client = attach(50 + static_cast<std::uint64_t>(death % 5), 10'000);
            if (client == nullptr || client->acquire(in_long()) != Wait::kGranted) bad.fetch_add(1);
            graves.push_back(std::move(client));
        }).join();
        // Those who wait get its turn.
        const std::uint64_t deadline_ns = in_long();
        while (turns.load() < before + 2 * kLiving && monotonic_ns() < deadline_ns) {
            std::this_thread::sleep_for(std::chrono::microseconds(200));
        }
        if (turns.load() < before + 2 * kLiving) break;
        ++served;
    }
    over = true;
    for (std::thread& thread : living) thread.join();
    EXPECT_EQ(served, kDeaths);
    ASSERT_FALSE(graves.empty());
    ASSERT_NE(graves.front(), nullptr);
    // By reaping: their leases of ten seconds ended none of them.
    const Arbitration& arbitration = graves.front()->segment().arbitration;
    EXPECT_GE(arbitration.reaped_count, static_cast<std::uint64_t>(kDeaths));
    EXPECT_EQ(arbitration.expired_count, 0U);
    EXPECT_EQ(bad.load(), 0);
}

}  // namespace
}  // namespace crossover
