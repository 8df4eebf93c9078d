// SPDX-License-Identifier: Apache-2.0
// The loop around the iterations of a training program: start, times, reading the loss, the line
// that ends a run. Knows no model and no communication.
#pragma once

#include <cuda_runtime_api.h>

#include <functional>

#include "dp_options.hpp"
#include "dp_report.hpp"

namespace dp {

struct Loop {
    cudaStream_t compute = nullptr;      // of the current device; an iteration ends on it
    const float* history = nullptr;      // on the device: losses by iteration, warm-up included
    std::function<void(int)> iteration;  // submits iteration `number`, its loss included
    std::function<void()> barrier;       // waits until all ranks are there
};

// Selects the options' device. Where there is none, prints one line and exits.
void select_device(const Options& options);

// Runs all iterations: losses and times of the result. On failure prints one line and exits.
Measurements run(const Options& options, const Loop& loop);

// Prints the line that ends a run and, on rank 0, writes options.json where that is asked for.
void report(const Options& options, const Measurements& measurements);

}  // namespace dp
