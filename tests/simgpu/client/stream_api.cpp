// SPDX-License-Identifier: Apache-2.0
// Exported functions on streams: life cycle, queries, waits for events, host functions, memory
// operations.

#include <cstring>

#include "capture.hpp"
#include "memory.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

constexpr int kGreatestPriority = -5;

// Runs body(driver, stream, lock) for a stream handle.
template <typename Body>
CUresult with_stream(CUstream handle, DefaultStream meaning, Body&& body) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        return body(d, stream, lock);
    });
}

CUresult create(CUstream* handle, unsigned flags, int priority) {
    if (handle == nullptr || (flags & ~unsigned{CU_STREAM_NON_BLOCKING}) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        const int clamped = std::min(0, std::max(kGreatestPriority, priority));
        *handle = make_stream(d, context, flags, clamped, false);
        return CUDA_SUCCESS;
    });
}

CUresult query(CUstream handle, DefaultStream meaning) {
    return with_stream(handle, meaning, [](Driver& d, CUstream stream, auto&) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = check_not_capturing(d, stream); rc != CUDA_SUCCESS) return rc;
        return outstanding(d, stream).empty() ? still_there(d) : CUDA_ERROR_NOT_READY;
    });
}

CUresult synchronize(CUstream handle, DefaultStream meaning) {
    return with_stream(handle, meaning, [](Driver& d, CUstream stream, auto& lock) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = check_not_capturing(d, stream); rc != CUDA_SUCCESS) return rc;
        return wait_idle(d, outstanding(d, stream), lock);
    });
}

CUresult host_function(CUstream handle, DefaultStream meaning, std::function<void()> function,
                       bool may_capture) {
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream, auto& lock) -> CUresult {
        if (!may_capture) {
            if (const CUresult rc = check_not_capturing(d, stream); rc != CUDA_SUCCESS) return rc;
        }
        Work work;
        work.node_type = CU_GRAPH_NODE_TYPE_HOST;
        work.kind = OpKind::kClient;
        work.host_function = std::move(function);
        return submit(d, stream, std::move(work), lock);
    });
}

CUresult launch_host_function(CUstream stream, DefaultStream meaning, CUhostFn function,
                              void* data) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return host_function(
        stream, meaning, [=] { function(data); }, true);
}

CUresult add_callback(CUstream stream, DefaultStream meaning, CUstreamCallback callback, void* data,
                      unsigned flags) {
    if (callback == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return host_function(
        stream, meaning, [=] { callback(stream, CUDA_SUCCESS, data); }, false);
}

// Memory operations: the value's width in bytes is 4 or 8.
CUresult check_value_address(CUdeviceptr address, std::size_t width) {
    Allocation found;
    if (address % width != 0 || !find_allocation(pointer_of(address), &found))
        return CUDA_ERROR_INVALID_VALUE;
    const auto offset = static_cast<std::size_t>(pointer_of(address) - found.base);
    return found.size - offset >= width ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

CUresult make_wait(CUdeviceptr address, std::uint64_t value, unsigned flags, bool wide,
                   Work* work) {
    const unsigned condition = flags & ~unsigned{CU_STREAM_WAIT_VALUE_FLUSH};
    if (condition > CU_STREAM_WAIT_VALUE_NOR) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult rc = check_value_address(address, wide ? 8 : 4); rc != CUDA_SUCCESS)
        return rc;
    constexpr ValueCondition kConditions[] = {ValueCondition::kGreaterOrEqual,
                                              ValueCondition::kEqual, ValueCondition::kAnd,
                                              ValueCondition::kNor};
    work->node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    work->kind = OpKind::kClient;
    work->value_wait = ValueWait{pointer_of(address), value, wide, kConditions[condition]};
    return CUDA_SUCCESS;
}

CUresult make_write(CUdeviceptr address, std::uint64_t value, unsigned flags, bool wide,
                    Work* work) {
    if (flags > CU_STREAM_WRITE_VALUE_NO_MEMORY_BARRIER) return CUDA_ERROR_INVALID_VALUE;
    if (const CUresult rc = check_value_address(address, wide ? 8 : 4); rc != CUDA_SUCCESS)
        return rc;
    work->node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;
    work->effect = [=] {
        void* const place = pointer_of(address);
        if (wide) {
            __atomic_store_n(static_cast<std::uint64_t*>(place), value, __ATOMIC_RELEASE);
        } else {
            __atomic_store_n(static_cast<std::uint32_t*>(place), static_cast<std::uint32_t>(value),
                             __ATOMIC_RELEASE);
        }
    };
    return CUDA_SUCCESS;
}

CUresult value_op(CUstream handle, DefaultStream meaning, bool wait, CUdeviceptr address,
                  std::uint64_t value, unsigned flags, bool wide) {
    if (!has_stream_memory_operations()) return CUDA_ERROR_NOT_SUPPORTED;
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream, auto& lock) -> CUresult {
        Work work;
        const CUresult rc = wait ? make_wait(address, value, flags, wide, &work)
                                 : make_write(address, value, flags, wide, &work);
        return rc == CUDA_SUCCESS ? submit(d, stream, std::move(work), lock) : rc;
    });
}

CUresult make_batch_op(const CUstreamBatchMemOpParams& op, Work* work) {
    switch (op.operation) {
        case CU_STREAM_MEM_OP_WAIT_VALUE_32:
            return make_wait(op.waitValue.address, op.waitValue.value, op.waitValue.flags, false,
                             work);
        case CU_STREAM_MEM_OP_WAIT_VALUE_64:
            return make_wait(op.waitValue.address, op.waitValue.value64, op.waitValue.flags, true,
                             work);
        case CU_STREAM_MEM_OP_WRITE_VALUE_32:
            return make_write(op.writeValue.address, op.writeValue.value, op.writeValue.flags,
                              false, work);
        case CU_STREAM_MEM_OP_WRITE_VALUE_64:
            return make_write(op.writeValue.address, op.writeValue.value64, op.writeValue.flags,
                              true, work);
        case CU_STREAM_MEM_OP_BARRIER:
        case CU_STREAM_MEM_OP_FLUSH_REMOTE_WRITES:
            work->node_type = CU_GRAPH_NODE_TYPE_BATCH_MEM_OP;  // effects are ordered anyway
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult batch(CUstream handle, DefaultStream meaning, unsigned count,
               const CUstreamBatchMemOpParams* operations, unsigned flags) {
    if (!has_stream_memory_operations()) return CUDA_ERROR_NOT_SUPPORTED;
    if (operations == nullptr || count == 0 || count > 256 || flags != 0)
        return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream, auto& lock) -> CUresult {
        std::vector<Work> works(count);
        for (unsigned i = 0; i < count; ++i) {
            if (const CUresult rc = make_batch_op(operations[i], &works[i]); rc != CUDA_SUCCESS)
                return rc;
        }
        for (Work& work : works) {
            if (const CUresult rc = submit(d, stream, std::move(work), lock); rc != CUDA_SUCCESS)
                return rc;
        }
        return CUDA_SUCCESS;
    });
}

template <typename T, typename Get>
CUresult get(CUstream handle, DefaultStream meaning, T* value, Get&& getter) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver&, CUstream stream, auto&) -> CUresult {
        *value = getter(stream);
        return CUDA_SUCCESS;
    });
}

CUresult get_context(CUstream stream, DefaultStream meaning, CUcontext* context) {
    return get(stream, meaning, context, [](CUstream s) { return s->context; });
}

CUresult get_context_v2(CUstream stream, DefaultStream meaning, CUcontext* context,
                        CUgreenCtx* green) {
    if (green != nullptr) *green = nullptr;  // there are no green contexts
    return get_context(stream, meaning, context);
}

CUresult attribute(CUstream handle, DefaultStream meaning, CUstreamAttrID id,
                   CUstreamAttrValue* value) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver&, CUstream stream, auto&) -> CUresult {
        CUstreamAttrValue result;
        std::memset(&result, 0, sizeof result);
        if (id == CU_LAUNCH_ATTRIBUTE_PRIORITY) {
            result.priority = stream->priority;
        } else if (id == CU_LAUNCH_ATTRIBUTE_SYNCHRONIZATION_POLICY) {
            result.syncPolicy = CU_SYNC_POLICY_AUTO;
        } else if (id != CU_LAUNCH_ATTRIBUTE_ACCESS_POLICY_WINDOW &&
                   id != CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN &&
                   id != CU_LAUNCH_ATTRIBUTE_MEM_SYNC_DOMAIN_MAP) {
            return CUDA_ERROR_INVALID_VALUE;
        }
        *value = result;
        return CUDA_SUCCESS;
    });
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuStreamCreate(CUstream* stream, unsigned int flags) {
    return create(stream, flags, 0);
}

SIMGPU_EXPORT CUresult CUDAAPI cuStreamCreateWithPriority(CUstream* stream, unsigned int flags,
                                                          int priority) {
    return create(stream, flags, priority);
}

SIMGPU_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) {
    return call([&](Driver& d, auto&) -> CUresult {
        if (!d.streams.contains(stream) || stream->legacy) return CUDA_ERROR_INVALID_HANDLE;
        destroy_stream(d, stream);
        return CUDA_SUCCESS;
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuStreamDestroy(CUstream stream) {
    return cuStreamDestroy_v2(stream);
}

SIMGPU_PTSZ(cuStreamQuery, (CUstream stream), query(stream, kDefault))
SIMGPU_PTSZ(cuStreamSynchronize, (CUstream stream), synchronize(stream, kDefault))
SIMGPU_PTSZ(cuStreamGetPriority, (CUstream stream, int* priority),
            get(stream, kDefault, priority, [](CUstream s) { return s->priority; }))
SIMGPU_PTSZ(cuStreamGetFlags, (CUstream stream, unsigned int* flags),
            get(stream, kDefault, flags, [](CUstream s) { return s->flags; }))
SIMGPU_PTSZ(cuStreamGetId, (CUstream stream, unsigned long long* id),
            get(stream, kDefault, id, [](CUstream s) { return s->id; }))
SIMGPU_PTSZ(cuStreamGetDevice, (CUstream stream, CUdevice* device),
            get(stream, kDefault, device, [](CUstream s) { return s->context->device->ordinal; }))
SIMGPU_PTSZ(cuStreamGetCtx, (CUstream stream, CUcontext* context),
            get_context(stream, kDefault, context))
SIMGPU_PTSZ(cuStreamGetCtx_v2, (CUstream stream, CUcontext* context, CUgreenCtx* green),
            get_context_v2(stream, kDefault, context, green))
SIMGPU_PTSZ(cuStreamAddCallback,
            (CUstream stream, CUstreamCallback callback, void* data, unsigned int flags),
            add_callback(stream, kDefault, callback, data, flags))
SIMGPU_PTSZ(cuLaunchHostFunc, (CUstream stream, CUhostFn function, void* data),
            launch_host_function(stream, kDefault, function, data))
SIMGPU_PTSZ(cuStreamGetAttribute, (CUstream stream, CUstreamAttrID id, CUstreamAttrValue* value),
            attribute(stream, kDefault, id, value))

SIMGPU_PTSZ(cuStreamWaitValue32,
            (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
            value_op(stream, kDefault, true, address, value, flags, false))
SIMGPU_PTSZ(cuStreamWaitValue64,
            (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
            value_op(stream, kDefault, true, address, value, flags, true))
SIMGPU_PTSZ(cuStreamWriteValue32,
            (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
            value_op(stream, kDefault, false, address, value, flags, false))
SIMGPU_PTSZ(cuStreamWriteValue64,
            (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
            value_op(stream, kDefault, false, address, value, flags, true))
SIMGPU_PTSZ(cuStreamBatchMemOp,
            (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
             unsigned int flags),
            batch(stream, kDefault, count, operations, flags))
SIMGPU_PTSZ(cuStreamWaitValue32_v2,
            (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
            value_op(stream, kDefault, true, address, value, flags, false))
SIMGPU_PTSZ(cuStreamWaitValue64_v2,
            (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
            value_op(stream, kDefault, true, address, value, flags, true))
SIMGPU_PTSZ(cuStreamWriteValue32_v2,
            (CUstream stream, CUdeviceptr address, cuuint32_t value, unsigned int flags),
            value_op(stream, kDefault, false, address, value, flags, false))
SIMGPU_PTSZ(cuStreamWriteValue64_v2,
            (CUstream stream, CUdeviceptr address, cuuint64_t value, unsigned int flags),
            value_op(stream, kDefault, false, address, value, flags, true))
SIMGPU_PTSZ(cuStreamBatchMemOp_v2,
            (CUstream stream, unsigned int count, CUstreamBatchMemOpParams* operations,
             unsigned int flags),
            batch(stream, kDefault, count, operations, flags))
