// SPDX-License-Identifier: Apache-2.0
// Weights and debts through the life of jobs and clients; and leases in virtual time: what a large
// job, or one that never drains, costs a small one. The rule itself stands in
// policy_weights_test.cpp.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <vector>

#include "arbiter/policy.hpp"
#include "arbiter/state.hpp"
#include "tests/unit/state_fixture.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::int64_t kMsDebt = 1'000'000;

class StateWeights : public StateFixture {
  protected:
    std::uint32_t attach(std::uint64_t key, std::uint32_t weight,
                         std::uint64_t fixed_lease_ns = 0) {
        Joining joining;
        joining.job_key = key;
        joining.weight = weight;
        joining.fixed_lease_ns = fixed_lease_ns;
        return join(joining);
    }
    std::int64_t debt(std::uint32_t slot) { return job_of(slot).debt_ns; }

    // b holds for 40 ms and a for 10 ms; a waits and b is 30 ms ahead of it.
    void make_debt(std::uint32_t a, std::uint32_t b) {
        EXPECT_TRUE(ask(b));
        EXPECT_FALSE(ask(a));
        now_ += 40 * kMs;
        give_back(b);
        EXPECT_TRUE(claims(a));
        now_ += 10 * kMs;
    }
};

TEST_F(StateWeights, TheNewestClientsWeightCounts) {
    const std::uint32_t a = attach(10, 5);
    EXPECT_EQ(job_of(a).weight, 5U);
    attach(10, 7);
    EXPECT_EQ(job_of(a).weight, 7U);
    attach(10, 5'000'000);
    EXPECT_EQ(job_of(a).weight, kMaxWeight);
    attach(10, 0);
    EXPECT_EQ(job_of(a).weight, 0U);
}

TEST_F(StateWeights, NoWeightNoDebt) {
    const std::uint32_t a = attach(10, 0);
    const std::uint32_t b = attach(20, 0);
    make_debt(a, b);
    EXPECT_FALSE(ask(b));
    give_back(a);
    EXPECT_TRUE(claims(b));
    EXPECT_EQ(debt(a), 0);
    EXPECT_EQ(debt(b), 0);
}

TEST_F(StateWeights, ATurnBesideOthersIsOwed) {
    const std::uint32_t a = attach(10, 1);
    EXPECT_TRUE(ask(a));
    now_ += 3'600'000 * kMs;  // alone: nobody's share
    const std::uint32_t b = attach(20, 4);
    now_ += 30 * kMs;
    EXPECT_FALSE(ask(b));
    give_back(a);
    EXPECT_EQ(debt(a), 30 * kMsDebt);
    EXPECT_TRUE(claims(b));
    now_ += 8 * kMs;
    give_back(b);
    EXPECT_EQ(debt(b), 8 * kMsDebt);
}

TEST_F(StateWeights, WhoIsAheadOfItsShareLetsTheOthersGoFirst) {
    const std::uint32_t a = attach(10, 1);
    const std::uint32_t b = attach(20, 1);
    const std::uint32_t c = attach(30, 1);
    make_debt(a, b);
    EXPECT_FALSE(ask(b));
    EXPECT_FALSE(ask(c));
    give_back(a);
    EXPECT_TRUE(claims(c)) << "40 ms against none";
    EXPECT_FALSE(ask(a));
    now_ += 10 * kMs;
    give_back(c);
    EXPECT_TRUE(claims(a)) << "40 ms against 10, though b has the higher key";
}

TEST_F(StateWeights, DebtOutlivesAClientButNotItsJob) {
    const std::uint32_t a = attach(10, 1);
    const std::uint32_t b0 = attach(20, 1);
    const std::uint32_t b1 = attach(20, 1);
    make_debt(a, b0);
    const std::int64_t owed = debt(b1);
    EXPECT_GT(owed, 20 * kMsDebt);
    reap_client(*segment_, b0, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_EQ(debt(b1), owed);
    detach_client(*segment_, b1, now_, fresh());
    const std::uint32_t again = attach(20, 1);
    EXPECT_EQ(debt(again), 0) << "a job that comes begins level";
}

TEST_F(StateWeights, ADeadHoldersTurnIsOwedByItsJob) {
    const std::uint32_t a = attach(10, 1);
    const std::uint32_t b0 = attach(20, 1);
    const std::uint32_t b1 = attach(20, 1);
    EXPECT_TRUE(ask(b0));
    EXPECT_FALSE(ask(a));
    now_ += 40 * kMs;
    reap_client(*segment_, b0, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(a));
    EXPECT_EQ(debt(b1), 40 * kMsDebt);
}

TEST_F(StateWeights, ACutTurnIsOwedToo) {
    const std::uint32_t a = attach(10, 1, 30 * kMs);
    const std::uint32_t b = attach(20, 1);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    now_ += 30 * kMs;
    EXPECT_TRUE(expire(*segment_, now_, fresh()));
    expect_invariants(*segment_);
    EXPECT_EQ(debt(a), 30 * kMsDebt);
    EXPECT_TRUE(claims(b));
}

TEST_F(StateWeights, RekeyTakesWeightAndDebtAlong) {
    const std::uint32_t a = attach(10, 3);
    const std::uint32_t b = attach(20, 2);
    make_debt(a, b);
    const std::int64_t owed = debt(b);
    EXPECT_GT(owed, 20 * kMsDebt);
    EXPECT_EQ(rekey_client(*segment_, b, 30, "new", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_EQ(job_of(b).weight, 2U);
    EXPECT_EQ(debt(b), owed);
    // The turn it holds is counted before it goes.
    give_back(a);
    EXPECT_TRUE(ask(b));
    now_ += 5 * kMs;
    const std::int64_t before = debt(b);
    EXPECT_EQ(rekey_client(*segment_, b, 40, "newer", now_, fresh()), Status::kOk);
    EXPECT_EQ(debt(b), before + 5 * kMsDebt);
    // Into a job that is there, it takes that one's.
    EXPECT_EQ(rekey_client(*segment_, b, 10, "a", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_EQ(job_of(b).weight, 3U);
}

TEST_F(StateWeights, DebtsAreForgottenWithTheLastWeight) {
    const std::uint32_t a = attach(10, 0);
    const std::uint32_t b = attach(20, 0);
    const std::uint32_t weighty = attach(30, 3);
    make_debt(a, b);
    EXPECT_GT(debt(b), 0);
    detach_client(*segment_, weighty, now_, fresh());
    EXPECT_FALSE(ask(b));
    give_back(a);
    EXPECT_TRUE(claims(b));
    EXPECT_EQ(debt(a), 0);
    EXPECT_EQ(debt(b), 0);
}

// A death while a turn is ended: it may have been counted, it must not be counted twice or as
// hours.
TEST_F(StateWeights, ATurnWhoseEndWasCutShortIsNotCountedAgain) {
    const std::uint32_t a = attach(10, 1);
    const std::uint32_t b = attach(20, 1);
    EXPECT_TRUE(ask(b));
    EXPECT_FALSE(ask(a));
    now_ += 40 * kMs;
    JobSlot& job = job_of(b);
    job.turn_since_ns = 0;  // what ending a turn stores first
    job.held_ns += 40 * kMs;
    job.debt_ns += 40 * kMsDebt;
    segment_->clients[b].claims.store(0);
    repair(*segment_, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(a));
    EXPECT_EQ(job.held_ns, 40 * kMs);
    EXPECT_EQ(debt(b), 40 * kMsDebt);
    EXPECT_EQ(job.recent_turn_ns, 0U);
}

// ---- one device in virtual time -----------------------------------------------------------------

struct Worker {
    std::uint64_t compute_ns;  // 0: never drains
    std::uint64_t communicate_ns;
    std::uint64_t fixed_lease_ns = 0;
};

struct Progress {
    std::vector<std::uint64_t> iterations;
    std::vector<std::uint64_t> longest_wait_ns;  // for one turn
    std::vector<std::uint64_t> longest_lease_ns;
};

// `skip_ns` is left out of the longest waits and leases.
Progress work(const std::vector<Worker>& workers, std::uint64_t for_ns, std::uint64_t skip_ns) {
    struct State {
        std::uint64_t left_ns, back_ns = 0, asked_ns = 0;
    };
    auto segment = make_segment();
    std::vector<State> states;
    const std::size_t count = workers.size();
    Progress progress{std::vector<std::uint64_t>(count), std::vector<std::uint64_t>(count),
                      std::vector<std::uint64_t>(count)};
    std::uint64_t now = 1;
    for (std::uint32_t slot = 0; slot < count; ++slot) {
        Wakes wakes;
        Joining joining;
        joining.job_key = 10 + slot;
        joining.fixed_lease_ns = workers[slot].fixed_lease_ns;
        EXPECT_EQ(attach_client(*segment, slot, joining, now, wakes), Status::kOk);
        states.push_back({workers[slot].compute_ns});
    }
    while (now < for_ns) {
        Wakes wakes;
        // Whoever is back asks; a cut job asks again at once.
        for (std::uint32_t slot = 0; slot < count; ++slot) {
            const ClientSlot& client = segment->clients[slot];
            if (states[slot].back_ns > now || client.claims.load() != 0) continue;
            if (client.waits.load() == 0) states[slot].asked_ns = now;
            request(*segment, slot, now, wakes);
        }
        const std::size_t holder = turn_holder(*segment);
        std::uint64_t next = UINT64_MAX;
        for (const State& state : states) {
            if (state.back_ns > now) next = std::min(next, state.back_ns);
        }
        next = std::min(next, lease_end_ns(*segment));
        if (holder != kNoJob) {
            const JobSlot& job = segment->jobs[holder];
            State& state = states[holder];
            if (now >= skip_ns && job.turn_since_ns == now) {
                progress.longest_wait_ns[holder] =
                    std::max(progress.longest_wait_ns[holder], now - state.asked_ns);
            }
            if (now >= skip_ns && job.lease_from_ns != 0) {
                progress.longest_lease_ns[holder] =
                    std::max(progress.longest_lease_ns[holder], job.lease_ns);
            }
            if (workers[holder].compute_ns != 0) next = std::min(next, now + state.left_ns);
            if (workers[holder].compute_ns != 0) state.left_ns -= next - now;
            const bool drained = workers[holder].compute_ns != 0 && state.left_ns == 0;
            now = next;
            if (drained) {
                state.left_ns = workers[holder].compute_ns;
                state.back_ns = now + workers[holder].communicate_ns;
                ++progress.iterations[holder];
                release(*segment, static_cast<std::uint32_t>(holder), now, wakes);
            } else {
                expire(*segment, now, wakes);
            }
        } else {
            now = next;
        }
        if (testing::Test::HasFailure()) break;
    }
    return progress;
}

TEST(LeaseInVirtualTime, ASmallJobWaitsAtMostTheOthersLeasesATurn) {
    const std::vector<std::vector<Worker>> settings = {
        {{10 * kMs, 10 * kMs}, {2'000 * kMs, 500 * kMs}},
        {{10 * kMs, 10 * kMs}, {2'000 * kMs, 500 * kMs}, {300 * kMs, 100 * kMs}},
        {{10 * kMs, 10 * kMs}, {2'000 * kMs, 500 * kMs, 100 * kMs}},
        {{10 * kMs, 10 * kMs}, {0, 0}},
        {{10 * kMs, 10 * kMs}, {0, 0}, {400 * kMs, 300 * kMs}, {30'000 * kMs, 100 * kMs}},
    };
    for (const std::vector<Worker>& workers : settings) {
        constexpr std::uint64_t kTime = 300'000 * kMs;
        const Progress progress = work(workers, kTime, kTime / 3);
        std::uint64_t others = 0;
        for (std::size_t i = 1; i < workers.size(); ++i) others += progress.longest_lease_ns[i];
        EXPECT_GT(others, 0U);
        EXPECT_LE(progress.longest_wait_ns[0], others) << workers.size() << " jobs";
        // So an iteration takes at most that longer than alone.
        const std::uint64_t alone = workers[0].compute_ns + workers[0].communicate_ns;
        EXPECT_GE(progress.iterations[0], kTime / 2 / (alone + others));
        for (std::size_t i = 0; i < workers.size(); ++i) {
            EXPECT_EQ(progress.iterations[i] != 0, workers[i].compute_ns != 0) << "job " << i;
        }
    }
}

TEST(LeaseInVirtualTime, AJobThatNeverDrainsEndsWithSlices) {
    const Progress progress = work({{40 * kMs, 60 * kMs}, {0, 0}}, 200'000 * kMs, 60'000 * kMs);
    EXPECT_EQ(progress.longest_lease_ns[1], kMinLeaseNs);
    EXPECT_LE(progress.longest_wait_ns[0], kMinLeaseNs);
}

TEST(LeaseInVirtualTime, ALongPhaseIsNotCutOnceItsLengthIsKnown) {
    const Progress progress =
        work({{4'000 * kMs, 3'000 * kMs}, {4'000 * kMs, 3'000 * kMs}}, 300'000 * kMs, 60'000 * kMs);
    for (std::size_t job = 0; job < 2; ++job) {
        EXPECT_GE(progress.longest_lease_ns[job], 4'000 * kMs);
        EXPECT_LE(progress.longest_wait_ns[job], 4'000 * kMs) << "no more than the other's phase";
        EXPECT_GE(progress.iterations[job], 34U) << "8 s each, after the first few";
    }
}

}  // namespace
}  // namespace crossover
