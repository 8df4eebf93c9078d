// SPDX-License-Identifier: Apache-2.0
// What dp_train measured, and its JSON file. Knows neither CUDA nor NCCL.
#pragma once

#include <cstdint>
#include <vector>

#include "dp_options.hpp"

namespace dp {

struct Measurements {
    std::vector<float> losses;  // by iteration, warm-up included
    std::vector<double>
        iteration_ms;                // device time between the ends of iterations, warm-up excluded
    double mean_iteration_ms = 0.0;  // by the host's clock, warm-up excluded
    std::int64_t start_ns = 0;       // CLOCK_MONOTONIC at the first iteration, warm-up included
    std::int64_t measured_ns = 0;    // at the first measured iteration
    std::int64_t end_ns = 0;         // after the last
    double burn_per_ms = 0.0;        // rounds
    std::uint64_t gradient_bytes = 0;  // reduced an iteration
    std::uint64_t parameters_hash = 0;
};

// Writes options.json. On failure prints one line and exits with 1.
void write_json(const Options& options, const Measurements& measurements);

}  // namespace dp
