// SPDX-License-Identifier: Apache-2.0
// Crossover order as pure functions of a snapshot: who gets the turn next, and how long a lease is.
// No clock, no memory of its own, no effect; state.hpp applies what is decided here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace crossover {

struct JobView {
    std::uint64_t key = 0;  // place in the round's order; distinct among the jobs of a device
    bool waiting = false;
    bool holding = false;
    std::uint64_t last_round = 0;  // the round in which it last got a turn, 0 = never
};

struct Grant {
    std::size_t job = 0;      // index into the jobs given
    std::uint64_t round = 0;  // the round this turn belongs to
};

inline constexpr std::size_t kNoJob = static_cast<std::size_t>(-1);

// The next turn: in a round each waiting job gets at most one turn, in job-key order; when every
// waiting job has had one, a new round begins. Grant::job is kNoJob while some job holds the turn
// or none waits.
Grant next_grant(std::span<const JobView> jobs, std::uint64_t round) noexcept;

inline constexpr std::uint64_t kMinLeaseNs = 50'000'000;
inline constexpr std::uint64_t kMaxLeaseNs = 10'000'000'000;
inline constexpr std::uint64_t kFirstLeaseNs =
    1'000'000'000;  // of a job whose turns are not known yet

// Length of the lease of a job whose recent turns took `recent_turn_ns` (0 = not known); `fixed_ns`
// != 0 overrides.
std::uint64_t lease_ns(std::uint64_t recent_turn_ns, std::uint64_t fixed_ns) noexcept;

// The moving mean after a turn of `turn_ns`. A turn that its lease cut says only that turns are
// longer.
std::uint64_t updated_recent_turn_ns(std::uint64_t recent_turn_ns, std::uint64_t turn_ns,
                                     bool cut_by_lease) noexcept;

}  // namespace crossover
