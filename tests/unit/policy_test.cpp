// SPDX-License-Identifier: Apache-2.0
// Crossover order and leases as tables, and fairness over seeded random histories. Re-alignment of
// several devices stands in realign_test.cpp; shares by weight in policy_weights_test.cpp.
#include "arbiter/policy.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <vector>

namespace crossover {
namespace {

JobView waiting(std::uint64_t key, std::uint64_t last_round) {
    return {key, true, false, last_round};
}
JobView idle(std::uint64_t key, std::uint64_t last_round) {
    return {key, false, false, last_round};
}
JobView holding(std::uint64_t key, std::uint64_t last_round) {
    return {key, false, true, last_round};
}

struct Case {
    const char* name;
    std::vector<JobView> jobs;
    std::uint64_t round;
    std::size_t job;
    std::uint64_t next_round;
};

class NextGrant : public testing::TestWithParam<Case> {};

TEST_P(NextGrant, FollowsTheTable) {
    const Case& row = GetParam();
    const Grant grant = next_grant(row.jobs, row.round);
    EXPECT_EQ(grant.job, row.job);
    EXPECT_EQ(grant.round, row.next_round);
}

INSTANTIATE_TEST_SUITE_P(
    Table, NextGrant,
    testing::Values(
        Case{"no_jobs", {}, 7, kNoJob, 7},
        Case{"nobody_waits", {idle(10, 0), idle(20, 7)}, 7, kNoJob, 7},
        Case{"somebody_holds", {holding(10, 7), waiting(20, 0)}, 7, kNoJob, 7},
        Case{"only_one_waits", {idle(10, 0), waiting(20, 0)}, 7, 1, 7},
        Case{"free_slots_between", {JobView{}, waiting(20, 0), JobView{}}, 7, 1, 7},
        Case{"lowest_key_first", {waiting(30, 6), waiting(10, 6), waiting(20, 6)}, 7, 1, 7},
        Case{"next_key_in_the_round", {waiting(10, 7), waiting(20, 6), waiting(30, 6)}, 7, 1, 7},
        Case{
            "order_is_by_key_not_by_index", {waiting(30, 6), waiting(20, 6), idle(10, 7)}, 7, 1, 7},
        Case{"all_had_theirs", {waiting(20, 7), waiting(10, 7)}, 7, 1, 8},
        Case{"only_who_had_its_turn_waits", {waiting(10, 7), idle(20, 6)}, 7, 0, 8},
        Case{"late_comer_before_the_reached_place",
             {waiting(10, 6), idle(20, 7), waiting(30, 7)},
             7,
             0,
             8},
        Case{"late_comer_behind_the_reached_place",
             {idle(20, 7), waiting(10, 6), waiting(30, 6)},
             7,
             2,
             7},
        Case{"first_turn_ever", {waiting(5, 0)}, 1, 0, 1},
        Case{"largest_key", {waiting(UINT64_MAX, 6), idle(1, 7)}, 7, 0, 7},
        Case{"largest_key_had_its_turn", {waiting(UINT64_MAX, 7), waiting(1, 6)}, 7, 1, 8}),
    [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

// Jobs come to wait at random; each turn lasts one step. While a job waits every other gets at most
// one turn: nobody starves, whatever the others do.
TEST(NextGrantFairness, EveryOtherJobPassesAWaitingOneAtMostOnce) {
    for (std::size_t count = 2; count <= 8; ++count) {
        std::mt19937_64 random(1000 + count);
        std::vector<JobView> jobs(count);
        for (std::size_t i = 0; i < count; ++i) jobs[i].key = random() | 1;
        std::vector<std::map<std::size_t, int>> passed(count);  // since it waits, by whom
        std::uint64_t round = 1;
        std::size_t grants = 0;
        for (int step = 0; step < 20'000; ++step) {
            // Sometimes everybody wants it, sometimes hardly anybody does.
            const unsigned eagerness = step / 1000 % 2 == 0 ? 2 : 8;
            for (std::size_t i = 0; i < count; ++i) {
                if (!jobs[i].waiting && random() % eagerness == 0) {
                    jobs[i].waiting = true;
                    passed[i].clear();
                }
            }
            const Grant grant = next_grant(jobs, round);
            if (grant.job == kNoJob) continue;
            ASSERT_TRUE(jobs[grant.job].waiting);
            ASSERT_GE(grant.round, round);
            ASSERT_LE(grant.round, round + 1);
            ASSERT_LT(jobs[grant.job].last_round, grant.round) << "two turns in one round";
            round = grant.round;
            jobs[grant.job].waiting = false;
            jobs[grant.job].last_round = round;
            ++grants;
            for (std::size_t i = 0; i < count; ++i) {
                if (i == grant.job || !jobs[i].waiting) continue;
                ASSERT_LE(++passed[i][grant.job], 1) << count << " jobs, step " << step;
            }
        }
        EXPECT_GT(grants, 5'000U);
    }
}

TEST(NextGrantFairness, WorkIsConserved) {
    std::mt19937_64 random(7);
    for (int trial = 0; trial < 10'000; ++trial) {
        std::vector<JobView> jobs(1 + random() % 8);
        bool anyone = false;
        const std::uint64_t round = 1 + random() % 4;
        for (JobView& job : jobs) {
            job = {random() | 1, random() % 2 == 0, false, random() % (round + 1)};
            anyone |= job.waiting;
        }
        EXPECT_EQ(next_grant(jobs, round).job != kNoJob, anyone);
    }
}

constexpr std::uint64_t kMs = 1'000'000;

TEST(Lease, IsTwiceTheRecentTurnWithinBounds) {
    EXPECT_EQ(lease_ns(0, 0), kFirstLeaseNs);
    EXPECT_EQ(lease_ns(1, 0), kMinLeaseNs);
    EXPECT_EQ(lease_ns(25 * kMs, 0), kMinLeaseNs);
    EXPECT_EQ(lease_ns(26 * kMs, 0), 52 * kMs);
    EXPECT_EQ(lease_ns(5'000 * kMs, 0), kMaxLeaseNs);
    EXPECT_EQ(lease_ns(5'001 * kMs, 0), kMaxLeaseNs);
    EXPECT_EQ(lease_ns(kMaxLeaseNs, 0), kMaxLeaseNs);
    EXPECT_EQ(lease_ns(UINT64_MAX, 0), kMinLeaseNs) << "cut for longer than any lease";
}

TEST(Lease, FixedLengthOverrides) {
    EXPECT_EQ(lease_ns(400 * kMs, 1 * kMs), 1 * kMs);
    EXPECT_EQ(lease_ns(0, 10'000 * kMs), kMaxLeaseNs);
    EXPECT_EQ(lease_ns(0, UINT64_MAX), kMaxLeaseNs);
}

TEST(RecentTurn, FirstTurnIsTakenAsItIs) {
    EXPECT_EQ(updated_recent_turn_ns(0, 80 * kMs, false), 80 * kMs);
    EXPECT_EQ(updated_recent_turn_ns(0, 0, false), 1U) << "0 means not known";
}

TEST(RecentTurn, ConvergesFromBothSides) {
    for (const std::uint64_t start : {1 * kMs, 900 * kMs}) {
        std::uint64_t recent = start;
        for (int turn = 0; turn < 100; ++turn) {
            recent = updated_recent_turn_ns(recent, 200 * kMs, false);
        }
        EXPECT_NEAR(static_cast<double>(recent), 200.0 * kMs, 0.01 * 200 * kMs) << start;
    }
}

TEST(RecentTurn, RisesFasterThanItFalls) {
    const std::uint64_t up = updated_recent_turn_ns(100 * kMs, 200 * kMs, false);
    const std::uint64_t down = updated_recent_turn_ns(200 * kMs, 100 * kMs, false);
    EXPECT_EQ(up, 150 * kMs);
    EXPECT_EQ(down, 200 * kMs - 100 * kMs / 8);
}

TEST(RecentTurn, ACutTurnIsPartOfAPhaseThatEndsLater) {
    std::uint64_t recent = updated_recent_turn_ns(0, 100 * kMs, false);
    for (int part = 1; part <= 3; ++part) {
        recent = updated_recent_turn_ns(recent, 200 * kMs, true);
        EXPECT_EQ(recent_mean_ns(recent), 100 * kMs);
        EXPECT_EQ(recent_cut_ns(recent), 200 * kMs * static_cast<std::uint64_t>(part));
        EXPECT_EQ(lease_ns(recent, 0), 200 * kMs) << "others wait no longer than before";
        EXPECT_EQ(expected_turn_ns(recent, 0), 200 * kMs);
    }
    recent = updated_recent_turn_ns(recent, 100 * kMs, false);
    EXPECT_EQ(recent_mean_ns(recent), 400 * kMs) << "half way from 100 ms to 700 ms";
    EXPECT_EQ(recent_cut_ns(recent), 0U);
    EXPECT_EQ(lease_ns(recent, 0), 800 * kMs) << "and the next phase is covered";
}

TEST(RecentTurn, APhaseOfAnyCoveredLengthIsLearntInAFewPhases) {
    for (const std::uint64_t phase : {60 * kMs, 700 * kMs, 3'000 * kMs, 9'000 * kMs}) {
        for (std::uint64_t recent : {std::uint64_t{0}, 1 * kMs, 25 * kMs}) {
            bool covered = false;
            for (int phases = 0; phases < 5; ++phases) {
                std::uint64_t left = phase;
                covered = lease_ns(recent, 0) >= phase;
                while (left > lease_ns(recent, 0)) {
                    const std::uint64_t part = lease_ns(recent, 0);
                    recent = updated_recent_turn_ns(recent, part, true);
                    left -= part;
                }
                recent = updated_recent_turn_ns(recent, left, false);
            }
            EXPECT_TRUE(covered) << phase;
        }
    }
}

// A program that submits a whole iteration at once wants no second turn for what the first one's
// lease cut.
TEST(RecentTurn, APhaseThatEndsWithoutATurnIsLearntInAFewPhases) {
    for (const std::uint64_t phase : {60 * kMs, 700 * kMs, 9'000 * kMs}) {
        for (std::uint64_t recent : {1 * kMs, 25 * kMs}) {
            int cuts = 0;
            for (int phases = 0; phases < 12; ++phases) {
                const std::uint64_t lease = lease_ns(recent, 0);
                if (lease >= phase) {
                    recent = updated_recent_turn_ns(recent, phase, false);
                    continue;
                }
                ++cuts;
                recent = updated_recent_turn_ns(recent, lease, true);
                recent = recent_after_cut_phase(recent, phase);
                EXPECT_EQ(recent_cut_ns(recent), 0U);
            }
            EXPECT_LE(cuts, 2) << phase;
        }
    }
    EXPECT_EQ(recent_after_cut_phase(25 * kMs, 700 * kMs), 25 * kMs) << "nothing was cut";
}

TEST(RecentTurn, AJobThatNeverDrainsGetsASlice) {
    for (std::uint64_t recent : {std::uint64_t{0}, 400 * kMs, 5'000 * kMs}) {
        std::uint64_t had = 0;
        std::uint64_t longest = 0;
        const std::uint64_t first = lease_ns(recent, 0);
        for (int turn = 0; turn < 100'000; ++turn) {
            const std::uint64_t lease = lease_ns(recent, 0);
            longest = std::max(longest, lease);
            if (had > kMaxLeaseNs) {
                ASSERT_EQ(lease, kMinLeaseNs) << "turn " << turn;
            }
            recent = updated_recent_turn_ns(recent, lease, true);
            had += lease;
        }
        EXPECT_EQ(longest, first) << "no cut makes the others wait longer";
        // Its phase ends once: the lease it starts from shrinks each time, down to the slice.
        for (int phase = 0; phase < 12; ++phase) {
            recent = updated_recent_turn_ns(recent, kMs, false);
            recent = updated_recent_turn_ns(recent, kMaxLeaseNs, true);
            recent = updated_recent_turn_ns(recent, kMaxLeaseNs, true);
        }
        recent = updated_recent_turn_ns(recent, kMs, false);
        EXPECT_EQ(lease_ns(recent, 0), kMinLeaseNs);
    }
}

TEST(RecentTurn, OnePhaseBeyondAllLeasesIsAnException) {
    const std::uint64_t recent = updated_recent_turn_ns(400 * kMs, 3'600'000 * kMs, false);
    EXPECT_EQ(lease_ns(recent, 0), 400 * kMs) << "it still covers the usual phase";
}

TEST(RecentTurn, StaysBounded) {
    for (const bool cut : {false, true}) {
        for (const std::uint64_t recent : {std::uint64_t{0}, kMaxLeaseNs, UINT64_MAX}) {
            for (const std::uint64_t turn : {std::uint64_t{0}, kMaxLeaseNs, UINT64_MAX}) {
                const std::uint64_t next = updated_recent_turn_ns(recent, turn, cut);
                EXPECT_LE(recent_mean_ns(next), kMaxLeaseNs);
                EXPECT_GE(recent_cut_ns(next), cut ? kMs : 0);
                EXPECT_GE(lease_ns(next, 0), kMinLeaseNs);
                EXPECT_LE(lease_ns(next, 0), kMaxLeaseNs);
            }
        }
    }
    EXPECT_EQ(recent_mean_ns(updated_recent_turn_ns(kMaxLeaseNs, kMaxLeaseNs, false)), kMaxLeaseNs);
}

TEST(ExpectedTurn, IsTheMeanOrTheLeaseThatCutsIt) {
    EXPECT_EQ(expected_turn_ns(0, 0), 0U);
    EXPECT_EQ(expected_turn_ns(80 * kMs, 0), 80 * kMs);
    EXPECT_EQ(expected_turn_ns(80 * kMs, 5 * kMs), 5 * kMs);
    EXPECT_EQ(expected_turn_ns(updated_recent_turn_ns(0, 1'000 * kMs, true), 0), kFirstLeaseNs);
}

}  // namespace
}  // namespace crossover
