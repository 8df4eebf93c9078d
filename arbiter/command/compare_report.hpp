// SPDX-License-Identifier: Apache-2.0
// What `crossover compare` says of its measurements: table and JSON. Pure.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "sampler.hpp"

namespace crossover::command {

struct ComparedJob {
    std::string name;  // A, B, ...
    std::vector<std::string> command;
    std::vector<std::uint64_t> alone_ns;      // wall time of each round, alone
    std::vector<JobSample> alone;             // what was seen of it in each round
    std::vector<JobSample> crossover;         // the same beside the others, in crossover order
    std::vector<std::uint64_t> crossover_ns;  // its wall time there
};

struct Comparison {
    bool separate_links = false;
    std::vector<ComparedJob> jobs;
    std::vector<std::uint64_t>
        uncoordinated_ns;  // of each round: from the first start to the last end
    std::vector<std::uint64_t> crossover_ns;
};

// The middle value; the mean of both middle ones. 0 for none.
std::uint64_t median_ns(std::vector<std::uint64_t> values);

// Medians over the rounds; clients = 0 where a job was not seen in every round.
JobSample typical(const std::vector<JobSample>& samples);

// T* of the typical runs alone, or 0 where a job was never seen on a device.
std::uint64_t measured_bound_ns(const Comparison& comparison);

std::string compare_text(const Comparison& comparison);
nlohmann::ordered_json compare_json(const Comparison& comparison);

// Lines about what makes the figures doubtful: a job never seen, jobs that share no device, no turn
// taken.
std::vector<std::string> compare_doubts(const Comparison& comparison);

}  // namespace crossover::command
