// SPDX-License-Identifier: Apache-2.0
// Submission of work to streams, and the ordering between the legacy default stream and blocking
// streams. No exported function here.

#include "stream.hpp"

#include <time.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <string_view>
#include <thread>

#include "capture.hpp"

namespace simgpu {
namespace {

// As on a real device, a launch blocks once this many operations of its stream are in flight.
constexpr std::uint32_t kStreamDepth = 1024;

std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(now.tv_nsec);
}

bool says(const char* variable, std::string_view word) {
    const char* const text = std::getenv(variable);
    return text != nullptr && text == word;
}

bool is_blocking(CUstream stream) {
    return !stream->legacy && (stream->flags & CU_STREAM_NON_BLOCKING) == 0;
}

}  // namespace

CollectiveLaunch::~CollectiveLaunch() {
    if (collective_.release != nullptr) collective_.release(collective_.user);
}

bool CollectiveLaunch::prepare(SimgpuSubmission* submission) const {
    *submission = SimgpuSubmission{};
    return collective_.prepare(collective_.user, submission) == 0;
}

Queue queue_of(CUstream stream) { return {stream->id, &stream->last_op, stream->in_flight}; }

CUresult enqueue_wait(Driver& d, const Queue& queue, OpId op) {
    if (op == 0 || op == *queue.last_op || d.connection->complete(op)) return CUDA_SUCCESS;
    Request request;
    request.kind = RequestKind::kSubmit;
    request.op_kind = OpKind::kWait;
    request.op = d.connection->allocate();
    request.stream = queue.id;
    request.wait_op = op;
    request.submit_ns = now_ns();
    if (!d.connection->expect(request.op, {}) || !d.connection->send({&request, 1})) return lost(d);
    *queue.last_op = request.op;
    return CUDA_SUCCESS;
}

CUresult enqueue(Driver& d, const Queue& queue, const Work& work, TimeStamp done_ns) {
    Connection& connection = *d.connection;
    Request request;
    request.kind = RequestKind::kSubmit;
    request.op_kind = work.kind;
    request.stream = queue.id;
    request.cost_ns = work.cost_ns;
    request.sm_share = work.sm_share;
    request.submit_ns = now_ns();
    request.flags = work.node_type == CU_GRAPH_NODE_TYPE_MEMSET ? kFill : 0;

    PendingOp pending;
    pending.done_ns = std::move(done_ns);
    pending.in_flight = queue.in_flight;
    std::vector<Request> requests;
    if (work.collective) {
        SimgpuSubmission submission;
        if (!work.collective->prepare(&submission)) return CUDA_ERROR_LAUNCH_FAILED;
        const bool member = d.comms.contains({submission.comm, submission.rank});
        if (submission.rendezvous_count != 0 && !member) {  // aborted or destroyed meanwhile
            if (submission.on_done != nullptr) submission.on_done(submission.instance, 1);
            return CUDA_ERROR_LAUNCH_FAILED;
        }
        request.op = connection.allocate();
        pending.on_start = [submission] {
            if (submission.on_start != nullptr) submission.on_start(submission.instance);
        };
        if (submission.on_staged != nullptr) {
            pending.on_staged = [submission] { submission.on_staged(submission.instance); };
        }
        pending.on_done = [submission, keep = work.collective](bool aborted) {
            if (submission.on_done != nullptr)
                submission.on_done(submission.instance, aborted ? 1 : 0);
        };
        request.flags = kNotifyStart;
        if (submission.sm_share > 0) request.sm_share = submission.sm_share;
        if (submission.rendezvous_count == 0) {
            request.op_kind = OpKind::kKernel;
            if (submission.cost_ns != 0) request.cost_ns = submission.cost_ns;
        } else {
            request.comm_key = submission.comm;
            request.rank = submission.rank;
            request.rendezvous = submission.rendezvous[0].number;
            request.link_bytes = submission.rendezvous[0].link_bytes;
            request.participants = submission.rendezvous[0].participants;
            for (std::uint32_t i = 1; i < submission.rendezvous_count; ++i) {
                Request& more = requests.emplace_back(request);
                more.kind = RequestKind::kRendezvous;
                more.rendezvous = submission.rendezvous[i].number;
                more.link_bytes = submission.rendezvous[i].link_bytes;
                more.participants = submission.rendezvous[i].participants;
            }
        }
    } else {
        request.op = connection.allocate();
        if (work.effect) {
            pending.on_done = [effect = work.effect](bool aborted) {
                if (!aborted) effect();
            };
        }
        if (work.host_function || work.value_wait) {
            pending.host_function = work.host_function;
            pending.value_wait = work.value_wait;
            request.flags = kNotifyStart;
        }
    }
    const OpId op = request.op;
    requests.push_back(request);
    if (queue.in_flight) queue.in_flight->fetch_add(1, std::memory_order_relaxed);
    const auto give_up = pending.on_done;
    if (!connection.expect(op, std::move(pending))) {
        if (give_up) give_up(true);
        return lost(d);
    }
    *queue.last_op = op;
    return connection.send(requests) ? CUDA_SUCCESS : lost(d);
}

CUresult enqueue_implicit_waits(Driver& d, CUstream stream) {
    if (stream->legacy) {
        for (CUstream other : stream->context->streams) {
            if (!is_blocking(other) || other->last_op == other->joined_by_legacy) continue;
            if (const CUresult rc = enqueue_wait(d, queue_of(stream), other->last_op);
                rc != CUDA_SUCCESS)
                return rc;
            other->joined_by_legacy = other->last_op;
        }
        for (const auto& [op, blocking] : stream->context->orphans) {
            if (!blocking) continue;
            if (const CUresult rc = enqueue_wait(d, queue_of(stream), op); rc != CUDA_SUCCESS)
                return rc;
        }
    } else if (is_blocking(stream)) {
        const OpId newest = stream->context->legacy->last_op;
        if (newest == stream->joined) return CUDA_SUCCESS;
        if (const CUresult rc = enqueue_wait(d, queue_of(stream), newest); rc != CUDA_SUCCESS)
            return rc;
        stream->joined = newest;
    }
    return CUDA_SUCCESS;
}

bool depends_on_capture(CUstream stream, const Capture& capture) {
    return stream->legacy &&
           std::any_of(capture.streams.begin(), capture.streams.end(), [&](CUstream other) {
               return other->context == stream->context && is_blocking(other);
           });
}

CUresult check_legacy_implicit(Driver& d, CUstream stream) {
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : d.captures) {
        if (!depends_on_capture(stream, *capture)) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
    }
    return result;
}

CUresult wait_for_room(Driver& d, CUstream stream, std::unique_lock<std::mutex>& lock) {
    if (stream->in_flight->load(std::memory_order_relaxed) < kStreamDepth) return CUDA_SUCCESS;
    const Counter in_flight = stream->in_flight;
    // The worst that a real driver might do: nobody else gets into it meanwhile.
    static const bool keeps_lock = says("SIMGPU_FULL_QUEUE", "locks");
    if (keeps_lock)
        return d.connection->wait_below(in_flight, kStreamDepth) ? CUDA_SUCCESS : lost(d);
    lock.unlock();
    const bool room = d.connection->wait_below(in_flight, kStreamDepth);
    lock.lock();
    if (!room) return lost(d);
    return d.streams.contains(stream) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}

LaunchReturn::~LaunchReturn() {
    static const bool late = says("SIMGPU_LAUNCH", "late");
    if (late) std::this_thread::sleep_for(std::chrono::milliseconds(200));
}

bool has_stream_memory_operations() {
    static const bool has = !says("SIMGPU_STREAM_MEM_OPS", "none");
    return has;
}

CUresult submit(Driver& d, CUstream stream, Work work, std::unique_lock<std::mutex>& lock,
                TimeStamp done_ns, OpId* op) {
    if (op != nullptr) *op = 0;
    if (!stream->capture) {
        if (const CUresult rc = wait_for_room(d, stream, lock); rc != CUDA_SUCCESS) return rc;
    }
    if (stream->capture) return add_captured(d, stream, std::move(work));
    if (const CUresult rc = check_legacy_implicit(d, stream); rc != CUDA_SUCCESS) return rc;
    if (const CUresult rc = enqueue_implicit_waits(d, stream); rc != CUDA_SUCCESS) return rc;
    const CUresult rc = enqueue(d, queue_of(stream), work, std::move(done_ns));
    if (rc == CUDA_SUCCESS && op != nullptr) *op = stream->last_op;
    return rc;
}

CUresult still_there(const Driver& d) {
    return d.connection->health() == Health::kGood ? CUDA_SUCCESS : lost(d);
}

std::vector<OpId> outstanding(const Driver& d, CUstream stream) {
    std::vector<OpId> ops;
    auto add = [&](CUstream one) {
        if (one->last_op != 0 && !d.connection->complete(one->last_op)) ops.push_back(one->last_op);
    };
    add(stream);
    if (stream->legacy) {
        for (CUstream other : stream->context->streams)
            if (is_blocking(other)) add(other);
        for (const auto& [op, blocking] : stream->context->orphans)
            if (blocking && !d.connection->complete(op)) ops.push_back(op);
    }
    return ops;
}

std::vector<OpId> outstanding(const Driver& d, CUcontext context) {
    std::vector<OpId> ops;
    for (CUstream stream : context->streams)
        if (stream->last_op != 0 && !d.connection->complete(stream->last_op))
            ops.push_back(stream->last_op);
    for (const auto& orphan : context->orphans)
        if (!d.connection->complete(orphan.first)) ops.push_back(orphan.first);
    return ops;
}

CUresult wait_idle(Driver& d, const std::vector<OpId>& ops, std::unique_lock<std::mutex>& lock) {
    if (ops.empty()) return still_there(d);
    lock.unlock();
    const bool done = d.connection->wait_all(ops);
    lock.lock();
    return done ? CUDA_SUCCESS : lost(d);
}

CUstream make_stream(Driver& d, CUcontext context, unsigned flags, int priority, bool legacy) {
    auto stream = std::make_unique<CUstream_st>();
    stream->context = context;
    stream->id = d.next_stream_id++;
    stream->flags = flags;
    stream->priority = priority;
    stream->legacy = legacy;
    stream->in_flight = std::make_shared<std::atomic<std::uint32_t>>(0);
    Request request;
    request.kind = RequestKind::kStreamCreate;
    request.stream = stream->id;
    request.device = context->device->physical;
    request.priority = priority;
    d.streams.insert(stream.get());
    context->streams.insert(stream.get());
    d.connection->send({&request, 1});  // a dead server shows at the first submission
    return stream.release();
}

void destroy_stream(Driver& d, CUstream stream) {
    leave_capture(d, stream);
    Request request;
    request.kind = RequestKind::kStreamDestroy;
    request.stream = stream->id;
    d.connection->send({&request, 1});
    // What the stream still runs completes, and stands before the legacy stream's next operation.
    auto& orphans = stream->context->orphans;
    std::erase_if(orphans,
                  [&](const auto& orphan) { return d.connection->complete(orphan.first); });
    if (stream->last_op != 0 && !d.connection->complete(stream->last_op))
        orphans.emplace_back(stream->last_op, is_blocking(stream));
    stream->context->streams.erase(stream);
    d.streams.erase(stream);
    delete stream;
}

CUresult resolve_stream(Driver& d, CUstream handle, DefaultStream meaning, CUstream* stream) {
    if (handle == nullptr)
        handle = meaning == DefaultStream::kLegacy ? CU_STREAM_LEGACY : CU_STREAM_PER_THREAD;
    if (handle != CU_STREAM_LEGACY && handle != CU_STREAM_PER_THREAD) {
        if (!d.streams.contains(handle)) return CUDA_ERROR_INVALID_HANDLE;
        *stream = handle;
        return CUDA_SUCCESS;
    }
    CUcontext context = nullptr;
    if (const CUresult rc = current_context(&context); rc != CUDA_SUCCESS) return rc;
    if (handle == CU_STREAM_LEGACY) {
        *stream = context->legacy;
        return CUDA_SUCCESS;
    }
    CUstream& mine = this_thread().per_thread_streams[context];
    if (mine == nullptr || !d.streams.contains(mine))
        mine = make_stream(d, context, CU_STREAM_DEFAULT, 0, false);
    *stream = mine;
    return CUDA_SUCCESS;
}

}  // namespace simgpu
