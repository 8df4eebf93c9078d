// SPDX-License-Identifier: Apache-2.0
// The Horovod-like engine: a queue of tensors, a background thread that negotiates which to sum and
// launches everything on a stream of its own, and a finalizer thread that tells when it is done.
// The calling thread only queues and waits. The C interface is in api.cpp.
#pragma once

#include <cuda_runtime_api.h>
#include <nccl.h>

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "control.hpp"

namespace hvd {

// How the library learns, and tells, that a sum is there.
enum class Completion {
    kWait,   // the finalizer blocks in cudaEventSynchronize (Horovod's default)
    kPoll,   // the finalizer asks again and again (Horovod's elastic mode)
    kEvent,  // not at all: the finalizer records an event and puts the submitting stream behind it,
             // whatever is launched on that meanwhile (HOROVOD_ENABLE_ASYNC_COMPLETION)
};

struct Settings {
    int rank = 0;
    int size = 1;
    int device = 0;
    double cycle_ms = 1.0;
    std::uint64_t fusion_bytes = 0;
    Completion completion = Completion::kWait;
};

// Failures are std::runtime_error, also of what the threads do: the next synchronize() throws them.
class Engine {
  public:
    Engine(const Settings& settings, Control& control);  // the control is connected
    ~Engine();                                           // ends the threads, on all ranks
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    // See hvd.h. With kEvent `stream` is put behind the sum, and lives until that is synchronised.
    std::int64_t submit(float* data, std::uint64_t count, const std::string& name,
                        cudaStream_t stream);
    // Waits for the sum; with kEvent only until the stream is behind it.
    void synchronize(std::int64_t handle);

  private:
    struct Entry {
        std::int64_t handle = 0;
        float* data = nullptr;
        std::uint64_t count = 0;
        cudaEvent_t ready = nullptr;    // the tensor is computed
        cudaStream_t stream = nullptr;  // on which it is
    };
    struct Finishing {
        cudaEvent_t done = nullptr;
        std::vector<Entry> entries;
    };

    void background();
    void finalizer();
    bool cycle();
    void open_communicator();
    void execute(std::vector<Entry> entries);
    void copy(const std::vector<Entry>& entries, bool in);
    cudaError_t wait_for(cudaEvent_t event) const;
    cudaError_t put_behind(const Finishing& sums) const;
    void end(const std::string& fault);
    cudaEvent_t take_event();

    const Settings settings_;
    Control& control_;
    // Only the background thread.
    ncclComm_t communicator_ = nullptr;
    cudaStream_t stream_ = nullptr;
    float* fusion_buffer_ = nullptr;

    std::mutex mutex_;  // everything below
    std::condition_variable changed_;
    std::condition_variable finishing_changed_;
    std::deque<Request> requests_;
    std::map<std::string, Entry> table_;  // submitted, not launched yet
    std::map<std::int64_t, bool> done_;
    std::deque<Finishing> finishing_;
    std::vector<cudaEvent_t> spare_events_;
    std::int64_t next_handle_ = 0;
    bool stop_ = false;
    bool stopped_ = false;  // nothing will be added to finishing_
    std::string error_;

    std::thread background_;
    std::thread finalizer_;
};

}  // namespace hvd
