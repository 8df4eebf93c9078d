// SPDX-License-Identifier: Apache-2.0
// Command line of dp_train and its like, and what the launcher's environment says about this
// process. Knows neither CUDA nor NCCL.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

namespace CLI {
class App;
}

namespace dp {

struct Options {
    int rank = 0;
    int world_size = 1;
    int local_rank = 0;
    int device = -1;  // -1: the local rank
    int iterations = 20;
    int warmup = 5;
    int batch = 16;
    int hidden = 32;  // width of the hidden layers
    int layers = 4;
    double compute_ms = 0.0;      // extra device time an iteration
    double burn_per_ms = 0.0;     // rounds; 0: calibrate
    double burn_kernel_ms = 1.0;  // longest single burn kernel
    double comm_mb = 0.0;         // size of all gradients together, in 10^6 bytes; 0: unpadded
    int buckets = 1;
    bool overlap = false;
    int sync_every = 1;
    int log_every = 0;
    double learning_rate = 0.05;
    std::uint64_t seed = 1;
    std::int64_t start_at_ns = 0;  // CLOCK_MONOTONIC; 0: at once
    double timeout_s = 120.0;      // for the meeting of the ranks
    std::string json;
    std::string id_file;
    std::string master_address;
    int master_port = 0;
};

// Reads the command line and the environment. On bad input prints one line and exits with 2; --help
// exits with 0. `add` adds a program's own options.
Options parse_options(int argc, char** argv, const std::function<void(CLI::App&)>& add = {});

}  // namespace dp
