// SPDX-License-Identifier: Apache-2.0
// Jobs that share devices, in virtual time: what `crossover plan` predicts. Turns are not modelled:
// every one is taken by arbiter/state.cpp on a segment of its own for each device, as in a real
// run. Deterministic: the same input and seed give the same figures on every machine.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "plan_jobs.hpp"

namespace crossover::command {

enum class PlanMode {
    kCrossover,      // turns
    kUncoordinated,  // all compute at once, in equal shares of the device (MPS at its ideal)
};

struct PlanSetting {
    std::uint32_t devices = 2;      // ranks of each job, one a device; every job is on all of them
    bool separate_links = false;    // each job communicates over a link of its own
    std::uint32_t iterations = 60;  // of the slowest job; a fifth of them is not counted
    std::uint64_t seed = 1;
    // From the end of a job's compute on a device to the first compute of the next job there, in
    // ns: windows are seen late by some polls of the GPU, then a sleeping process is woken.
    std::uint64_t handover_ns = 300'000;
    // From the end of an iteration until a rank asks for the turn, in ns: drawn evenly from 0 to
    // this. Its program ends a step and begins the next on processors that other jobs use, too. It
    // hardly lengthens a period, but decides who comes first where two jobs come back together.
    std::uint64_t late_ns = 2'000'000;
    std::uint64_t min_window_ns = 300'000;  // CROSSOVER_MIN_WINDOW_US
    std::uint64_t lease_ns = 0;             // CROSSOVER_LEASE_MS; 0 = by policy
};

struct PlanResult {
    std::vector<double> period_ms;  // of each job: mean time of an iteration
    double device_busy = 0;         // mean part of the time in which a device computed, 0 to 1
};

// Runs `jobs` (1 to 32, as a segment holds) on the same devices. O(iterations x devices x jobs).
PlanResult simulate(std::span<const PlannedJob> jobs, const PlanSetting& setting, PlanMode mode);

// T* of one iteration of each job, in ms: max(sum C, sum M, max(C + E)); without sum M for separate
// links.
double plan_bound_ms(std::span<const PlannedJob> jobs, bool separate_links);

// How many times faster the jobs get on together than one after the other: the sum over the jobs of
// (iteration time alone / iteration time together). 1: sharing gains nothing. `alone_ms` as
// simulated for each job by itself.
double combined_speed(std::span<const double> alone_ms, std::span<const double> together_ms);

}  // namespace crossover::command
