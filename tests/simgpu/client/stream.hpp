// SPDX-License-Identifier: Apache-2.0
// Submission: a unit of work on its way into a stream, or into a graph when the stream captures.
// Resolution of stream handles and the ordering rules of the default streams.
#pragma once

#include <optional>

#include "collective.h"
#include "driver.hpp"

namespace simgpu {

// A launch of the NCCL library; calls release(user) when the last graph or operation that holds it
// is gone.
class CollectiveLaunch {
  public:
    explicit CollectiveLaunch(const SimgpuCollective& collective) : collective_(collective) {}
    ~CollectiveLaunch();
    CollectiveLaunch(const CollectiveLaunch&) = delete;
    CollectiveLaunch& operator=(const CollectiveLaunch&) = delete;
    bool prepare(SimgpuSubmission* submission) const;

  private:
    SimgpuCollective collective_;
};

// What one operation is, independent of when and how often it is submitted: a graph node keeps a
// copy of it.
struct Work {
    CUgraphNodeType node_type = CU_GRAPH_NODE_TYPE_EMPTY;
    OpKind kind = OpKind::kMarker;
    std::uint64_t cost_ns = 0;  // device time alone on the whole device
    float sm_share = 1.0F;
    std::function<void()> effect;  // on the executor thread at completion
    std::function<void()> host_function;
    std::optional<ValueWait> value_wait;
    std::shared_ptr<CollectiveLaunch> collective;
    CUevent event = nullptr;  // event record and event wait nodes
};

// Device handle 0, CU_STREAM_LEGACY, CU_STREAM_PER_THREAD or a stream of the program.
CUresult resolve_stream(Driver& d, CUstream handle, DefaultStream meaning, CUstream* stream);

// Puts `work` at the end of `stream`, or into its capture. The lock is held and may be released
// while the stream is full. `done_ns` (may be null) receives the time of completion, `op` (may be
// null) the operation, 0 when captured.
CUresult submit(Driver& d, CUstream stream, Work work, std::unique_lock<std::mutex>& lock,
                TimeStamp done_ns = nullptr, OpId* op = nullptr);

// Below capture: straight onto the wire. `queue` is the stream's id or a graph's lane.
struct Queue {
    std::uint64_t id = 0;
    OpId* last_op = nullptr;
    Counter in_flight;  // may be null
};
CUresult enqueue(Driver& d, const Queue& queue, const Work& work, TimeStamp done_ns = nullptr);
CUresult enqueue_wait(Driver& d, const Queue& queue, OpId op);
Queue queue_of(CUstream stream);
// The waits that the default streams' rules put before the next operation of `stream`.
CUresult enqueue_implicit_waits(Driver& d, CUstream stream);
// Whether work on `stream`, the legacy one, would depend on a capturing stream.
bool depends_on_capture(CUstream stream, const Capture& capture);
// While the legacy stream would depend on a capturing stream: invalidates that capture and says so.
CUresult check_legacy_implicit(Driver& d, CUstream stream);
// Waits while the stream is full. The lock is released meanwhile; the stream may be gone
// afterwards.
CUresult wait_for_room(Driver& d, CUstream stream, std::unique_lock<std::mutex>& lock);

// In a call that launches a kernel, before it takes the lock: the call returns late
// (SIMGPU_LAUNCH).
struct LaunchReturn {
    LaunchReturn() = default;
    LaunchReturn(const LaunchReturn&) = delete;
    LaunchReturn& operator=(const LaunchReturn&) = delete;
    ~LaunchReturn();
};
// Whether streams can wait for values in memory and write them (SIMGPU_STREAM_MEM_OPS).
bool has_stream_memory_operations();

// Newest operations that `stream` (default stream rules included) must finish to be idle.
std::vector<OpId> outstanding(const Driver& d, CUstream stream);
std::vector<OpId> outstanding(const Driver& d, CUcontext context);
// After finding everything complete: whether that is so because the server is gone and nothing is
// in flight any more.
CUresult still_there(const Driver& d);
// Waits for them without the lock.
CUresult wait_idle(Driver& d, const std::vector<OpId>& ops, std::unique_lock<std::mutex>& lock);

CUstream make_stream(Driver& d, CUcontext context, unsigned flags, int priority, bool legacy);
void destroy_stream(Driver& d, CUstream stream);

// Waits for an event are in event.cpp; a graph uses these two.
CUresult record_event(Driver& d, CUevent event, const Queue& queue);
CUresult wait_event(Driver& d, CUevent event, const Queue& queue);

}  // namespace simgpu
