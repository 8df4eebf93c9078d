// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler plug-in interface as the vendor's library drives it: which plug-in is opened,
// what each version of the interface is told, when and on which thread. Declarations are our own,
// after the facts of NCCL's public headers (github.com/NVIDIA/nccl, src/include/plugin/profiler,
// tags v2.23.4-1 to v2.30.7-1). No communicator logic here.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "plan.hpp"

namespace simgpu::nccl {

// One communicator's side of the profiler. Thread-safe.
class CommProfiler {
  public:
    // Null where there is no plug-in: NCCL_PROFILER_PLUGIN is "none", or names none that can be
    // opened; without it, libnccl-profiler.so. SIMGPU_NCCL_PROFILER is the newest interface that is
    // looked for, 0 to 6: 0 as before NCCL 2.23; 5, that of the release whose header this is, by
    // default.
    static std::unique_ptr<CommProfiler> open(std::uint64_t key, int rank, int ranks);
    ~CommProfiler();
    CommProfiler(const CommProfiler&) = delete;
    CommProfiler& operator=(const CommProfiler&) = delete;

    // Around a call that adds a task; on the calling thread.
    void* call_begins(const Task& task, cudaStream_t stream);
    void event_ends(void* event);
    // Around the launch of a plan's kernel; on the launching thread. Versions from 5.
    void* launch_begins(cudaStream_t stream);
    // After the launch of a plan's kernel, on the launching thread: the plan and its tasks.
    void launched(const std::vector<Task>& tasks);

  private:
    CommProfiler(void* context, int rank) : context_(context), rank_(rank) {}
    void* start(void* descriptor);

    void* const context_;
    const int rank_;
    std::uint64_t sequence_ = 0;
};

}  // namespace simgpu::nccl
