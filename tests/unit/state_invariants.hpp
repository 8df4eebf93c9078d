// SPDX-License-Identifier: Apache-2.0
// What must hold between two transitions, told independently of how state.cpp derives it; and a
// ready segment on the heap.
#pragma once

#include <gtest/gtest.h>

#include <memory>

#include "arbiter/state.hpp"
#include "crossover/layout.hpp"

namespace crossover {

inline std::unique_ptr<Segment> make_segment() {
    auto segment = std::make_unique<Segment>();  // value-initialised: zero
    segment->header.magic = kSegmentMagic;
    segment->header.total_bytes = sizeof(Segment);
    segment->header.version = kLayoutVersion;
    segment->arbitration.round = 1;
    return segment;
}

inline void expect_invariants(const Segment& s) {
    EXPECT_TRUE(consistent(s, nullptr));
    const std::uint64_t holder = s.arbitration.turn.word.load() & kTurnJobMask;  // index + 1
    std::uint32_t active = 0, waiting = 0, holding = 0;
    for (std::size_t i = 0; i < kMaxJobs; ++i) {
        const JobSlot& job = s.jobs[i];
        std::uint32_t clients = 0, claims = 0, waiters = 0;
        for (const ClientSlot& client : s.clients) {
            if (client.attached.load() == 0 || client.job != i) continue;
            ++clients;
            claims += client.claims.load();
            waiters += client.waits.load();
            EXPECT_LE(client.claims.load() + client.waits.load(), 1U) << "claims and waits";
        }
        EXPECT_EQ(job.key != 0, clients != 0) << "a job is there as long as its clients";
        if (clients == 0) {
            EXPECT_NE(holder, i + 1);
            continue;
        }
        ++active;
        EXPECT_EQ(job.clients, clients);
        EXPECT_EQ(job.claims, claims);
        EXPECT_EQ(job.waiters, waiters);
        if (holder == i + 1) {
            ++holding;
            EXPECT_EQ(job.state, JobState::kHolding);
            EXPECT_GT(claims, 0U) << "a turn that nobody uses";
            EXPECT_EQ(job.last_round, s.arbitration.round);
        } else {
            EXPECT_EQ(claims, 0U) << "submits without the turn";
            EXPECT_EQ(job.state, waiters != 0 ? JobState::kWaiting : JobState::kIdle);
            waiting += waiters != 0 ? 1 : 0;
            EXPECT_EQ(job.lease_from_ns, 0U);
        }
        EXPECT_LE(job.last_round, s.arbitration.round);
    }
    EXPECT_EQ(s.arbitration.turn.active_jobs.load(), active);
    EXPECT_EQ(s.arbitration.turn.waiting_jobs.load(), waiting);
    EXPECT_LE(holding, 1U);
    if (holder == 0) {
        EXPECT_EQ(waiting, 0U) << "the turn is free and somebody waits";
    } else {
        const JobSlot& job = s.jobs[holder - 1];
        EXPECT_EQ(job.lease_from_ns != 0, waiting != 0) << "the lease runs while it is contested";
        if (waiting == 0) {
            EXPECT_EQ(job.waiters, 0U) << "kept out of its own job's turn for nobody";
        }
    }
}

}  // namespace crossover
