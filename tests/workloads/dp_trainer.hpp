// SPDX-License-Identifier: Apache-2.0
// Data-parallel training of a small network, one process a rank: forward and backward pass on one
// stream, gradients summed over the ranks by whatever Communicator the program brings. Arithmetic
// is in dp_math.hpp, options in dp_options.hpp. Knows no NCCL.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <vector>

#include "dp_device.hpp"
#include "dp_loop.hpp"

namespace dp {

// A part of the gradients; `count` floats on the device.
struct Gradient {
    float* begin = nullptr;
    std::size_t count = 0;
};

// How the ranks communicate. Called by the training thread alone, with its device current. Ends the
// process on failure.
class Communicator {
  public:
    Communicator() = default;
    virtual ~Communicator() = default;
    Communicator(const Communicator&) = delete;
    Communicator& operator=(const Communicator&) = delete;

    // Meets the other ranks.
    virtual void connect() = 0;
    // Rank 0's value, on every rank. Waits.
    virtual double from_rank_zero(double value) = 0;
    // Waits until all ranks are there. `scratch` is a float on the device.
    virtual void barrier(float* scratch) = 0;
    // Sums gradients, adjacent in memory, over the ranks in place, once what `compute` has been
    // given so far is done. Need not wait.
    virtual void reduce(const std::vector<Gradient>& gradients, cudaStream_t compute) = 0;
    // What `compute` is given from here on sees the sums of every reduce() so far.
    virtual void finish(cudaStream_t compute) = 0;
    virtual void disconnect() = 0;
};

// Trains as the options say. On bad input or failure prints one line and exits.
Measurements train(const Options& options, Communicator& communicator);

}  // namespace dp
