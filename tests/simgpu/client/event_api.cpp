// SPDX-License-Identifier: Apache-2.0
// Events: record, wait, query, elapsed time. Times are nominal device times, so they do not depend
// on when this process got to run.

#include <optional>

#include "capture.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

constexpr unsigned kCreateFlags =
    CU_EVENT_BLOCKING_SYNC | CU_EVENT_DISABLE_TIMING | CU_EVENT_INTERPROCESS;

CUresult record(CUevent event, CUstream handle, DefaultStream meaning, unsigned flags) {
    if ((flags & ~unsigned{CU_EVENT_RECORD_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (event->context != stream->context) return CUDA_ERROR_INVALID_HANDLE;
        if (stream->capture) {
            if ((flags & CU_EVENT_RECORD_EXTERNAL) == 0) return record_captured(stream, event);
            Work work;
            work.node_type = CU_GRAPH_NODE_TYPE_EVENT_RECORD;
            work.event = event;
            return add_captured(d, stream, std::move(work));
        }
        if ((flags & CU_EVENT_RECORD_EXTERNAL) != 0) return CUDA_ERROR_ILLEGAL_STATE;
        if (const CUresult rc = wait_for_room(d, stream, lock); rc != CUDA_SUCCESS) return rc;
        if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
        if (const CUresult rc = check_legacy_implicit(d, stream); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = enqueue_implicit_waits(d, stream); rc != CUDA_SUCCESS) return rc;
        return record_event(d, event, queue_of(stream));
    });
}

CUresult stream_wait(CUstream handle, DefaultStream meaning, CUevent event, unsigned flags) {
    if ((flags & ~unsigned{CU_EVENT_WAIT_EXTERNAL}) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if ((flags & CU_EVENT_WAIT_EXTERNAL) != 0) {
            if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
            Work work;
            work.node_type = CU_GRAPH_NODE_TYPE_WAIT_EVENT;
            work.event = event;
            return add_captured(d, stream, std::move(work));
        }
        if (event->captured) return wait_captured(d, stream, event);
        if (stream->capture) {
            // A capture may not depend on work outside of it.
            stream->capture->invalidated = true;
            return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
        }
        if (const CUresult rc = wait_for_room(d, stream, lock); rc != CUDA_SUCCESS) return rc;
        if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
        if (const CUresult rc = check_legacy_implicit(d, stream); rc != CUDA_SUCCESS) return rc;
        return wait_event(d, event, queue_of(stream));
    });
}

// The checks of cuEventQuery and cuEventSynchronize.
CUresult check_host_use(Driver& d, CUevent event) {
    if (!d.events.contains(event)) return CUDA_ERROR_INVALID_HANDLE;
    if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
    if (!event->captured) return CUDA_SUCCESS;
    if (const auto capture = event->capture.lock()) capture->invalidated = true;
    return CUDA_ERROR_CAPTURED_EVENT;
}

struct LastRecord {
    OpId op;
    TimeStamp done_ns;
    const Device* device;
    unsigned flags;  // of the event
    bool captured;
};

// What a query needs of an event, without the driver's lock: a thread that asks again and again
// does not wait for another's submissions. Nothing: no such event.
std::optional<LastRecord> last_record(Driver& d, CUevent event) noexcept {
    const std::lock_guard leaf(d.events_mutex);
    if (!d.events.contains(event)) return std::nullopt;
    return LastRecord{event->op, event->done_ns, event->context->device, event->flags,
                      event->captured};
}

CUresult query(CUevent event) {
    Driver& d = driver();
    if (const CUresult alive = check_alive(d); alive != CUDA_SUCCESS) return alive;
    const auto seen = last_record(d, event);
    if (!seen) return CUDA_ERROR_INVALID_HANDLE;
    if (seen->captured || d.capture_count != 0) {
        const CUresult rc = call([&](Driver&, auto&) { return check_host_use(d, event); });
        if (rc != CUDA_SUCCESS) return rc;
    }
    return d.connection->complete(seen->op) ? still_there(d) : CUDA_ERROR_NOT_READY;
}

CUresult elapsed(float* milliseconds, CUevent start, CUevent end) {
    if (milliseconds == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Driver& d = driver();
    if (const CUresult alive = check_alive(d); alive != CUDA_SUCCESS) return alive;
    const auto from = last_record(d, start);
    const auto to = last_record(d, end);
    for (const auto* event : {&from, &to}) {
        if (!*event) return CUDA_ERROR_INVALID_HANDLE;
        if (((*event)->flags & CU_EVENT_DISABLE_TIMING) != 0) return CUDA_ERROR_INVALID_HANDLE;
        if ((*event)->captured) return CUDA_ERROR_CAPTURED_EVENT;
        if ((*event)->op == 0) return CUDA_ERROR_INVALID_HANDLE;
    }
    if (from->device != to->device) return CUDA_ERROR_INVALID_HANDLE;
    for (const auto* event : {&from, &to})
        if (!d.connection->complete((*event)->op)) return CUDA_ERROR_NOT_READY;
    if (const CUresult rc = still_there(d); rc != CUDA_SUCCESS) return rc;
    const std::uint64_t began = from->done_ns->load(std::memory_order_acquire);
    const std::uint64_t ended = to->done_ns->load(std::memory_order_acquire);
    *milliseconds =
        static_cast<float>(static_cast<double>(static_cast<std::int64_t>(ended - began)) / 1e6);
    return CUDA_SUCCESS;
}

}  // namespace

CUresult record_event(Driver& d, CUevent event, const Queue& queue) {
    auto done_ns = std::make_shared<std::atomic<std::uint64_t>>(0);
    if (const CUresult rc = enqueue(d, queue, Work{}, done_ns); rc != CUDA_SUCCESS) return rc;
    const std::lock_guard leaf(d.events_mutex);
    event->op = *queue.last_op;
    event->done_ns = std::move(done_ns);
    event->captured = false;
    event->capture.reset();
    event->capture_nodes.clear();
    return CUDA_SUCCESS;
}

CUresult wait_event(Driver& d, CUevent event, const Queue& queue) {
    return enqueue_wait(d, queue, event->op);
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuEventCreate(CUevent* event, unsigned int flags) {
    if (event == nullptr || (flags & ~kCreateFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    // An event of several processes needs memory the virtual GPU does not share.
    if ((flags & CU_EVENT_INTERPROCESS) != 0)
        return (flags & CU_EVENT_DISABLE_TIMING) == 0 ? CUDA_ERROR_INVALID_VALUE
                                                      : CUDA_ERROR_NOT_SUPPORTED;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        auto made = std::make_unique<CUevent_st>();
        made->context = context;
        made->flags = flags;
        const std::lock_guard leaf(d.events_mutex);
        d.events.insert(made.get());
        *event = made.release();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent event) {
    return call([&](Driver& d, auto&) -> CUresult {
        const std::lock_guard leaf(d.events_mutex);
        if (d.events.erase(event) == 0) return CUDA_ERROR_INVALID_HANDLE;
        delete event;  // a pending record completes by itself
        return CUDA_SUCCESS;
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuEventDestroy(CUevent event) { return cuEventDestroy_v2(event); }

SIMGPU_PTSZ(cuEventRecord, (CUevent event, CUstream stream), record(event, stream, kDefault, 0))
SIMGPU_PTSZ(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned int flags),
            record(event, stream, kDefault, flags))
SIMGPU_PTSZ(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned int flags),
            stream_wait(stream, kDefault, event, flags))

SIMGPU_EXPORT CUresult CUDAAPI cuEventQuery(CUevent event) { return query(event); }

// Blocks without spinning whatever the event's and context's flags: processors are shared with the
// virtual devices.
SIMGPU_EXPORT CUresult CUDAAPI cuEventSynchronize(CUevent event) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (const CUresult rc = check_host_use(d, event); rc != CUDA_SUCCESS) return rc;
        if (d.connection->complete(event->op)) return still_there(d);
        return wait_idle(d, {event->op}, lock);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuEventElapsedTime(float* milliseconds, CUevent start, CUevent end) {
    return elapsed(milliseconds, start, end);
}
SIMGPU_EXPORT CUresult CUDAAPI cuEventElapsedTime_v2(float* milliseconds, CUevent start,
                                                     CUevent end) {
    return elapsed(milliseconds, start, end);
}
