// SPDX-License-Identifier: Apache-2.0
// When at_thread_end() calls, and when not.
#include "shim/inference/thread_end.hpp"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>
#include <utility>
#include <vector>

#include "shim/inference/windows.hpp"

namespace crossover {
namespace {

TEST(ThreadEnd, CallsOnTheThreadItselfTheLatestFirst) {
    static std::vector<std::pair<std::uintptr_t, std::uint64_t>> calls;
    calls.clear();
    std::uint64_t thread = 0;
    const AtThreadEnd note = [](std::uintptr_t value) noexcept {
        calls.emplace_back(value, current_thread_number());
    };
    std::thread([&] {
        thread = current_thread_number();
        EXPECT_TRUE(at_thread_end(note, 1));
        EXPECT_TRUE(at_thread_end(note, 2));
        EXPECT_TRUE(calls.empty());
    }).join();
    ASSERT_EQ(calls.size(), 2U);
    EXPECT_EQ(calls[0], std::pair(std::uintptr_t{2}, thread));
    EXPECT_EQ(calls[1], std::pair(std::uintptr_t{1}, thread));
}

TEST(ThreadEndDeathTest, TheEndOfTheProcessCallsNothing) {
    EXPECT_EXIT(
        {
            at_thread_end([](std::uintptr_t) noexcept { _exit(9); }, 0);
            std::exit(3);
        },
        testing::ExitedWithCode(3), "");
}

}  // namespace
}  // namespace crossover
