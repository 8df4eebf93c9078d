// SPDX-License-Identifier: Apache-2.0
// Exported functions that allocate, free and describe memory. Copies and fills are in copy_api.cpp,
// pools and stream-ordered allocation in pool_api.cpp.

#include "memory.hpp"

#include <cstring>

#include "capture.hpp"
#include "stream.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

constexpr std::size_t kPitch = 512;  // bytes
constexpr unsigned kHostAllocFlags =
    CU_MEMHOSTALLOC_PORTABLE | CU_MEMHOSTALLOC_DEVICEMAP | CU_MEMHOSTALLOC_WRITECOMBINED;
constexpr unsigned kHostRegisterFlags = CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP |
                                        CU_MEMHOSTREGISTER_IOMEMORY | CU_MEMHOSTREGISTER_READ_ONLY;

CUresult allocate_now(std::size_t size, MemoryKind kind, unsigned flags, Allocation* made) {
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        return allocate(context, size, kind, flags, nullptr, made);
    });
}

// Freeing waits for everything the context has submitted, as the real call does: work in flight may
// use the memory.
CUresult free_now(const void* pointer, MemoryKind kind, MemoryKind other) {
    if (pointer == nullptr) return CUDA_SUCCESS;
    return call_in_context([&](Driver& d, CUcontext, auto& lock) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        Allocation found;
        if (!find_allocation(pointer, &found) || found.base != pointer)
            return CUDA_ERROR_INVALID_VALUE;
        if (found.kind != kind && found.kind != other) return CUDA_ERROR_INVALID_VALUE;
        if (found.context->active) {
            const CUresult rc = wait_idle(d, outstanding(d, found.context), lock);
            if (rc != CUDA_SUCCESS) return rc;
        }
        return free_allocation(pointer, kind, other) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
    });
}

bool is_host(const Allocation& allocation) {
    return allocation.kind == MemoryKind::kHost || allocation.kind == MemoryKind::kRegistered;
}

template <typename T>
CUresult put(void* data, T value) {
    std::memcpy(data, &value, sizeof value);
    return CUDA_SUCCESS;
}

CUresult attribute_of(const Allocation& found, CUpointer_attribute attribute, const void* pointer,
                      void* data) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_CONTEXT:
            return put(data, found.context);
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
            return put(data, static_cast<unsigned>(is_host(found) ? CU_MEMORYTYPE_HOST
                                                                  : CU_MEMORYTYPE_DEVICE));
        case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
            return put(data, address_of(pointer));
        case CU_POINTER_ATTRIBUTE_HOST_POINTER:
            if (found.kind == MemoryKind::kDevice) return CUDA_ERROR_INVALID_VALUE;
            return put(data, pointer);
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
            return put(data, 0U);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return put(data, static_cast<unsigned long long>(found.id));
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
            return put(data, static_cast<unsigned>(found.kind == MemoryKind::kManaged));
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(data, found.device->ordinal);
        case CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_GPU_DIRECT_RDMA_CAPABLE:
        case CU_POINTER_ATTRIBUTE_IS_HW_DECOMPRESS_CAPABLE:
            return put(data, 0U);
        case CU_POINTER_ATTRIBUTE_RANGE_START_ADDR:
            return put(data, address_of(found.base));
        case CU_POINTER_ATTRIBUTE_RANGE_SIZE:
            return put(data, found.size);
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return put(data, 1U);
        case CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES:
            return put(data, static_cast<unsigned long long>(CU_MEM_HANDLE_TYPE_NONE));
        case CU_POINTER_ATTRIBUTE_ACCESS_FLAGS:
            return put(data, static_cast<unsigned>(CU_POINTER_ATTRIBUTE_ACCESS_FLAG_READWRITE));
        case CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE:
            return put(data, found.pool);
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
}

// What cuPointerGetAttributes says of memory the driver does not know.
CUresult attribute_of_unknown(CUpointer_attribute attribute, void* data) {
    switch (attribute) {
        case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
        case CU_POINTER_ATTRIBUTE_IS_MANAGED:
        case CU_POINTER_ATTRIBUTE_SYNC_MEMOPS:
        case CU_POINTER_ATTRIBUTE_MAPPED:
            return put(data, 0U);
        case CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL:
            return put(data, -2);
        case CU_POINTER_ATTRIBUTE_BUFFER_ID:
            return put(data, 0ULL);
        default:
            return put(data, std::uint64_t{0});
    }
}

// Hints about managed memory: there is one memory, so a valid hint changes nothing.
CUresult check_managed(CUdeviceptr address, std::size_t size) {
    Allocation found;
    if (!find_allocation(pointer_of(address), &found) || found.kind != MemoryKind::kManaged)
        return CUDA_ERROR_INVALID_VALUE;
    return size <= found.size - static_cast<std::size_t>(pointer_of(address) - found.base)
               ? CUDA_SUCCESS
               : CUDA_ERROR_INVALID_VALUE;
}

CUresult hint(CUdeviceptr address, std::size_t size, CUstream handle, DefaultStream meaning) {
    return call_in_context([&](Driver& d, CUcontext, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (const CUresult rc = check_managed(address, size); rc != CUDA_SUCCESS) return rc;
        return submit(d, stream, Work{}, lock);
    });
}

CUresult advise(CUdeviceptr address, std::size_t size) {
    return call_in_context([&](Driver&, CUcontext, auto&) { return check_managed(address, size); });
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTSZ(cuMemPrefetchAsync, (CUdeviceptr address, std::size_t size, CUdevice, CUstream stream),
            hint(address, size, stream, kDefault))
SIMGPU_PTSZ(cuMemPrefetchAsync_v2,
            (CUdeviceptr address, std::size_t size, CUmemLocation, unsigned int, CUstream stream),
            hint(address, size, stream, kDefault))
SIMGPU_PTSZ(cuStreamAttachMemAsync,
            (CUstream stream, CUdeviceptr address, std::size_t size, unsigned int),
            hint(address, size, stream, kDefault))
SIMGPU_EXPORT CUresult CUDAAPI cuMemAdvise(CUdeviceptr address, std::size_t size, CUmem_advise,
                                           CUdevice) {
    return advise(address, size);
}
SIMGPU_EXPORT CUresult CUDAAPI cuMemAdvise_v2(CUdeviceptr address, std::size_t size, CUmem_advise,
                                              CUmemLocation) {
    return advise(address, size);
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemGetInfo_v2(std::size_t* free, std::size_t* total) {
    if (free == nullptr || total == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext context, auto&) -> CUresult {
        *total = total_memory(*context->device);
        *free = *total - used_memory(*context->device);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemAlloc_v2(CUdeviceptr* address, std::size_t size) {
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    Allocation made;
    const CUresult rc = allocate_now(size, MemoryKind::kDevice, 0, &made);
    if (rc == CUDA_SUCCESS) *address = address_of(made.base);
    return rc;
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemAllocPitch_v2(CUdeviceptr* address, std::size_t* pitch,
                                                  std::size_t width, std::size_t height,
                                                  unsigned int element) {
    if (address == nullptr || pitch == nullptr || width == 0 || height == 0)
        return CUDA_ERROR_INVALID_VALUE;
    if (element != 4 && element != 8 && element != 16) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t row = (width + kPitch - 1) / kPitch * kPitch;
    if (row < width || height > SIZE_MAX / row) return CUDA_ERROR_INVALID_VALUE;
    const CUresult rc = cuMemAlloc_v2(address, row * height);
    if (rc == CUDA_SUCCESS) *pitch = row;
    return rc;
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemAllocManaged(CUdeviceptr* address, std::size_t size,
                                                 unsigned int flags) {
    if (address == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (flags != CU_MEM_ATTACH_GLOBAL && flags != CU_MEM_ATTACH_HOST)
        return CUDA_ERROR_INVALID_VALUE;
    Allocation made;
    const CUresult rc = allocate_now(size, MemoryKind::kManaged, flags, &made);
    if (rc == CUDA_SUCCESS) *address = address_of(made.base);
    return rc;
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemFree_v2(CUdeviceptr address) {
    return free_now(pointer_of(address), MemoryKind::kDevice, MemoryKind::kManaged);
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemGetAddressRange_v2(CUdeviceptr* base, std::size_t* size,
                                                       CUdeviceptr address) {
    return call_in_context([&](Driver&, CUcontext, auto&) -> CUresult {
        Allocation found;
        if (!find_allocation(pointer_of(address), &found)) return CUDA_ERROR_NOT_FOUND;
        if (base != nullptr) *base = address_of(found.base);
        if (size != nullptr) *size = found.size;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostAlloc(void** pointer, std::size_t size,
                                              unsigned int flags) {
    if (pointer == nullptr || size == 0 || (flags & ~kHostAllocFlags) != 0)
        return CUDA_ERROR_INVALID_VALUE;
    Allocation made;
    const CUresult rc = allocate_now(size, MemoryKind::kHost, flags, &made);
    if (rc == CUDA_SUCCESS) *pointer = made.base;
    return rc;
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemAllocHost_v2(void** pointer, std::size_t size) {
    return cuMemHostAlloc(pointer, size, 0);
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemFreeHost(void* pointer) {
    return free_now(pointer, MemoryKind::kHost, MemoryKind::kHost);
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostRegister_v2(void* pointer, std::size_t size,
                                                    unsigned int flags) {
    if ((flags & ~kHostRegisterFlags) != 0) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        return register_host(context, pointer, size, flags);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostRegister(void* pointer, std::size_t size,
                                                 unsigned int flags) {
    return cuMemHostRegister_v2(pointer, size, flags);
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostUnregister(void* pointer) {
    if (pointer == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto& lock) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = wait_idle(d, outstanding(d, context), lock); rc != CUDA_SUCCESS)
            return rc;
        return unregister_host(pointer) ? CUDA_SUCCESS : CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostGetDevicePointer_v2(CUdeviceptr* address, void* pointer,
                                                            unsigned int flags) {
    if (address == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext, auto&) -> CUresult {
        Allocation found;
        if (!find_allocation(pointer, &found) || !is_host(found)) return CUDA_ERROR_INVALID_VALUE;
        *address = address_of(pointer);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuMemHostGetFlags(unsigned int* flags, void* pointer) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver&, CUcontext, auto&) -> CUresult {
        Allocation found;
        if (!find_allocation(pointer, &found) || found.kind != MemoryKind::kHost)
            return CUDA_ERROR_INVALID_VALUE;
        *flags = found.flags;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuPointerGetAttribute(void* data, CUpointer_attribute attribute,
                                                     CUdeviceptr address) {
    if (data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        Allocation found;
        if (!find_allocation(pointer_of(address), &found)) return CUDA_ERROR_INVALID_VALUE;
        return attribute_of(found, attribute, pointer_of(address), data);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuPointerGetAttributes(unsigned int count,
                                                      CUpointer_attribute* attributes, void** data,
                                                      CUdeviceptr address) {
    if (attributes == nullptr || data == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        Allocation found;
        const bool known = find_allocation(pointer_of(address), &found);
        for (unsigned i = 0; i < count; ++i) {
            // The plural form gives a null for what does not apply, where the singular one fails.
            if (!known ||
                attribute_of(found, attributes[i], pointer_of(address), data[i]) != CUDA_SUCCESS)
                attribute_of_unknown(attributes[i], data[i]);
        }
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuPointerSetAttribute(const void* value,
                                                     CUpointer_attribute attribute,
                                                     CUdeviceptr address) {
    if (value == nullptr || attribute != CU_POINTER_ATTRIBUTE_SYNC_MEMOPS)
        return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        Allocation found;
        return find_allocation(pointer_of(address), &found) ? CUDA_SUCCESS
                                                            : CUDA_ERROR_INVALID_VALUE;
    });
}
