// SPDX-License-Identifier: Apache-2.0
// What one launch on one communicator does: the collectives and messages that a group fused, how
// they appear to the device server, and their effect on memory. Launching itself is in group.cpp.
#pragma once

#include <string>
#include <vector>

#include "../client/collective.h"
#include "comm.hpp"

namespace simgpu::nccl {

enum class Kind : std::uint8_t {
    kAllReduce,
    kBroadcast,
    kReduce,
    kAllGather,
    kReduceScatter,
    kSend,
    kReceive,
};

struct Task {
    Kind kind{};
    const void* send = nullptr;
    void* receive = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclInt8;
    Reduction reduction;
    const void* device_scalar = nullptr;  // read when the collective runs
    int peer = 0;                         // root, or the other side of a message

    std::size_t bytes() const { return count * element_size(type); }
};

// The device server's numbers for messages start here; below are collectives.
inline constexpr std::uint64_t kFirstMessageNumber = std::uint64_t{1} << 62;

class Plan {
  public:
    // ncclInvalidUsage (and no plan) when a rank's messages to itself do not match.
    static ncclResult_t make(Comm comm, std::vector<Task> tasks, std::shared_ptr<Plan>* plan);

    // As a real kernel's symbol, e.g. _Z38ncclDevKernel_AllReduce_Sum_f32_RING_LL24ncclDevKernel...
    const std::string& kernel_name() const { return kernel_name_; }
    const Comm& comm() const { return comm_; }

    // What cuLaunchKernelEx gets in `extra`; it holds a reference to the plan until released.
    static SimgpuCollective launch_argument(const std::shared_ptr<Plan>& plan);

  private:
    struct Instance;
    friend struct Callbacks;

    Plan(Comm comm, std::vector<Task> tasks);
    std::size_t staged_bytes(const Task& task) const;
    std::uint64_t link_bytes(const Task& task) const;
    void stage(const Task& task, unsigned char* target) const;
    bool has_result(const Task& task) const;
    std::size_t result_bytes(const Task& task) const;
    void finish(const Task& task, const std::vector<const void*>& inputs, void* target) const;
    bool find_inputs(Instance& instance) const;
    void start(Instance& instance);
    void staged(Instance& instance) const;
    void done(Instance& instance, bool aborted);

    Comm comm_;
    std::vector<Task> collectives_;
    std::vector<std::size_t> offsets_;  // of each collective in the exchange buffer
    std::size_t staged_total_ = 0;
    std::uint64_t link_total_ = 0;
    std::uint64_t signature_ = 0;
    std::vector<Task> sends_;
    std::vector<Task> receives_;
    std::vector<int> send_peers_;
    std::vector<int> receive_peers_;
    std::vector<Task> self_sends_;
    std::vector<Task> self_receives_;
    std::string kernel_name_;
};

}  // namespace simgpu::nccl
