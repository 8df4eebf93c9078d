// SPDX-License-Identifier: Apache-2.0
// Contexts: primary ones and the program's own, the thread's stack of current contexts, and their
// settings.

#include "capture.hpp"
#include "driver.hpp"
#include "memory.hpp"
#include "module.hpp"
#include "stream.hpp"

namespace simgpu {
namespace {

constexpr unsigned kContextApiVersion = 3020;
constexpr int kLeastPriority = 0;
constexpr int kGreatestPriority = -5;
constexpr unsigned kContextFlags = CU_CTX_FLAGS_MASK;

std::size_t default_limit(CUlimit limit) {
    switch (limit) {
        case CU_LIMIT_STACK_SIZE:
            return 1024;
        case CU_LIMIT_PRINTF_FIFO_SIZE:
            return 7340032;
        case CU_LIMIT_MALLOC_HEAP_SIZE:
            return 8388608;
        case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
            return 2;
        case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
            return 2048;
        case CU_LIMIT_MAX_L2_FETCH_GRANULARITY:
            return 128;
        default:
            return 0;
    }
}

}  // namespace

CUcontext make_context(Driver& d, Device& device, unsigned flags, bool primary) {
    auto context = std::make_unique<CUctx_st>();
    context->device = &device;
    context->primary = primary;
    context->flags = flags;
    d.contexts.insert(context.get());
    return context.release();
}

void activate_context(Driver& d, CUcontext context) {
    context->active = true;
    context->id = d.next_context_id++;
    context->legacy = make_stream(d, context, CU_STREAM_DEFAULT, 0, true);
}

CUresult retire_context(Driver& d, CUcontext context, std::unique_lock<std::mutex>& lock) {
    const CUresult rc = wait_idle(d, outstanding(d, context), lock);
    if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;  // another thread was quicker
    context->active = false;
    CUstream legacy = context->legacy;
    context->legacy = nullptr;
    const std::vector<CUstream> streams(context->streams.begin(), context->streams.end());
    for (CUstream stream : streams)
        if (stream != legacy) destroy_stream(d, stream);
    destroy_stream(d, legacy);
    drop_modules(d, context);
    free_memory_of(context);
    context->limits.clear();
    context->peers.clear();
    return rc;
}

static CUresult create(CUcontext* context, unsigned flags, CUdevice ordinal) {
    if (context == nullptr || (flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        CUcontext made = make_context(d, *device, flags, false);
        activate_context(d, made);
        this_thread().context_stack.push_back(made);
        *context = made;
        return CUDA_SUCCESS;
    });
}

static CUresult synchronize(Driver& d, CUcontext context, std::unique_lock<std::mutex>& lock) {
    if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
    if (const CUresult rc = check_not_capturing(d, context); rc != CUDA_SUCCESS) return rc;
    return wait_idle(d, outstanding(d, context), lock);
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice ordinal) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        if (device->primary == nullptr) device->primary = make_context(d, *device, 0, true);
        if (!device->primary->active) {
            device->primary->flags = device->primary_flags;
            activate_context(d, device->primary);
        }
        ++device->primary_retained;
        *context = device->primary;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice ordinal) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        if (device->primary_retained == 0) return CUDA_ERROR_INVALID_CONTEXT;
        if (--device->primary_retained > 0) return CUDA_SUCCESS;
        return retire_context(d, device->primary, lock);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice ordinal) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        if (device->primary == nullptr || !device->primary->active) return CUDA_SUCCESS;
        if (const CUresult rc = retire_context(d, device->primary, lock); rc != CUDA_SUCCESS)
            return rc;
        // Those who retained it hold a fresh context under the same handle.
        if (device->primary_retained > 0) activate_context(d, device->primary);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags_v2(CUdevice ordinal, unsigned int flags) {
    if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        device->primary_flags = flags;
        if (device->primary != nullptr) device->primary->flags = flags;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxGetState(CUdevice ordinal, unsigned int* flags,
                                                          int* active) {
    if (flags == nullptr || active == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        *flags = device->primary_flags;
        *active = device->primary != nullptr && device->primary->active;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice ordinal) {
    return cuDevicePrimaryCtxRelease_v2(ordinal);
}
SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice ordinal) {
    return cuDevicePrimaryCtxReset_v2(ordinal);
}
SIMGPU_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxSetFlags(CUdevice ordinal, unsigned int flags) {
    return cuDevicePrimaryCtxSetFlags_v2(ordinal, flags);
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxCreate(CUcontext* context, unsigned int flags,
                                           CUdevice device) {
    return create(context, flags, device);
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxCreate_v2(CUcontext* context, unsigned int flags,
                                              CUdevice device) {
    return create(context, flags, device);
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxCreate_v3(CUcontext* context, CUexecAffinityParam* affinity,
                                              int count, unsigned int flags, CUdevice device) {
    if (affinity != nullptr || count != 0) return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    return create(context, flags, device);
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxCreate_v4(CUcontext* context, CUctxCreateParams* parameters,
                                              unsigned int flags, CUdevice device) {
    if (parameters != nullptr && parameters->numExecAffinityParams != 0)
        return CUDA_ERROR_UNSUPPORTED_EXEC_AFFINITY;
    if (parameters != nullptr && parameters->cigParams != nullptr) return CUDA_ERROR_NOT_SUPPORTED;
    return create(context, flags, device);
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!d.contexts.contains(context) || context->primary) return CUDA_ERROR_INVALID_CONTEXT;
        if (!context->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        auto& stack = this_thread().context_stack;
        if (!stack.empty() && stack.back() == context) stack.pop_back();
        return retire_context(d, context, lock);
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxDestroy(CUcontext context) { return cuCtxDestroy_v2(context); }

SIMGPU_EXPORT CUresult CUDAAPI cuCtxPushCurrent_v2(CUcontext context) {
    return call([&](Driver& d, auto&) -> CUresult {
        if (context == nullptr || !d.contexts.contains(context)) return CUDA_ERROR_INVALID_CONTEXT;
        this_thread().context_stack.push_back(context);
        return CUDA_SUCCESS;
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxPushCurrent(CUcontext context) {
    return cuCtxPushCurrent_v2(context);
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxPopCurrent_v2(CUcontext* context) {
    return call([&](Driver&, auto&) -> CUresult {
        auto& stack = this_thread().context_stack;
        if (stack.empty()) return CUDA_ERROR_INVALID_CONTEXT;
        if (context != nullptr) *context = stack.back();
        stack.pop_back();
        return CUDA_SUCCESS;
    });
}
SIMGPU_EXPORT CUresult CUDAAPI cuCtxPopCurrent(CUcontext* context) {
    return cuCtxPopCurrent_v2(context);
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSetCurrent(CUcontext context) {
    return call([&](Driver& d, auto&) -> CUresult {
        auto& stack = this_thread().context_stack;
        if (context == nullptr) {
            if (!stack.empty()) stack.pop_back();
            return CUDA_SUCCESS;
        }
        if (!d.contexts.contains(context)) return CUDA_ERROR_INVALID_CONTEXT;
        if (stack.empty()) {
            stack.push_back(context);
        } else {
            stack.back() = context;
        }
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetCurrent(CUcontext* context) {
    if (context == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        const auto& stack = this_thread().context_stack;
        *context = stack.empty() ? nullptr : stack.back();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetDevice(CUdevice* device) {
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        *device = context->device->ordinal;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetDevice_v2(CUdevice* device, CUcontext context) {
    if (context == nullptr) return cuCtxGetDevice(device);
    if (device == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (!is_active(d, context)) return CUDA_ERROR_INVALID_CONTEXT;
        *device = context->device->ordinal;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSynchronize() {
    return call_in_context(
        [&](Driver& d, CUcontext context, auto& lock) { return synchronize(d, context, lock); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSynchronize_v2(CUcontext context) {
    if (context == nullptr) return cuCtxSynchronize();
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!is_active(d, context)) return CUDA_ERROR_INVALID_CONTEXT;
        return synchronize(d, context, lock);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetFlags(unsigned int* flags) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        *flags = context->flags;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSetFlags(unsigned int flags) {
    if ((flags & ~kContextFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        context->flags = flags;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetId(CUcontext context, unsigned long long* id) {
    if (id == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (context == nullptr) {
            if (const CUresult rc = current_context(&context); rc != CUDA_SUCCESS) return rc;
        }
        if (!is_active(d, context)) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
        *id = context->id;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetApiVersion(CUcontext context, unsigned int* version) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (context != nullptr && !is_active(d, context)) return CUDA_ERROR_INVALID_CONTEXT;
        *version = kContextApiVersion;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetStreamPriorityRange(int* least, int* greatest) {
    return call_in_context([&](Driver&, CUcontext, auto&) -> CUresult {
        if (least != nullptr) *least = kLeastPriority;
        if (greatest != nullptr) *greatest = kGreatestPriority;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetLimit(std::size_t* value, CUlimit limit) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        const auto found = context->limits.find(limit);
        *value = found != context->limits.end() ? found->second : default_limit(limit);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSetLimit(CUlimit limit, std::size_t value) {
    if (limit < 0 || limit >= CU_LIMIT_MAX) return CUDA_ERROR_UNSUPPORTED_LIMIT;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        context->limits[limit] = value;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxGetCacheConfig(CUfunc_cache* config) {
    if (config == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext, auto&) -> CUresult {
        *config = CU_FUNC_CACHE_PREFER_NONE;  // the virtual GPU has no configurable cache
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxSetCacheConfig(CUfunc_cache) {
    return call_in_context([](Driver&, CUcontext, auto&) { return CUDA_SUCCESS; });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxEnablePeerAccess(CUcontext peer, unsigned int flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (!is_active(d, peer) || peer->device == context->device)
            return CUDA_ERROR_INVALID_CONTEXT;
        return context->peers.insert(peer).second ? CUDA_SUCCESS
                                                  : CUDA_ERROR_PEER_ACCESS_ALREADY_ENABLED;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuCtxDisablePeerAccess(CUcontext peer) {
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (!is_active(d, peer)) return CUDA_ERROR_INVALID_CONTEXT;
        return context->peers.erase(peer) != 0 ? CUDA_SUCCESS : CUDA_ERROR_PEER_ACCESS_NOT_ENABLED;
    });
}
