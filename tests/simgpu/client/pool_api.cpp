// SPDX-License-Identifier: Apache-2.0
// Stream-ordered allocation and memory pools. Memory is there from the call on and goes back when
// the stream reaches the free; pools keep nothing back.

#include <vector>

#include "capture.hpp"
#include "memory.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

CUmemoryPool make_pool(Driver& d, Device& device, bool is_default) {
    auto pool = std::make_unique<CUmemPoolHandle_st>();
    pool->device = &device;
    pool->is_default = is_default;
    for (const int on : {CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES,
                         CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC,
                         CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES})
        pool->switches[on] = 1;
    d.pools.insert(pool.get());
    return pool.release();
}

CUmemoryPool default_pool(Driver& d, Device& device) {
    if (device.default_pool == nullptr) device.default_pool = make_pool(d, device, true);
    return device.default_pool;
}

CUmemoryPool current_pool(Driver& d, Device& device) {
    return device.current_pool != nullptr ? device.current_pool : default_pool(d, device);
}

// `chosen`: null for the current pool of the stream's device.
CUresult allocate_async(CUdeviceptr* address, std::size_t size, const CUmemoryPool* chosen,
                        CUstream handle, DefaultStream meaning) {
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (chosen != nullptr && !d.pools.contains(*chosen)) return CUDA_ERROR_INVALID_VALUE;
        CUmemoryPool pool = chosen != nullptr ? *chosen : current_pool(d, *stream->context->device);
        Allocation made;
        CUresult rc = allocate(stream->context, size, MemoryKind::kDevice, 0, pool, &made);
        if (rc != CUDA_SUCCESS) return rc;
        void* const base = made.base;
        const bool captured = stream->capture != nullptr;
        Work work;
        work.node_type = CU_GRAPH_NODE_TYPE_MEM_ALLOC;
        rc = submit(d, stream, std::move(work), lock);
        if (rc != CUDA_SUCCESS) {
            free_allocation(base, MemoryKind::kDevice, MemoryKind::kDevice);
            return rc;
        }
        // A graph's memory has one address for all its launches, and lives as long as the graph.
        if (captured)
            stream->capture->graph->owned.push_back(std::shared_ptr<void>(base, [](void* memory) {
                free_allocation(memory, MemoryKind::kDevice, MemoryKind::kDevice);
            }));
        *address = address_of(base);
        return CUDA_SUCCESS;
    });
}

CUresult free_async(CUdeviceptr address, CUstream handle, DefaultStream meaning) {
    if (address == 0) return CUDA_SUCCESS;
    return call([&](Driver& d, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        void* const base = pointer_of(address);
        Allocation found;
        if (!find_allocation(base, &found) || found.base != base ||
            found.kind != MemoryKind::kDevice)
            return CUDA_ERROR_INVALID_VALUE;
        Work work;
        work.node_type = CU_GRAPH_NODE_TYPE_MEM_FREE;
        if (!stream->capture)
            work.effect = [base] {
                free_allocation(base, MemoryKind::kDevice, MemoryKind::kDevice);
            };
        return submit(d, stream, std::move(work), lock);
    });
}

template <typename Body>
CUresult with_pool(CUmemoryPool pool, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        return d.pools.contains(pool) ? body(d, *pool) : CUDA_ERROR_INVALID_VALUE;
    });
}

CUresult get_attribute(const CUmemPoolHandle_st& pool, CUmemPool_attribute attribute, void* value) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            *static_cast<int*>(value) = pool.switches.at(attribute);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            *static_cast<cuuint64_t*>(value) = pool.release_threshold;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
        case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
            *static_cast<cuuint64_t*>(value) = pool.used;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            *static_cast<cuuint64_t*>(value) = pool.used_high;
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult set_attribute(CUmemPoolHandle_st& pool, CUmemPool_attribute attribute, const void* value) {
    switch (attribute) {
        case CU_MEMPOOL_ATTR_REUSE_FOLLOW_EVENT_DEPENDENCIES:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_OPPORTUNISTIC:
        case CU_MEMPOOL_ATTR_REUSE_ALLOW_INTERNAL_DEPENDENCIES:
            pool.switches[attribute] = *static_cast<const int*>(value) != 0;
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
            pool.release_threshold = *static_cast<const cuuint64_t*>(value);
            return CUDA_SUCCESS;
        case CU_MEMPOOL_ATTR_RESERVED_MEM_HIGH:
        case CU_MEMPOOL_ATTR_USED_MEM_HIGH:
            if (*static_cast<const cuuint64_t*>(value) != 0) return CUDA_ERROR_INVALID_VALUE;
            pool.used_high = pool.used.load();
            return CUDA_SUCCESS;
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

CUresult get_device_pool(CUmemoryPool* pool, CUdevice ordinal,
                         CUmemoryPool (*which)(Driver&, Device&)) {
    if (pool == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        *pool = which(d, *device);
        return CUDA_SUCCESS;
    });
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTSZ(cuMemAllocAsync, (CUdeviceptr * address, std::size_t size, CUstream stream),
            allocate_async(address, size, nullptr, stream, kDefault))
SIMGPU_PTSZ(cuMemAllocFromPoolAsync,
            (CUdeviceptr * address, std::size_t size, CUmemoryPool pool, CUstream stream),
            allocate_async(address, size, &pool, stream, kDefault))
SIMGPU_PTSZ(cuMemFreeAsync, (CUdeviceptr address, CUstream stream),
            free_async(address, stream, kDefault))

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetDefaultMemPool(CUmemoryPool* pool, CUdevice device) {
    return get_device_pool(pool, device, default_pool);
}
SIMGPU_EXPORT CUresult CUDAAPI cuDeviceGetMemPool(CUmemoryPool* pool, CUdevice device) {
    return get_device_pool(pool, device, current_pool);
}

SIMGPU_EXPORT CUresult CUDAAPI cuDeviceSetMemPool(CUdevice ordinal, CUmemoryPool pool) {
    return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st&) -> CUresult {
        Device* const device = device_of(d, ordinal);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        if (pool->device != device) return CUDA_ERROR_INVALID_VALUE;
        device->current_pool = pool;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolCreate(CUmemoryPool* pool,
                                               const CUmemPoolProps* properties) {
    if (pool == nullptr || properties == nullptr ||
        properties->allocType != CU_MEM_ALLOCATION_TYPE_PINNED ||
        properties->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
        return CUDA_ERROR_INVALID_VALUE;
    if (properties->handleTypes != CU_MEM_HANDLE_TYPE_NONE) return CUDA_ERROR_NOT_SUPPORTED;
    return call([&](Driver& d, auto&) -> CUresult {
        Device* const device = device_of(d, properties->location.id);
        if (device == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        *pool = make_pool(d, *device, false);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolDestroy(CUmemoryPool pool) {
    return with_pool(pool, [](Driver& d, CUmemPoolHandle_st& found) -> CUresult {
        if (found.is_default) return CUDA_ERROR_INVALID_VALUE;
        if (found.device->current_pool == &found) found.device->current_pool = nullptr;
        d.pools.erase(&found);
        // Its memory may live on and counts there: the object stays, and stays reachable.
        static auto* const retired = new std::vector<CUmemoryPool>;
        retired->push_back(&found);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolTrimTo(CUmemoryPool pool, std::size_t) {
    return with_pool(pool, [](Driver&, CUmemPoolHandle_st&) { return CUDA_SUCCESS; });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolGetAttribute(CUmemoryPool pool,
                                                     CUmemPool_attribute attribute, void* value) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_pool(
        pool, [&](Driver&, CUmemPoolHandle_st& p) { return get_attribute(p, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolSetAttribute(CUmemoryPool pool,
                                                     CUmemPool_attribute attribute, void* value) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_pool(
        pool, [&](Driver&, CUmemPoolHandle_st& p) { return set_attribute(p, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolSetAccess(CUmemoryPool pool, const CUmemAccessDesc* access,
                                                  std::size_t count) {
    if (access == nullptr && count != 0) return CUDA_ERROR_INVALID_VALUE;
    return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st&) -> CUresult {
        for (std::size_t i = 0; i < count; ++i)
            if (device_of(d, access[i].location.id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        return CUDA_SUCCESS;  // every device reaches all memory
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemPoolGetAccess(CUmemAccess_flags* flags, CUmemoryPool pool,
                                                  CUmemLocation* location) {
    if (flags == nullptr || location == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_pool(pool, [&](Driver& d, CUmemPoolHandle_st&) -> CUresult {
        if (device_of(d, location->id) == nullptr) return CUDA_ERROR_INVALID_DEVICE;
        *flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
        return CUDA_SUCCESS;
    });
}
