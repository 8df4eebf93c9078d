// SPDX-License-Identifier: Apache-2.0
// What a pattern is: a way in which some framework submits the iterations of a training run. Each
// has a file of its own, NAME.cpp, and a row in patterns.def. No pattern here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <string>

#include "../dp_device.hpp"
#include "../dp_model.hpp"
#include "../dp_options.hpp"

namespace patterns {

struct Settings {
    dp::Options options;
    int micro_batches = 4;  // of an iteration: pipeline, ddp_no_sync
    int eval_every = 5;     // iterations; eval_and_checkpoint
    int eval_batches = 3;
    int checkpoint_every = 7;  // iterations
    int stall_every = 4;       // iterations
    double stall_ms = 5.0;
    double cycle_ms = 1.0;  // between two negotiations: horovod_*
    double fusion_mb = 128.0;
    double cpu_link_gbps = 0.0;  // gloo_cpu; 0: as fast as the sockets are
    int local_devices = 2;       // one_process_two_devices
};

// One rank of a run. Made after its device has been selected; the constructor meets the other
// ranks. On failure everything ends the process with one line. Used by one thread.
class Pattern {
  public:
    Pattern() = default;
    virtual ~Pattern() = default;  // leaves the other ranks; nothing is under way any more
    Pattern(const Pattern&) = delete;
    Pattern& operator=(const Pattern&) = delete;

    // Submits one iteration, which ends on compute() and leaves its loss in history()[number], the
    // same on all ranks.
    virtual void iteration(int number) = 0;
    virtual cudaStream_t compute() const = 0;
    virtual const float* history() const = 0;
    // Waits until all ranks are there.
    virtual void barrier() = 0;
    // For the report: a hash of this rank's parameters, bytes that it hands to others in an
    // iteration, rounds of extra device time a millisecond.
    virtual std::uint64_t parameters_hash() = 0;
    virtual std::uint64_t communicated_bytes() const = 0;
    virtual double burn_per_ms() const = 0;
};

// Prints one line and exits with 2: the settings do not suit the pattern.
[[noreturn]] void refuse(const std::string& message);

#define PATTERN(name, text) std::unique_ptr<Pattern> make_##name(const Settings& settings);
#include "patterns.def"
#undef PATTERN

}  // namespace patterns
