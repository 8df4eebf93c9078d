// SPDX-License-Identifier: Apache-2.0
// The bound that a measured time is judged by. Pure.
#pragma once

#include <cstdint>
#include <span>

namespace crossover::command {

// Whole-run totals of a job that ran alone, in ns. They stand for a cycle of one iteration of each
// job: where every job makes its iterations at a steady pace, both have the same ratio.
struct JobTotals {
    std::uint64_t start_ns = 0;        // S: until the first use of the GPU; needs nobody's turn
    std::uint64_t compute_ns = 0;      // C: the rest of the run without exposed communication
    std::uint64_t communicate_ns = 0;  // M: at least one collective in flight
    std::uint64_t exposed_ns = 0;      // E: the part of M that compute does not hide
};

// T* = max(sum C, sum M, max(S + C + E)); without sum M where the jobs use different links.
std::uint64_t bound_ns(std::span<const JobTotals> jobs, bool separate_links) noexcept;

// Sum of S + C + E: one after the other.
std::uint64_t serial_ns(std::span<const JobTotals> jobs) noexcept;

}  // namespace crossover::command
