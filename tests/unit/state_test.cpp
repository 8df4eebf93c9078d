// SPDX-License-Identifier: Apache-2.0
// Transitions on heap segments, step by step. Long histories stand in state_history_test.cpp;
// locks, processes and real time in tests/process.
#include "arbiter/state.hpp"

#include <gtest/gtest.h>

#include "arbiter/policy.hpp"
#include "tests/unit/state_fixture.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

class StateTest : public StateFixture {
  protected:
    std::uint32_t attach(std::uint64_t key, std::uint64_t fixed_lease_ns = 0,
                         std::uint32_t weight = 0) {
        Joining joining;
        joining.job_key = key;
        joining.fixed_lease_ns = fixed_lease_ns;
        joining.weight = weight;
        return join(joining);
    }
};

TEST_F(StateTest, AloneAJobHasTheTurnAtOnceAndWithoutLease) {
    const std::uint32_t a = attach(10);
    EXPECT_TRUE(ask(a));
    EXPECT_TRUE(claims(a));
    EXPECT_EQ(segment_->arbitration.turn.active_jobs.load(), 1U);
    now_ += 3'600'000 * kMs;
    EXPECT_FALSE(expire(*segment_, now_, fresh()));
    EXPECT_EQ(lease_end_ns(*segment_), UINT64_MAX);
    EXPECT_TRUE(claims(a));
}

TEST_F(StateTest, ReleasePassesTheTurnOnAndWakesThatClient) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    EXPECT_TRUE(wakes_.notices.contains(a)) << "the holder is told that it is wanted";
    const std::uint32_t grant_word = segment_->clients[b].grant.load();
    const std::uint64_t turn = segment_->arbitration.turn.word.load();
    now_ += 5 * kMs;
    give_back(a);
    EXPECT_TRUE(claims(b));
    EXPECT_FALSE(claims(a));
    EXPECT_TRUE(wakes_.grants.contains(b));
    EXPECT_NE(segment_->clients[b].grant.load(), grant_word);
    EXPECT_NE(segment_->arbitration.turn.word.load(), turn);
    EXPECT_EQ(job_of(a).held_ns, 5 * kMs);
    EXPECT_EQ(job_of(b).waited_ns, 5 * kMs);
}

TEST_F(StateTest, RequestAndReleaseAreIdempotent) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    const std::uint64_t word = segment_->arbitration.turn.word.load();
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(segment_->arbitration.turn.word.load(), word);
    EXPECT_EQ(segment_->arbitration.turn.waiting_jobs.load(), 1U);
    give_back(a);
    give_back(a);
    EXPECT_TRUE(claims(b));
    EXPECT_EQ(segment_->arbitration.turn_count, 2U);
}

TEST_F(StateTest, LeaseRunsFromTheMomentAnotherJobWaits) {
    const std::uint32_t a = attach(10, 30 * kMs);
    const std::uint32_t b = attach(20, 70 * kMs);
    EXPECT_TRUE(ask(a));
    now_ += 1'000 * kMs;
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(lease_end_ns(*segment_), now_ + 30 * kMs) << "the holder's own lease";
    now_ += 30 * kMs - 1;
    EXPECT_FALSE(expire(*segment_, now_, fresh()));
    now_ += 1;
    EXPECT_TRUE(expire(*segment_, now_, fresh()));
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(b));
    EXPECT_FALSE(claims(a));
    EXPECT_TRUE(wakes_.notices.contains(a));
    EXPECT_TRUE(wakes_.grants.contains(b));
    EXPECT_EQ(segment_->arbitration.expired_count, 1U);
    // The one cut off may ask again and is next.
    EXPECT_FALSE(ask(a));
    give_back(b);
    EXPECT_TRUE(claims(a));
}

TEST_F(StateTest, LeaseStopsWhenNobodyWaitsAnyMore) {
    const std::uint32_t a = attach(10, 30 * kMs);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    withdraw(*segment_, b, now_, fresh());
    expect_invariants(*segment_);
    now_ += 31 * kMs;
    EXPECT_FALSE(expire(*segment_, now_, fresh()));
    EXPECT_TRUE(claims(a));
}

TEST_F(StateTest, LeaseIsTwiceTheWholeTurnHoweverLateTheOtherCame) {
    const std::uint32_t a = attach(10);
    EXPECT_TRUE(ask(a));
    now_ += 5000 * kMs;  // alone: does not count
    const std::uint32_t b = attach(20);
    now_ += 60 * kMs;
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(lease_end_ns(*segment_), now_ + kFirstLeaseNs);
    now_ += 20 * kMs;  // contested for the last 20 ms of 80
    give_back(a);
    EXPECT_EQ(job_of(a).recent_turn_ns, 80 * kMs);
    EXPECT_EQ(job_of(b).recent_turn_ns, 0U);
    EXPECT_FALSE(ask(a));
    give_back(b);
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(lease_end_ns(*segment_), now_ + 160 * kMs);
}

TEST_F(StateTest, ACutPhaseThatEndsWithoutATurnIsLearned) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    segment_->jobs[segment_->clients[a].job].recent_turn_ns = 25 * kMs;
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    now_ += 50 * kMs;
    EXPECT_TRUE(expire(*segment_, now_, fresh()));
    const std::uint64_t cut = job_of(a).recent_turn_ns;
    EXPECT_NE(recent_cut_ns(cut), 0U);
    EXPECT_FALSE(ask(a));
    phase_over(*segment_, a, 80 * kMs);
    EXPECT_EQ(job_of(a).recent_turn_ns, cut) << "it waits to go on";
    give_back(b);
    EXPECT_TRUE(claims(a));
    phase_over(*segment_, a, 80 * kMs);
    EXPECT_EQ(job_of(a).recent_turn_ns, cut) << "it goes on";
    EXPECT_FALSE(ask(b));
    now_ += 50 * kMs;
    EXPECT_TRUE(expire(*segment_, now_, fresh()));
    phase_over(*segment_, a, 80 * kMs);
    const std::uint64_t learned = updated_recent_turn_ns(25 * kMs, 80 * kMs, false);
    EXPECT_EQ(job_of(a).recent_turn_ns, learned);
    phase_over(*segment_, a, 9 * kMs);
    EXPECT_EQ(job_of(a).recent_turn_ns, learned) << "told once";
    expect_invariants(*segment_);
}

TEST_F(StateTest, ALeaseFieldFromTheFutureIsBounded) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    JobSlot& job = segment_->jobs[segment_->clients[a].job];
    job.lease_from_ns = UINT64_MAX;
    job.lease_ns = UINT64_MAX;
    EXPECT_FALSE(expire(*segment_, now_, fresh()));
    now_ += kMaxLeaseNs;
    EXPECT_TRUE(expire(*segment_, now_, fresh()));
    EXPECT_TRUE(claims(b));
}

TEST_F(StateTest, ClientsOfOneJobShareItsTurn) {
    const std::uint32_t a0 = attach(10);
    const std::uint32_t a1 = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a0));
    EXPECT_FALSE(ask(b));
    EXPECT_TRUE(ask(a1)) << "a client that has not had its part of this turn joins";
    give_back(a0);
    EXPECT_FALSE(claims(b)) << "the turn lasts while one of them submits";
    give_back(a1);
    EXPECT_TRUE(claims(b));
}

TEST_F(StateTest, AClientGoesIntoItsJobsTurnOnceWhileAnotherJobWaits) {
    const std::uint32_t a0 = attach(10);
    const std::uint32_t a1 = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a0));
    EXPECT_TRUE(ask(a1));
    give_back(a0);
    EXPECT_TRUE(ask(a0)) << "nobody else waits";
    EXPECT_FALSE(ask(b));
    give_back(a0);
    EXPECT_FALSE(ask(a0)) << "or two ranks in turns would keep it for ever";
    give_back(a1);
    EXPECT_TRUE(claims(b));
    give_back(b);
    EXPECT_TRUE(claims(a0));
}

TEST_F(StateTest, LateComersOfTheHoldingJobAreAdmittedWhenNobodyElseWaits) {
    const std::uint32_t a0 = attach(10);
    const std::uint32_t a1 = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a0));
    EXPECT_TRUE(ask(a1));
    EXPECT_FALSE(ask(b));
    give_back(a0);
    EXPECT_FALSE(ask(a0));
    withdraw(*segment_, b, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(a0));
    EXPECT_TRUE(wakes_.grants.contains(a0));
}

TEST_F(StateTest, DetachGivesTheTurnBackAndFreesTheJob) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_EQ(segment_->arbitration.turn.active_jobs.load(), 2U);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    detach_client(*segment_, a, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(b));
    EXPECT_TRUE(wakes_.notices.contains(b)) << "a job went";
    EXPECT_EQ(segment_->arbitration.turn.active_jobs.load(), 1U);
    EXPECT_EQ(segment_->arbitration.reaped_count, 0U);
    detach_client(*segment_, a, now_, fresh());
    EXPECT_TRUE(claims(b)) << "leaving twice is harmless";
}

TEST_F(StateTest, ReapCountsAndPassesOn) {
    const std::uint32_t a0 = attach(10);
    const std::uint32_t a1 = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a0));
    EXPECT_TRUE(ask(a1));
    EXPECT_FALSE(ask(b));
    reap_client(*segment_, a0, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_FALSE(claims(b)) << "its sister still submits";
    reap_client(*segment_, a1, now_, fresh());
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(b));
    EXPECT_EQ(segment_->arbitration.reaped_count, 2U);
}

TEST_F(StateTest, AttachTellsTheOthersAndIsFullInTheEnd) {
    const std::uint32_t a = attach(1);
    attach(2);
    EXPECT_TRUE(wakes_.notices.contains(a));
    for (std::uint64_t key = 3; key <= kMaxJobs; ++key) attach(key);
    Joining joining;
    joining.job_key = 1000;
    EXPECT_EQ(attach_client(*segment_, next_slot_, joining, now_, fresh()), Status::kFull);
    expect_invariants(*segment_);
    joining.job_key = 1;
    EXPECT_EQ(attach_client(*segment_, next_slot_, joining, now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
}

TEST_F(StateTest, NamesAreCutNotOverrun) {
    Joining joining;
    joining.job_key = 5;
    const std::string longest(200, 'x');
    joining.job_name = longest;
    ASSERT_EQ(attach_client(*segment_, 0, joining, now_, fresh()), Status::kOk);
    EXPECT_EQ(std::string(segment_->jobs[0].name), std::string(kJobNameBytes - 1, 'x'));
    EXPECT_EQ(segment_->jobs[0].fixed_lease_ns, 0U);
}

TEST_F(StateTest, RekeyMovesAClientAndGivesItsClaimBack) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(rekey_client(*segment_, a, 30, "new", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(b));
    EXPECT_EQ(job_of(a).key, 30U);
    EXPECT_STREQ(job_of(a).name, "new");
    EXPECT_EQ(segment_->arbitration.turn.active_jobs.load(), 2U);
    // Into a job that exists: both are one job now.
    EXPECT_EQ(rekey_client(*segment_, a, 20, "b", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_EQ(segment_->arbitration.turn.active_jobs.load(), 1U);
    EXPECT_EQ(job_of(b).clients, 2U);
    EXPECT_TRUE(ask(a)) << "it joins its new job's turn";
}

TEST_F(StateTest, RekeyKeepsAWaitGoing) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    EXPECT_EQ(rekey_client(*segment_, b, 30, "new", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_EQ(segment_->arbitration.turn.waiting_jobs.load(), 1U);
    give_back(a);
    EXPECT_TRUE(claims(b));
    // Into the holder's job: it joins at once.
    EXPECT_FALSE(ask(a));
    EXPECT_EQ(rekey_client(*segment_, a, 30, "new", now_, fresh()), Status::kOk);
    expect_invariants(*segment_);
    EXPECT_TRUE(claims(a));
}

TEST_F(StateTest, TwoJobsThatNeverDrainShareByTheirWeights) {
    const std::uint32_t slots[] = {attach(10, 0, 3), attach(20)};
    EXPECT_TRUE(ask(slots[0]));
    EXPECT_FALSE(ask(slots[1]));
    std::uint64_t held[2] = {};
    for (int turn = 0; turn < 400; ++turn) {
        const std::size_t holder = claims(slots[0]) ? 0 : 1;
        ASSERT_NE(lease_end_ns(*segment_), UINT64_MAX);
        // Until it is known that they never drain their leases are as for anybody.
        if (turn >= 100) held[holder] += lease_end_ns(*segment_) - now_;
        now_ = lease_end_ns(*segment_);
        ASSERT_TRUE(expire(*segment_, now_, fresh()));
        EXPECT_FALSE(ask(slots[holder])) << "the other one waits";
    }
    EXPECT_NEAR(static_cast<double>(held[0]) / static_cast<double>(held[1]), 3, 0.15);
}

TEST_F(StateTest, RoundsFollowTheKeys) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    const std::uint64_t round = segment_->arbitration.round;
    give_back(a);
    EXPECT_EQ(segment_->arbitration.round, round) << "b's turn belongs to the same round";
    EXPECT_FALSE(ask(a));
    give_back(b);
    EXPECT_TRUE(claims(a));
    EXPECT_EQ(segment_->arbitration.round, round + 1);
}

TEST_F(StateTest, WhoGivesUpWithoutTheLockLosesWhatItHolds) {
    const std::uint32_t a = attach(10);
    const std::uint32_t b = attach(20);
    EXPECT_TRUE(ask(a));
    EXPECT_FALSE(ask(b));
    segment_->clients[a].claims.store(0);
    EXPECT_TRUE(ask(b)) << "any transition sees a turn without claims";
}

TEST_F(StateTest, RepairPutsAnyHalfDoneTransitionRight) {
    // Every subset of "which stores had happened" of a hand-over from a to b, in any combination.
    for (unsigned done = 0; done < 64; ++done) {
        segment_ = make_segment();
        next_slot_ = 0;
        const std::uint32_t a = attach(10);
        const std::uint32_t b = attach(20);
        EXPECT_TRUE(ask(a));
        EXPECT_FALSE(ask(b));
        Segment& s = *segment_;
        const std::uint64_t number = turn_number(s);
        if (done & 1) s.clients[a].claims.store(0);
        if (done & 2) s.arbitration.turn.word.store(number << 16);
        if (done & 4) s.clients[b].claims.store(1);
        if (done & 8) s.clients[b].waits.store(0);
        if (done & 16) s.arbitration.turn.word.store((number + 1) << 16 | (s.clients[b].job + 1));
        if (done & 32) s.jobs[s.clients[b].job].state = JobState::kHolding;
        repair(s, now_, fresh());
        expect_invariants(s);
        EXPECT_TRUE(wakes_.grants.contains(a) && wakes_.grants.contains(b));
        EXPECT_GE(turn_number(s), number);
        // Whatever was lost, asking again leads on: both get it in turn.
        if (!ask(b)) {
            EXPECT_TRUE(claims(a));
            give_back(a);
        }
        EXPECT_TRUE(claims(b)) << done;
        EXPECT_FALSE(ask(a));
        give_back(b);
        EXPECT_TRUE(claims(a)) << done;
    }
}

}  // namespace
}  // namespace crossover
