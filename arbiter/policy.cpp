// SPDX-License-Identifier: Apache-2.0
// Crossover order and lease lengths. Pure functions only: no clock, no shared memory, no effect.
#include "arbiter/policy.hpp"

#include <algorithm>

namespace crossover {
namespace {

// A longer turn raises the mean by half of the difference, a shorter one lowers it by an eighth: a
// lease that is too short makes both jobs compute side by side, one that is too long costs only
// when something goes wrong.
constexpr std::uint64_t kRise = 2;
constexpr std::uint64_t kFall = 8;

}  // namespace

Grant next_grant(std::span<const JobView> jobs, std::uint64_t round) noexcept {
    // The place that the round has reached: the highest key that has had its turn in it. A job with
    // a lower key that comes late takes its place in the next round, so nobody is passed twice.
    std::uint64_t reached = 0;
    for (const JobView& job : jobs) {
        if (job.holding) return {kNoJob, round};
        if (job.last_round == round) reached = std::max(reached, job.key);
    }
    std::size_t next = kNoJob;   // lowest key beyond that place
    std::size_t first = kNoJob;  // lowest key of all
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        const JobView& job = jobs[i];
        if (!job.waiting) continue;
        if (first == kNoJob || job.key < jobs[first].key) first = i;
        const bool had_turn = job.last_round == round;
        if (job.key < reached || had_turn) continue;
        if (next == kNoJob || job.key < jobs[next].key) next = i;
    }
    if (next != kNoJob) return {next, round};
    if (first != kNoJob) return {first, round + 1};
    return {kNoJob, round};
}

std::uint64_t lease_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns) noexcept {
    if (fixed_ns != 0) return std::min(fixed_ns, kMaxLeaseNs);
    if (recent_turn_ns == 0) return kFirstLeaseNs;
    if (recent_turn_ns > kMaxLeaseNs / 2) return kMaxLeaseNs;
    return std::max(2 * recent_turn_ns, kMinLeaseNs);
}

std::uint64_t updated_recent_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t turn_ns,
                                     bool cut_by_lease) noexcept {
    const std::uint64_t turn = std::clamp<std::uint64_t>(turn_ns, 1, kMaxLeaseNs);
    const std::uint64_t recent = std::min(recent_turn_ns, kMaxLeaseNs);
    if (cut_by_lease) return std::max(recent, turn);
    if (recent == 0) return turn;
    if (turn > recent) return recent + (turn - recent + kRise - 1) / kRise;
    return recent - (recent - turn) / kFall;
}

}  // namespace crossover
