// SPDX-License-Identifier: Apache-2.0
// NCCL as PyTorch's ProcessGroupNCCL drives it (2.1 and later): a stream of its own for
// asynchronous collectives, put behind the caller's current stream by an event; an end event for
// each, which wait() puts a stream behind, not the CPU; and a watchdog thread that asks those
// events every 100 ms. Known from torch/csrc/distributed/c10d/ProcessGroupNCCL.cpp. No training
// here.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <cstddef>
#include <functional>
#include <list>
#include <memory>
#include <mutex>
#include <thread>
#include <vector>

#include "../dp_options.hpp"

namespace patterns {

// An asynchronous collective.
class Work {
  public:
    Work() = default;
    explicit Work(std::shared_ptr<CUevent_st> end) : end_(std::move(end)) {}
    // What `current` is given from here on waits for it. The CPU does not.
    void wait(cudaStream_t current) const;

  private:
    std::shared_ptr<CUevent_st> end_;
};

struct Message {
    float* data = nullptr;
    std::size_t count = 0;
    int peer = 0;
    bool send = false;
};

// One thread's. On failure everything ends the process with one line.
class ProcessGroup {
  public:
    enum class Blocking { kYes, kNo };

    // Meets the other ranks on the current device.
    explicit ProcessGroup(const dp::Options& options, Blocking blocking = Blocking::kYes);
    ~ProcessGroup();
    ProcessGroup(const ProcessGroup&) = delete;
    ProcessGroup& operator=(const ProcessGroup&) = delete;

    // async_op=True: on the group's own stream, after what `current` has been given so far.
    Work all_reduce(float* data, std::size_t count, cudaStream_t current);
    // isend and irecv in one group (batch_isend_irecv), likewise.
    Work exchange(const std::vector<Message>& messages, cudaStream_t current);

    // async_op=False, since 2.8: on the current stream itself.
    void all_reduce_now(float* data, std::size_t count, cudaStream_t current);
    void all_gather_now(const float* part, float* whole, std::size_t part_count,
                        cudaStream_t current);
    void reduce_scatter_now(const float* whole, float* part, std::size_t part_count,
                            cudaStream_t current);

    // Waits on the CPU.
    double from_rank_zero(double value);
    void barrier();

    ncclComm_t communicator() const { return communicator_; }

  private:
    void submit(cudaStream_t stream, const std::function<ncclResult_t()>& call, const char* what,
                std::shared_ptr<CUevent_st>* end);
    Work submit_behind(cudaStream_t current, const std::function<ncclResult_t()>& call,
                       const char* what);
    void settle(ncclResult_t result, const char* what);
    std::shared_ptr<CUevent_st> take_event();
    void watch();

    const dp::Options options_;
    int device_ = 0;
    ncclComm_t communicator_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t ready_ = nullptr;  // the caller's stream, at each call
    float* scratch_ = nullptr;

    std::mutex mutex_;  // everything below
    std::condition_variable ended_;
    std::vector<cudaEvent_t> spare_;
    std::list<std::shared_ptr<CUevent_st>> under_way_;
    bool end_ = false;
    std::thread watchdog_;
};

}  // namespace patterns
