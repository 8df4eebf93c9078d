// SPDX-License-Identifier: Apache-2.0
// Transitions over long histories: seeded random ones with every invariant looked at after each
// step, and ones on damaged segments. Single steps stand in state_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <random>
#include <set>
#include <vector>

#include "arbiter/policy.hpp"
#include "arbiter/state.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

TEST(StateDamage, RandomContentNeverCrashesNorHangs) {
    std::mt19937_64 random(42);
    auto segment = make_segment();
    auto* bytes = reinterpret_cast<unsigned char*>(segment.get());
    const std::size_t tables = offsetof(Segment, ring) + sizeof(EventRing::next);
    for (int trial = 0; trial < 300; ++trial) {
        // Dense damage, or a few wrong bytes in a plausible segment.
        if (trial % 2 == 0) {
            for (std::size_t i = 0; i < tables; ++i)
                bytes[i] = static_cast<unsigned char>(random());
        } else {
            segment = make_segment();
            bytes = reinterpret_cast<unsigned char*>(segment.get());
            Wakes wakes;
            for (std::uint32_t slot = 0; slot < 8; ++slot) {
                Joining joining;
                joining.job_key = 1 + slot % 3;
                attach_client(*segment, slot, joining, 1, wakes);
                request(*segment, slot, 2, wakes);
            }
            for (int i = 0; i < 64; ++i) {
                bytes[random() % tables] = static_cast<unsigned char>(random());
            }
        }
        for (int step = 0; step < 50; ++step) {
            Wakes wakes;
            const auto slot = static_cast<std::uint32_t>(random() % (kMaxClients + 4));
            const std::uint64_t now = random();
            switch (random() % 9) {
                case 0:
                    request(*segment, slot, now, wakes);
                    break;
                case 1:
                    release(*segment, slot, now, wakes);
                    break;
                case 2:
                    withdraw(*segment, slot, now, wakes);
                    break;
                case 3:
                    expire(*segment, now, wakes);
                    break;
                case 4:
                    detach_client(*segment, slot, now, wakes);
                    break;
                case 5:
                    reap_client(*segment, slot, now, wakes);
                    break;
                case 6:
                    rekey_client(*segment, slot, random() | 1, "x", now, wakes);
                    break;
                case 7:
                    repair(*segment, now, wakes);
                    break;
                default:
                    consistent(*segment, nullptr);
                    break;
            }
        }
        // After any damage a repaired segment serves its clients again: its holder submits, and
        // nobody waits while the turn is free.
        Wakes wakes;
        repair(*segment, 1, wakes);
        const std::size_t holder = turn_holder(*segment);
        EXPECT_TRUE(holder != kNoJob ? segment->jobs[holder].claims > 0
                                     : segment->arbitration.turn.waiting_jobs.load() == 0);
    }
}

TEST(StateDamage, ConsistentSeesDamage) {
    const auto damaged = [](auto&& damage) {
        auto segment = make_segment();
        Wakes wakes;
        Joining joining;
        joining.job_key = 9;
        attach_client(*segment, 3, joining, 1, wakes);
        EXPECT_TRUE(consistent(*segment, nullptr));
        damage(*segment);
        return !consistent(*segment, nullptr);
    };
    EXPECT_FALSE(damaged([](Segment&) {}));
    EXPECT_TRUE(damaged([](Segment& s) { s.header.magic ^= 1; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.header.total_bytes += 1; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.header.version = kLayoutVersion + 1; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.arbitration.turn.word = kMaxJobs + 1; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.clients[3].job = kMaxJobs; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.clients[3].job = 7; })) << "a job that is not there";
    EXPECT_TRUE(damaged([](Segment& s) { s.clients[3].attached = 2; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.clients[3].claims = 2; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.clients[3].waits = 5; }));
    EXPECT_TRUE(damaged([](Segment& s) { s.jobs[5].key = 9; })) << "two jobs of one key";
    EXPECT_TRUE(damaged([](Segment& s) { s.jobs[0].state = static_cast<JobState>(77); }));
    EXPECT_TRUE(damaged([](Segment& s) { s.jobs[0].weight = kMaxWeight + 1; }));
    EXPECT_FALSE(damaged([](Segment& s) { s.jobs[0].weight = kMaxWeight; }));
    EXPECT_FALSE(damaged([](Segment& s) { s.jobs[0].debt_ns = INT64_MIN; })) << "any debt";
    const std::uint8_t other[16] = {1};
    EXPECT_FALSE(consistent(*make_segment(), other)) << "another device";
}

// ---- random histories --------------------------------------------------------------------------

// Odd seeds: without weights, where nobody is passed twice. Even ones: with, where only the end
// shows that nobody starves (policy_weights_test.cpp has the bound).
class RandomHistory : public testing::TestWithParam<int> {};

TEST_P(RandomHistory, KeepsTheInvariants) {
    std::mt19937_64 random(static_cast<std::uint64_t>(GetParam()));
    const std::uint64_t jobs = 2 + random() % 7;
    const bool weights = GetParam() % 2 == 0;
    auto segment = make_segment();
    std::uint64_t now = 1'000;
    std::set<std::uint32_t> attached;
    // For each waiting job, how many turns each other job has begun since: at most one.
    std::vector<std::vector<int>> passed(kMaxJobs, std::vector<int>(kMaxJobs, 0));
    std::uint64_t grants = 0;
    for (int step = 0; step < 3'000; ++step) {
        Wakes wakes;
        now += random() % (20 * kMs);
        auto slot = static_cast<std::uint32_t>(random() % 24);
        const std::uint64_t turns = segment->arbitration.turn_count;
        std::vector<bool> waited(kMaxJobs);
        for (std::size_t i = 0; i < kMaxJobs; ++i) {
            waited[i] = segment->jobs[i].state == JobState::kWaiting;
        }
        Joining joining;
        joining.job_key = 1 + random() % jobs;
        if (weights) joining.weight = static_cast<std::uint32_t>(random() % 4);
        switch (random() % 16) {
            case 0:
            case 1:
                if (attached.count(slot) == 0) {
                    ASSERT_EQ(attach_client(*segment, slot, joining, now, wakes), Status::kOk);
                    attached.insert(slot);
                }
                break;
            case 2:
                if (random() % 2 == 0) {
                    detach_client(*segment, slot, now, wakes);
                } else {
                    reap_client(*segment, slot, now, wakes);
                }
                attached.erase(slot);
                break;
            case 3:
                withdraw(*segment, slot, now, wakes);
                break;
            case 4:
                rekey_client(*segment, slot, joining.job_key, "", now, wakes);
                break;
            case 5:
                repair(*segment, now, wakes);
                break;
            case 6:
                expire(*segment, now, wakes);
                break;
            case 7:
            case 8:
            case 9:
            case 10:
            case 11:
                request(*segment, slot, now, wakes);
                break;
            default:
                // Mostly a client that has something to release.
                for (int look = 0; look < 24 && segment->clients[slot].claims.load() == 0; ++look) {
                    slot = (slot + 1) % 24;
                }
                release(*segment, slot, now, wakes);
                break;
        }
        expect_invariants(*segment);
        if (testing::Test::HasFailure()) FAIL() << "seed " << GetParam() << ", step " << step;
        ASSERT_LE(segment->arbitration.turn_count, turns + 1);
        const std::size_t holder = turn_holder(*segment);
        for (std::size_t i = 0; i < kMaxJobs; ++i) {
            if (segment->jobs[i].state != JobState::kWaiting) {
                std::fill(passed[i].begin(), passed[i].end(), 0);
            } else if (waited[i] && segment->arbitration.turn_count != turns && holder != kNoJob) {
                ASSERT_TRUE(++passed[i][holder] <= 1 || weights)
                    << "seed " << GetParam() << ", step " << step;
            }
            if (segment->jobs[i].key == 0) {
                for (auto& row : passed) row[i] = 0;  // another job will be another one
            }
        }
        grants += segment->arbitration.turn_count - turns;
    }
    EXPECT_GT(grants, 100U);
    // And in the end everybody who waits is served, by lease alone.
    for (std::uint64_t turn = 0; segment->arbitration.turn.waiting_jobs.load() != 0; ++turn) {
        ASSERT_LE(turn, jobs);  // nobody asks again
        Wakes wakes;
        now += kMaxLeaseNs;
        ASSERT_TRUE(expire(*segment, now, wakes));
        expect_invariants(*segment);
    }
}

INSTANTIATE_TEST_SUITE_P(Seeds, RandomHistory, testing::Range(1, 41));

}  // namespace
}  // namespace crossover
