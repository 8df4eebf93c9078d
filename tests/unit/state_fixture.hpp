// SPDX-License-Identifier: Apache-2.0
// A segment on the heap with a time of its own, whose invariants are looked at after every step.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>

#include "arbiter/state.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover {

class StateFixture : public testing::Test {
  protected:
    // A process of the job with this key; the answer is its slot.
    std::uint32_t join(Joining joining) {
        const std::uint32_t slot = next_slot_++;
        joining.job_name = "job";
        joining.pid = 100 + slot;
        EXPECT_EQ(attach_client(*segment_, slot, joining, now_, fresh()), Status::kOk);
        expect_invariants(*segment_);
        return slot;
    }
    bool ask(std::uint32_t slot) {
        const bool granted = request(*segment_, slot, now_, fresh());
        expect_invariants(*segment_);
        return granted;
    }
    void give_back(std::uint32_t slot) {
        release(*segment_, slot, now_, fresh());
        expect_invariants(*segment_);
    }
    bool claims(std::uint32_t slot) const { return segment_->clients[slot].claims.load() != 0; }
    JobSlot& job_of(std::uint32_t slot) { return segment_->jobs[segment_->clients[slot].job]; }
    Wakes& fresh() { return wakes_ = Wakes{}; }

    std::unique_ptr<Segment> segment_ = make_segment();
    Wakes wakes_;  // what the last step asked for
    std::uint64_t now_ = 1'000'000'000;
    std::uint32_t next_slot_ = 0;
};

}  // namespace crossover
