// SPDX-License-Identifier: Apache-2.0
// What the probes of scripts/gpu-qualify share: kernels to launch, the driver's functions, figures.
// A probe measures and says what it saw; it judges nothing and knows nothing of Crossover.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <cstdint>
#include <functional>
#include <nlohmann/json.hpp>
#include <vector>

#include "tests/workloads/dp_device.hpp"
#include "tests/workloads/dp_model.hpp"

namespace qualify {

using Json = nlohmann::ordered_json;
using Probe = Json (*)(const dp::Options&);

// The probes; each selects its device and runs on the calling thread.
Json probe_loader(const dp::Options&);
Json probe_memory_operations(const dp::Options&);
Json probe_lock(const dp::Options&);
Json probe_times(const dp::Options&);
Json probe_launch(const dp::Options&);
Json probe_slices(const dp::Options&);
Json probe_nccl(const dp::Options&);
Json probe_abort(const dp::Options&);

// Ends the process with one line unless the call has succeeded.
void check(CUresult result, const char* what);

// A driver function as programs find it at run time: dlsym. Null where the driver lacks it.
void* driver_symbol(const char* name);

template <typename Function>
Function driver_function(const char* name) {
    return reinterpret_cast<Function>(driver_symbol(name));
}

// Middle value; 0 of none.
double median(std::vector<double> values);

// A device with kernels of a chosen length, to be had once select() has been called.
class Load {
  public:
    // Calibrates unless the options say how many rounds take a millisecond.
    Load(const dp::Options& options, cudaStream_t stream);
    // A kernel of `ms` on `blocks` blocks (0: four for each multiprocessor).
    void run(double ms, cudaStream_t stream, int blocks = 0) const;
    // As short as a kernel can be.
    void nothing(cudaStream_t stream) const;
    double rounds_per_ms() const { return per_ms_; }
    int multiprocessors() const { return multiprocessors_; }

  private:
    float* sink_ = nullptr;
    int multiprocessors_ = 0;
    double per_ms_ = 0.0;
};

// Selects the options' device.
void select(const dp::Options& options);

}  // namespace qualify
