// SPDX-License-Identifier: Apache-2.0
// A communicator of the virtual GPU's libnccl: identity, life cycle, counters that number its
// operations, user-defined operators. What a collective does with data is in plan.cpp; grouping and
// launching in group.cpp.
#pragma once

#include <nccl.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "exchange.hpp"
#include "reduce.hpp"

namespace simgpu::nccl {
class CommProfiler;
}

// The public header only declares it; the name is the vendor's.
struct ncclComm {
  public:
    ncclComm(std::uint64_t key, int rank, int ranks, int device, bool blocking);
    ~ncclComm();
    ncclComm(const ncclComm&) = delete;
    ncclComm& operator=(const ncclComm&) = delete;

    std::uint64_t key() const { return key_; }
    int rank() const { return rank_; }
    int ranks() const { return ranks_; }
    int device() const { return device_; }
    bool blocking() const { return blocking_; }
    std::uint64_t number() const { return number_; }
    simgpu::nccl::Exchange* exchange() { return exchange_.get(); }
    // Null without a profiler plug-in; set once it has joined.
    simgpu::nccl::CommProfiler* profiler() { return profiler_.get(); }

    // Meets the other ranks at the device server; blocks until all are there, abort() is called, or
    // the server dies.
    ncclResult_t join();
    // Meets all ranks once more under a key derived from `salt` and agrees on `mine`: gives every
    // rank's value, by rank. Blocks like join().
    ncclResult_t gather(std::uint64_t salt, const std::vector<int>& mine,
                        std::vector<std::vector<int>>* all);
    std::uint64_t next_split() { return splits_.fetch_add(1); }

    // Why operations cannot be called now; ncclSuccess when they can.
    ncclResult_t usable() const;
    // What ncclCommGetAsyncError says.
    ncclResult_t async_result() const;
    // Keeps the first failure of something asynchronous.
    void set_async_error(ncclResult_t error);

    // A job (initialisation, launch, finalisation) that goes on after its call returned.
    void job_begins();
    void job_ends();

    // Numbers one submission of a plan: a collective's number when `collective`, and the next
    // sequence of each message. False when the communicator is gone or revoked. Counts the
    // submission as in flight.
    bool begin(bool collective, std::uint64_t* number, const std::vector<int>& sends,
               const std::vector<int>& receives, std::vector<std::uint64_t>* send_sequences,
               std::vector<std::uint64_t>* receive_sequences);
    void end();

    // Waits until no job and no operation is left, as long as that takes: like the vendor's, it is
    // for abort() to give up on peers that never come.
    void drain();
    // The same for operations alone: for a job to call.
    void drain_operations();
    // No operation may begin any more; those in flight complete as aborted, on all ranks.
    void revoke();
    void finalize() { finalized_ = true; }
    // Leaves the communicator at the device server once nothing is in flight.
    void leave();

    // User-defined operators (scaled sums). The handle is at least ncclNumOps.
    struct UserOperator {
        ncclDataType_t type;
        std::uint64_t scalar;       // the value, when device_scalar is null
        const void* device_scalar;  // read when the collective runs
    };
    ncclRedOp_t add_operator(const UserOperator& op);
    bool remove_operator(ncclRedOp_t op);
    std::optional<UserOperator> find_operator(ncclRedOp_t op) const;

  private:
    ncclResult_t meet(std::uint64_t key);
    // With the lock: whether the caller must leave_server() once it has released it. True once.
    bool leaves_now();
    void leave_server();

    const std::uint64_t key_;
    const int rank_;
    const int ranks_;
    const int device_;
    const bool blocking_;
    std::uint64_t number_ = 0;
    std::unique_ptr<simgpu::nccl::Exchange> exchange_;
    std::unique_ptr<simgpu::nccl::CommProfiler> profiler_;
    std::atomic<std::uint64_t> splits_{0};
    std::atomic<ncclResult_t> async_error_{ncclSuccess};
    std::atomic<bool> finalized_{false};
    // Read by the driver while a join waits: set atomically.
    volatile std::uint32_t abort_flag_ = 0;

    // Taken under the driver's lock, which a launch holds in begin(): no call of the driver while
    // it is held.
    mutable std::mutex mutex_;
    std::condition_variable idle_;
    bool joined_ = false;
    bool revoked_ = false;
    bool leaving_ = false;
    bool left_ = false;
    int jobs_ = 0;
    std::uint64_t in_flight_ = 0;
    std::uint64_t next_collective_ = 0;
    std::vector<std::uint64_t> sent_;      // messages to each rank so far
    std::vector<std::uint64_t> received_;  // messages from each rank so far
    std::vector<std::optional<UserOperator>> operators_;
};

namespace simgpu::nccl {

using Comm = std::shared_ptr<ncclComm>;

// Handles that a program holds. find_comm gives null for anything that is not one, NULL included.
void publish(const Comm& comm);
Comm find_comm(ncclComm_t handle);
void withdraw(ncclComm_t handle);

// Mixes a value into a key; the same on all ranks.
std::uint64_t mix(std::uint64_t key, std::uint64_t value);

}  // namespace simgpu::nccl
