// SPDX-License-Identifier: Apache-2.0
// Crossover order, shares by weight and lease lengths. Pure functions only: no clock, no shared
// memory, no effect.
#include "arbiter/policy.hpp"

#include <algorithm>

namespace crossover {
namespace {

// A longer phase raises the mean by half of the difference, a shorter one lowers it by an eighth: a
// lease that is too short makes both jobs compute side by side, one that is too long costs only
// when something goes wrong.
constexpr std::uint64_t kRise = 2;
constexpr std::uint64_t kFall = 8;

constexpr std::uint64_t kNsPerMs = 1'000'000;
constexpr std::uint64_t kMeanMask = (std::uint64_t{1} << kRecentMeanBits) - 1;
constexpr std::uint64_t kMostCutMs = ~std::uint64_t{0} >> kRecentMeanBits;

// Two jobs that are level, give or take half a quantum, are drawn together by this part of what
// parts them when one of them gets a turn. Turns of the same job differ by some per cent from
// device to device; without a memory that fades, those differences add up and devices that began
// alike decide differently in the end. It costs at most 1 / (2 * kDraw) of a turn, and so of a
// share: lengths that differ by less are taken to be equal.
constexpr std::int64_t kDraw = 10;

// What a job that is away keeps of the share it does not use, in quanta. Every job is away at its
// own hand-overs, and for longer where a device waits for its peers; with one quantum a job of
// weight 2 beside two others gets as little as 44 % of four devices, not 50 % (realign_test).
constexpr std::int64_t kCredit = 4;

constexpr std::int64_t kLagUnits = 1024;  // of a lag in one ns
// Beyond any debt that arises; content read from the segment is cut to it, so nothing overflows:
// kDebtBoundNs * kLagUnits * kMaxWeight < 2^63.
constexpr std::int64_t kDebtBoundNs = std::int64_t{1} << 42;
static_assert(kDebtBoundNs <= INT64_MAX / kLagUnits / kMaxWeight);
static_assert(kMaxHoldOffNs + kMaxLeaseNs < static_cast<std::uint64_t>(kDebtBoundNs));

std::int64_t weight_of(const JobView& job) noexcept {
    return std::clamp<std::int64_t>(job.weight, 1, kMaxWeight);
}

std::int64_t lag_of(const JobView& job) noexcept {
    return std::clamp(job.debt_ns, -kDebtBoundNs, kDebtBoundNs) * kLagUnits / weight_of(job);
}

// A turn's worth of lag, 0 = not known.
std::int64_t turn_lag_of(const JobView& job) noexcept {
    const std::uint64_t turn =
        job.turn_ns == 0 ? 0 : std::clamp(job.turn_ns, kMinChargeNs, kMaxLeaseNs);
    return static_cast<std::int64_t>(turn) * kLagUnits / weight_of(job);
}

}  // namespace

Grant next_grant(std::span<const JobView> jobs, std::uint64_t round) noexcept {
    Grant grant{kNoJob, round};
    // The place that the round has reached: the highest key that has had its turn in it. A job with
    // a lower key that comes late takes its place in the next round, so nobody is passed twice.
    std::uint64_t reached = 0;
    bool anybody = false;
    for (const JobView& job : jobs) {
        if (job.holding) return {kNoJob, round};
        if (job.last_round == round) reached = std::max(reached, job.key);
        if (job.key != 0 && job.weight != 0) grant.by_weight = true;
        if (!job.waiting) continue;
        const std::int64_t lag = lag_of(job);
        const std::int64_t turn = turn_lag_of(job);
        grant.low = anybody ? std::min(grant.low, lag) : lag;
        if (turn != 0) grant.quantum = grant.quantum == 0 ? turn : std::min(grant.quantum, turn);
        grant.waiting_weight += static_cast<std::uint64_t>(weight_of(job));
        anybody = true;
    }
    std::size_t next = kNoJob;   // lowest key beyond that place
    std::size_t first = kNoJob;  // lowest key of all
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        const JobView& job = jobs[i];
        if (!job.waiting) continue;
        if (grant.by_weight && lag_of(job) - grant.low > grant.quantum / 2) continue;
        if (first == kNoJob || job.key < jobs[first].key) first = i;
        const bool had_turn = job.last_round == round;
        if (job.key < reached || had_turn) continue;
        if (next == kNoJob || job.key < jobs[next].key) next = i;
    }
    if (next != kNoJob) {
        grant.job = next;
    } else if (first != kNoJob) {
        grant.job = first;
        grant.round = round + 1;
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        if (!jobs[i].waiting || i == grant.job) continue;
        const std::int64_t lag = lag_of(jobs[i]);
        grant.rival = grant.contested ? std::min(grant.rival, lag) : lag;
        grant.contested = true;
    }
    return grant;
}

std::int64_t debt_after(const JobView& job, const Grant& grant, bool granted) noexcept {
    if (!grant.by_weight) return 0;
    const std::int64_t weight = weight_of(job);
    std::int64_t lag = lag_of(job);
    if (granted && grant.contested) {
        const std::int64_t apart = lag - grant.rival;
        if (apart >= -grant.quantum / 2 && apart <= grant.quantum / 2) lag -= apart / kDraw;
    }
    // All lags fall by what the smallest of the waiting ones has risen to. It never turns back, so
    // who is away falls with the others, but only so far below zero.
    lag -= std::max<std::int64_t>(grant.low, 0);
    lag = std::max(lag, -kCredit * std::min(turn_lag_of(job), grant.quantum));
    const auto others = static_cast<std::int64_t>(grant.waiting_weight) - weight;
    if (job.waiting && others > 0) {
        // The others repay a lag in `others` times its time.
        lag = std::min(lag, static_cast<std::int64_t>(kMaxHoldOffNs) * kLagUnits / others);
    }
    return lag * weight / kLagUnits;
}

std::int64_t debt_after_turn(std::int64_t debt_ns, std::uint64_t turn_ns) noexcept {
    return std::clamp(debt_ns, -kDebtBoundNs, kDebtBoundNs - std::int64_t{kMaxLeaseNs}) +
           static_cast<std::int64_t>(std::clamp(turn_ns, kMinChargeNs, kMaxLeaseNs));
}

std::uint64_t recent_mean_ns(std::uint64_t recent_turn_ns) noexcept {
    return std::min(recent_turn_ns & kMeanMask, kMaxLeaseNs);
}

std::uint64_t recent_cut_ns(std::uint64_t recent_turn_ns) noexcept {
    return (recent_turn_ns >> kRecentMeanBits) * kNsPerMs;
}

// A phase that was cut goes on with the lease it had: its whole length is known when it ends, and
// is taken then. Growing the lease at each cut would find that length no sooner, and would give a
// job that never drains 10 s a turn. Where a phase has gone on for longer than any lease, there is
// no turn to be covered: such a job gets the shortest lease, a slice, which costs the others least.
std::uint64_t lease_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns, std::uint32_t weight,
                       std::uint32_t least_weight) noexcept {
    if (fixed_ns != 0) return std::min(fixed_ns, kMaxLeaseNs);
    if (recent_cut_ns(recent_turn_ns) > kMaxLeaseNs) {
        return std::min(kMinLeaseNs * weight / std::max(least_weight, 1U), kMaxLeaseNs);
    }
    const std::uint64_t mean = recent_mean_ns(recent_turn_ns);
    if (mean == 0) return kFirstLeaseNs;
    return std::clamp(2 * mean, kMinLeaseNs, kMaxLeaseNs);
}

std::uint64_t expected_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns) noexcept {
    const std::uint64_t mean = recent_mean_ns(recent_turn_ns);
    const std::uint64_t lease = lease_ns(recent_turn_ns, fixed_ns);
    if (recent_cut_ns(recent_turn_ns) != 0) return lease;
    return std::min(mean, lease);
}

std::uint64_t updated_recent_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t turn_ns,
                                     bool cut_by_lease) noexcept {
    const std::uint64_t turn = std::max<std::uint64_t>(turn_ns, 1);
    const std::uint64_t mean = recent_mean_ns(recent_turn_ns);
    const std::uint64_t cut_ns = recent_cut_ns(recent_turn_ns);
    if (cut_by_lease) {
        const std::uint64_t more = std::clamp<std::uint64_t>(turn / kNsPerMs, 1, kMostCutMs);
        const std::uint64_t cut_ms = std::min(cut_ns / kNsPerMs + more, kMostCutMs);
        return mean | cut_ms << kRecentMeanBits;
    }
    if (turn > kMaxLeaseNs || cut_ns > kMaxLeaseNs - turn) {
        // No lease covers it. Once, it is an exception; again and again, it leads to the slice.
        return std::max(mean / 2, kMinLeaseNs / 2);
    }
    const std::uint64_t phase = cut_ns + turn;
    if (mean == 0) return phase;
    if (phase > mean) return mean + (phase - mean + kRise - 1) / kRise;
    return mean - (mean - phase) / kFall;
}

std::uint64_t recent_after_cut_phase(std::uint64_t recent_turn_ns,
                                     std::uint64_t phase_ns) noexcept {
    if (recent_cut_ns(recent_turn_ns) == 0) return recent_turn_ns;
    // Not what its earlier turns add up to: those may be of phases whose end was not told.
    return updated_recent_turn_ns(recent_mean_ns(recent_turn_ns), phase_ns, false);
}

}  // namespace crossover
