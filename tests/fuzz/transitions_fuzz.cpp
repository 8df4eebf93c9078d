// SPDX-License-Identifier: Apache-2.0
// Any segment content, then any transitions in any order: they end, touch nothing else, and what
// repair() leaves, if it is consistent(), has the invariants of the unit tests.
#include <gtest/gtest.h>

#include "arbiter/ring.hpp"
#include "arbiter/state.hpp"
#include "tests/fuzz/damage.hpp"
#include "tests/fuzz/operations.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover::fuzz {
namespace {

void step(Segment& segment, Input& input, std::uint64_t& now_ns) {
    const auto operation = static_cast<Operation>(input.byte() % kOperations);
    const std::uint32_t slot = input.byte() % (kMaxClients + 2);
    const std::uint8_t argument = input.byte();
    Wakes wakes;
    switch (operation) {
        case kAttach: {
            // Who attaches has taken the life lock of a slot that is free.
            if (slot >= kMaxClients || segment.clients[slot].attached.load() != 0) break;
            Joining joining;
            joining.job_key = 1 + argument % 40;  // more than there are slots for
            joining.job_name = "a name that is longer than the field that it is to be kept in";
            joining.fixed_lease_ns = argument % 3 == 0 ? 5'000'000 : 0;
            joining.weight = argument % 5 == 0 ? argument : 0;
            attach_client(segment, slot, joining, now_ns, wakes);
            break;
        }
        case kDetach:
            detach_client(segment, slot, now_ns, wakes);
            break;
        case kReap:
            reap_client(segment, slot, now_ns, wakes);
            break;
        case kRequest:
            request(segment, slot, now_ns, wakes);
            break;
        case kWithdraw:
            withdraw(segment, slot, now_ns, wakes);
            break;
        case kRelease:
            release(segment, slot, now_ns, wakes);
            break;
        case kExpire:
            expire(segment, now_ns, wakes);
            break;
        case kRekey:
            rekey_client(segment, slot, 1 + argument % 40, "other", now_ns, wakes);
            break;
        case kRepair:
            repair(segment, now_ns, wakes);
            break;
        case kPass:  // ms, or any time at all
            now_ns =
                argument < 250 ? now_ns + argument * 1'000'000ULL : input.number<std::uint64_t>();
            break;
        case kPhaseOver:
            phase_over(segment, slot, argument * 1'000'000ULL);
            break;
        case kLook:
            consistent(segment, nullptr);
            lease_end_ns(segment);
            read_events(segment, segment.ring.next.load() - argument);
            break;
        case kOperations:
            break;
    }
}

void run(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    auto segment = damaged_segment(input);
    std::uint64_t now_ns = 1'000;
    while (!input.empty()) step(*segment, input, now_ns);
    Wakes wakes;
    repair(*segment, std::max<std::uint64_t>(now_ns, 1), wakes);
    if (consistent(*segment, nullptr)) expect_invariants(*segment);
}

}  // namespace
}  // namespace crossover::fuzz

extern "C" int LLVMFuzzerInitialize(int* argc, char*** argv) {
    testing::InitGoogleTest(argc, *argv);
    GTEST_FLAG_SET(break_on_failure, true);  // a broken invariant is a finding
    return 0;
}

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    crossover::fuzz::run(data, size);
    return 0;
}
