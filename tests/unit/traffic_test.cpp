// SPDX-License-Identifier: Apache-2.0
// The counting of launching threads, and the handshake by which the turn is given back only while
// nobody launches.
#include "shim/gate/traffic.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

namespace crossover {
namespace {

TEST(Traffic, CountsThoseInsideAndWhatTheyLaunched) {
    Traffic traffic;
    traffic.begin_launch();
    EXPECT_EQ(traffic.sum().launching, 1U);
    EXPECT_EQ(traffic.sum().users, 1U);
    traffic.step_out();
    EXPECT_EQ(traffic.sum().launching, 0U);
    EXPECT_EQ(traffic.sum().users, 1U);
    traffic.step_in();
    traffic.end_launch(true);
    EXPECT_EQ(traffic.sum().launching, 0U);
    EXPECT_EQ(traffic.sum().users, 0U);
    EXPECT_EQ(traffic.sum().launches, 1U);
    traffic.begin_launch();
    traffic.end_launch(false);  // refused by the driver
    EXPECT_EQ(traffic.sum().launches, 1U);
    traffic.begin_use();
    EXPECT_EQ(traffic.sum().users, 1U);
    EXPECT_EQ(traffic.sum().launching, 0U);
    traffic.end_use();
}

TEST(Traffic, ClosesOnlyWhileNobodyLaunchesAndNothingWasLaunchedSince) {
    Traffic traffic;
    EXPECT_TRUE(traffic.close(0));
    EXPECT_TRUE(traffic.closing());
    traffic.open();
    EXPECT_FALSE(traffic.closing());
    traffic.begin_launch();
    EXPECT_FALSE(traffic.close(0));
    traffic.open();
    traffic.end_launch(true);
    EXPECT_FALSE(traffic.close(0));
    traffic.open();
    EXPECT_TRUE(traffic.close(1));
    traffic.open();
    traffic.begin_use();  // waits for the turn: no reason to keep it
    EXPECT_TRUE(traffic.close(1));
    traffic.end_use();
}

TEST(Traffic, WaitsUntilWhoIsInHasBeenOut) {
    constexpr std::uint64_t kLong = 60'000'000'000;
    Traffic traffic;
    EXPECT_TRUE(traffic.wait_out(monotonic_ns()));
    traffic.begin_use();  // waits for the turn: launches nothing
    EXPECT_TRUE(traffic.wait_out(monotonic_ns()));
    std::atomic<bool> in{false};
    std::atomic<bool> leave{false};
    std::atomic<bool> left{false};
    std::thread launching([&] {
        traffic.begin_launch();
        in = true;
        while (!leave) std::this_thread::yield();
        left = true;
        traffic.end_launch(true);
    });
    while (!in) std::this_thread::yield();
    EXPECT_FALSE(traffic.wait_out(monotonic_ns())) << "it is in the driver";
    leave = true;
    EXPECT_TRUE(traffic.wait_out(monotonic_ns() + kLong));
    EXPECT_TRUE(left);
    launching.join();
    traffic.end_use();
}

TEST(Traffic, SumsOverMoreThreadsThanItHasCounters) {
    Traffic traffic;
    constexpr int kThreads = 80;
    constexpr std::uint64_t kLaunches = 200;
    std::atomic<int> inside{0};
    std::atomic<bool> go{false};
    std::vector<std::thread> threads;
    for (int each = 0; each < kThreads; ++each) {
        threads.emplace_back([&] {
            for (std::uint64_t launch = 0; launch < kLaunches; ++launch) {
                traffic.begin_launch();
                traffic.end_launch(true);
            }
            traffic.begin_launch();
            inside.fetch_add(1);
            while (!go.load()) std::this_thread::yield();
            traffic.end_launch(false);
        });
    }
    while (inside.load() != kThreads) std::this_thread::yield();
    EXPECT_EQ(traffic.sum().launching, static_cast<std::uint32_t>(kThreads));
    EXPECT_EQ(traffic.sum().users, static_cast<std::uint32_t>(kThreads));
    EXPECT_EQ(traffic.sum().launches, kThreads * kLaunches);
    go = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(traffic.sum().launching, 0U);
    EXPECT_EQ(traffic.sum().users, 0U);
}

// A turn is given back and taken again as fast as it goes while threads launch as the gate does.
// None may launch after the turn is gone, and each give-back must have seen every launch of its
// turn.
TEST(Traffic, NobodyLaunchesWithoutTheTurn) {
    Traffic traffic;
    std::atomic<bool> held{true};
    std::atomic<bool> stop{false};
    std::atomic<std::uint64_t> submitted{0};  // what the driver has
    std::atomic<std::uint64_t> without_turn{0};
    std::vector<std::thread> threads;
    for (int each = 0; each < 4; ++each) {
        threads.emplace_back([&] {
            for (std::uint64_t turn = 0; !stop.load(std::memory_order_relaxed); ++turn) {
                // Launches come in bursts, or the gate would never find nobody inside.
                if (turn % 64 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
                traffic.begin_launch();
                if (traffic.closing() || !held.load(std::memory_order_acquire)) {
                    traffic.end_launch(false);
                    continue;
                }
                without_turn += held.load(std::memory_order_seq_cst) ? 0 : 1;
                submitted.fetch_add(1, std::memory_order_relaxed);
                without_turn += held.load(std::memory_order_seq_cst) ? 0 : 1;
                traffic.end_launch(true);
            }
        });
    }
    std::uint64_t given_back = 0;
    std::uint64_t unseen = 0;
    while (given_back < 5'000 || submitted.load(std::memory_order_relaxed) < 100'000) {
        const std::uint64_t launches = traffic.sum().launches;
        if (traffic.close(launches)) {
            unseen += submitted.load(std::memory_order_relaxed) == launches ? 0 : 1;
            held.store(false, std::memory_order_release);
            ++given_back;
        }
        traffic.open();
        held.store(true, std::memory_order_release);
    }
    stop = true;
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(without_turn.load(), 0U);
    EXPECT_EQ(unseen, 0U);
    EXPECT_EQ(traffic.sum().launches, submitted.load());
    EXPECT_GT(submitted.load(), 0U);
}

}  // namespace
}  // namespace crossover
