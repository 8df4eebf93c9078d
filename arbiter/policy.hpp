// SPDX-License-Identifier: Apache-2.0
// Crossover order as pure functions of a snapshot: who gets the turn next, what that does to the
// jobs' debts, and how long a lease is. No clock, no memory of its own, no effect; state.hpp
// applies what is decided here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace crossover {

inline constexpr std::size_t kNoJob = static_cast<std::size_t>(-1);
inline constexpr std::uint32_t kMaxWeight = 1000;

inline constexpr std::uint64_t kMinLeaseNs = 50'000'000;
inline constexpr std::uint64_t kMaxLeaseNs = 10'000'000'000;
inline constexpr std::uint64_t kFirstLeaseNs =
    1'000'000'000;  // of a job whose turns are not known yet

// The least that a turn costs in debt: about what a hand-over takes from the device. Without it,
// turns of no length would be free, and could keep others out for ever.
inline constexpr std::uint64_t kMinChargeNs = 100'000;
// Longest that the others' turns may hold a waiting job off for its debt, whatever the weights.
inline constexpr std::uint64_t kMaxHoldOffNs = 2 * kMaxLeaseNs;

struct JobView {
    std::uint64_t key = 0;  // place in the round's order; distinct among the jobs of a device
    bool waiting = false;
    bool holding = false;
    std::uint64_t last_round = 0;  // the round in which it last got a turn, 0 = never
    std::uint32_t weight = 0;      // 0 = none given: counts as 1 beside a job that has one
    std::int64_t debt_ns = 0;      // device time used beyond its share; below 0: not used yet
    std::uint64_t turn_ns = 0;     // expected length of its next turn, 0 = not known
};

struct Grant {
    std::size_t job = 0;      // index into the jobs given
    std::uint64_t round = 0;  // the round this turn belongs to
    // For debt_after(); meaningful while `by_weight`. Lag: debt / weight, in 1/1024 ns.
    bool by_weight = false;
    bool contested = false;    // others wait too
    std::int64_t low = 0;      // smallest lag of those who wait
    std::int64_t rival = 0;    // the same without the job that is granted
    std::int64_t quantum = 0;  // smallest expected turn / weight of those who wait, 0 = none
    std::uint64_t waiting_weight = 0;  // sum over those who wait
};

// The next turn. Grant::job is kNoJob while some job holds the turn or none waits; a free turn that
// is waited for is always granted.
//
// Rounds: in a round each waiting job gets at most one turn, in job-key order; when none is left, a
// new round begins. Once a job has a weight, only those take part that are not ahead of their
// share: whose lag is at most half a quantum above the smallest. So while job i waits, job j gets
// at most 1.7 * (Li / Wi) / (Lj / Wj) + 6 turns, with turns of Li and Lj (at least kMinChargeNs)
// and weights Wi and Wj; without weights one.
Grant next_grant(std::span<const JobView> jobs, std::uint64_t round) noexcept;

// The debt of `job`, which was in the snapshot, after `grant` (not kNoJob). `granted`: the turn is
// its own. 0 where no job has a weight.
std::int64_t debt_after(const JobView& job, const Grant& grant, bool granted) noexcept;

// The debt after a turn of `turn_ns` beside others.
std::int64_t debt_after_turn(std::int64_t debt_ns, std::uint64_t turn_ns) noexcept;

// What is remembered of a job's turns is one number (JobSlot::recent_turn_ns): the moving mean of
// its compute phases in ns (0 = not known) in the lower bits, and above them, in ms, how much of
// the present phase turns that were cut by their lease have had. 0: nothing known.
inline constexpr unsigned kRecentMeanBits = 34;
static_assert(kMaxLeaseNs < std::uint64_t{1} << kRecentMeanBits);
std::uint64_t recent_mean_ns(std::uint64_t recent_turn_ns) noexcept;
std::uint64_t recent_cut_ns(std::uint64_t recent_turn_ns) noexcept;

// Length of the lease of a job with that memory of turns; `fixed_ns` != 0 overrides.
// A slice is as many times longer as `weight` is greater than `least_weight`, the least of the jobs
// of the device: two jobs that never drain alternate whatever their order.
std::uint64_t lease_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns,
                       std::uint32_t weight = 1, std::uint32_t least_weight = 1) noexcept;

// How long the next turn of that job is likely to be, 0 = not known.
std::uint64_t expected_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns) noexcept;

// The memory after a turn of `turn_ns`. A compute phase is all turns up to one that ended by
// itself.
std::uint64_t updated_recent_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t turn_ns,
                                     bool cut_by_lease) noexcept;

// The memory after a phase of `phase_ns` that ended while the job had no turn: its lease cut it,
// and what had been launched by then was all of it. The same where no turn was cut.
std::uint64_t recent_after_cut_phase(std::uint64_t recent_turn_ns, std::uint64_t phase_ns) noexcept;

}  // namespace crossover
