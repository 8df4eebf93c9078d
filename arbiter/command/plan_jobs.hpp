// SPDX-License-Identifier: Apache-2.0
// What `crossover plan` knows of a job: how long an iteration computes and communicates. Read from
// a file of descriptions or from what `crossover compare --json` measured. No simulation here.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace crossover::command {

// A value of each rank; ranks beyond the last begin with the first again, so one value is all
// ranks'.
using PerRank = std::vector<double>;
inline double of_rank(const PerRank& values, std::size_t rank) {
    return values[rank % values.size()];
}

// A stretch of compute, at the end of which a collective is submitted.
struct PlannedStep {
    PerRank compute_ms = {0};   // the device to itself; 0: that rank only communicates
    double communicate_ms = 0;  // the link to itself; 0 = no collective
    bool waits = true;  // what computes next needs all collectives so far; the last step's always
    PerRank window_ms = {0};  // how long compute then stands behind them, alone; of course_of()
};

struct PlannedJob {
    std::string name;
    double compute_ms = 0;  // C: of one iteration, the device to itself; > 0; the longest rank's
    double communicate_ms = 0;  // M: all collectives of one iteration, the link to itself
    // The collectives: that many of equal length, of which the first is submitted once compute is
    // `first_bucket` (0 to 1) through and the last at its end, the others evenly in between.
    std::uint32_t buckets = 1;
    double first_bucket = 1;
    // If not empty, the course of an iteration: compute_ms and communicate_ms are its sums then,
    // buckets and first_bucket mean nothing.
    std::vector<PlannedStep> steps;
    double jitter = 0;  // compute of each rank and iteration varies evenly by this part, 0 to 1
    std::uint32_t weight = 0;  // CROSSOVER_WEIGHT; 0 = none given
};

// An iteration step by step; at least one, windows filled in.
std::vector<PlannedStep> course_of(const PlannedJob& job);

// E: the part of M that compute does not hide, in ms, with device and link to itself; of the rank
// that computes longest.
double exposed_ms(const PlannedJob& job);

// Reads the file of jobs. Throws UsageError: one line that names the file, the job and what is
// allowed. A description is
//   {"jobs": [{"name": text, "compute_ms": number, "communicate_ms": number, "buckets": whole,
//              "first_bucket": number, "jitter": number, "weight": whole, "count": whole},
//             {"name": text, "steps": [{"compute_ms": number, "communicate_ms": number,
//              "wait": true or false}], "jitter": number, "weight": whole, "count": whole},
//             {"name": text, "measured": file of compare --json, "job": "A", "iterations": whole}]}
// where only name, a job's compute_ms and one of steps or measured in its place are required; a
// step's compute_ms may be a list, a number for each rank (a pipeline's stages), all lists alike
// long; "count" makes so many jobs alike; "measured" is relative to the file's own folder. A
// measured job's M before E becomes collectives beside compute: the one that ends the iteration is
// as long as E.
std::vector<PlannedJob> read_planned_jobs(const std::string& path);

}  // namespace crossover::command
