// SPDX-License-Identifier: Apache-2.0
// Memory functions of the virtual GPU's CUDA runtime: allocation, pools, pointers, IPC. Copies and
// fills are in copy.cpp.
#include <cstring>

#include "runtime.hpp"

using namespace simgpu::cudart;

namespace {

static_assert(sizeof(cudaMemPoolProps) == sizeof(CUmemPoolProps));
static_assert(sizeof(cudaMemAccessDesc) == sizeof(CUmemAccessDesc));
static_assert(sizeof(cudaMemLocation) == sizeof(CUmemLocation));
static_assert(sizeof(cudaIpcMemHandle_t) == sizeof(CUipcMemHandle));
static_assert(sizeof(cudaIpcEventHandle_t) == sizeof(CUipcEventHandle));

CUmemLocation driver_location(const cudaMemLocation& location) {
    CUmemLocation result{};
    std::memcpy(&result, &location, sizeof(result));
    return result;
}

cudaError_t allocate(const Driver& driver, void** pointer, std::size_t bytes) {
    if (!pointer) {
        return cudaErrorInvalidValue;
    }
    if (bytes == 0) {
        *pointer = nullptr;
        return cudaSuccess;
    }
    CUdeviceptr address = 0;
    const CUresult result = driver.cuMemAlloc(&address, bytes);
    if (result == CUDA_SUCCESS) {
        *pointer = reinterpret_cast<void*>(address);
    }
    return to_error(result);
}

}  // namespace

extern "C" cudaError_t cudaMalloc(void** pointer, size_t bytes) {
    return enter([&](const Driver& driver) { return allocate(driver, pointer, bytes); });
}

extern "C" cudaError_t cudaMallocPitch(void** pointer, size_t* pitch, size_t width, size_t height) {
    return enter([&](const Driver& driver) {
        if (!pointer || !pitch) {
            return cudaErrorInvalidValue;
        }
        if (width == 0 || height == 0) {
            *pointer = nullptr;
            *pitch = 0;
            return cudaSuccess;
        }
        CUdeviceptr address = 0;
        const CUresult result = driver.cuMemAllocPitch(&address, pitch, width, height, 4);
        if (result == CUDA_SUCCESS) {
            *pointer = reinterpret_cast<void*>(address);
        }
        return to_error(result);
    });
}

extern "C" cudaError_t cudaMalloc3D(cudaPitchedPtr* pitched, cudaExtent extent) {
    if (!pitched) {
        return remember(cudaErrorInvalidValue);
    }
    void* pointer = nullptr;
    std::size_t pitch = 0;
    const cudaError_t error =
        cudaMallocPitch(&pointer, &pitch, extent.width, extent.height * extent.depth);
    if (error == cudaSuccess) {
        *pitched = cudaPitchedPtr{pointer, pitch, extent.width, extent.height};
    }
    return error;
}

extern "C" cudaError_t cudaMallocManaged(void** pointer, size_t bytes, unsigned int flags) {
    return enter([&](const Driver& driver) {
        if (!pointer) {
            return cudaErrorInvalidValue;
        }
        CUdeviceptr address = 0;
        const CUresult result = driver.cuMemAllocManaged(&address, bytes, flags);
        if (result == CUDA_SUCCESS) {
            *pointer = reinterpret_cast<void*>(address);
        }
        return to_error(result);
    });
}

extern "C" cudaError_t cudaFree(void* pointer) {
    return enter([&](const Driver& driver) {
        return pointer ? to_error(driver.cuMemFree(device_pointer(pointer))) : cudaSuccess;
    });
}

extern "C" cudaError_t cudaHostAlloc(void** pointer, size_t bytes, unsigned int flags) {
    return enter([&](const Driver& driver) {
        if (!pointer) {
            return cudaErrorInvalidValue;
        }
        if (bytes == 0) {
            *pointer = nullptr;
            return cudaSuccess;
        }
        return to_error(driver.cuMemHostAlloc(pointer, bytes, flags));
    });
}

extern "C" cudaError_t cudaMallocHost(void** pointer, size_t bytes) {
    return cudaHostAlloc(pointer, bytes, cudaHostAllocDefault);
}

extern "C" cudaError_t cudaFreeHost(void* pointer) {
    return enter([&](const Driver& driver) {
        return pointer ? to_error(driver.cuMemFreeHost(pointer)) : cudaSuccess;
    });
}

extern "C" cudaError_t cudaHostRegister(void* pointer, size_t bytes, unsigned int flags) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuMemHostRegister(pointer, bytes, flags));
    });
}

extern "C" cudaError_t cudaHostUnregister(void* pointer) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuMemHostUnregister(pointer)); });
}

extern "C" cudaError_t cudaHostGetDevicePointer(void** device, void* host, unsigned int flags) {
    return enter([&](const Driver& driver) {
        if (!device) {
            return cudaErrorInvalidValue;
        }
        CUdeviceptr address = 0;
        const CUresult result = driver.cuMemHostGetDevicePointer(&address, host, flags);
        *device = result == CUDA_SUCCESS ? reinterpret_cast<void*>(address) : nullptr;
        return to_error(result);
    });
}

extern "C" cudaError_t cudaHostGetFlags(unsigned int* flags, void* pointer) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuMemHostGetFlags(flags, pointer)); });
}

extern "C" cudaError_t cudaMemGetInfo(size_t* free_bytes, size_t* total) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuMemGetInfo(free_bytes, total)); });
}

SIMGPU_STREAM_FUNCTION(cudaMallocAsync, _ptsz, (void** pointer, size_t bytes, cudaStream_t stream),
                       (pointer, bytes, stream)) {
    if (!pointer) {
        return cudaErrorInvalidValue;
    }
    CUdeviceptr address = 0;
    const CUresult result = driver.cuMemAllocAsync(&address, bytes, stream);
    if (result == CUDA_SUCCESS) {
        *pointer = reinterpret_cast<void*>(address);
    }
    return to_error(result);
}

SIMGPU_STREAM_FUNCTION(cudaMallocFromPoolAsync, _ptsz,
                       (void** pointer, size_t bytes, cudaMemPool_t pool, cudaStream_t stream),
                       (pointer, bytes, pool, stream)) {
    if (!pointer) {
        return cudaErrorInvalidValue;
    }
    CUdeviceptr address = 0;
    const CUresult result = driver.cuMemAllocFromPoolAsync(&address, bytes, pool, stream);
    if (result == CUDA_SUCCESS) {
        *pointer = reinterpret_cast<void*>(address);
    }
    return to_error(result);
}

SIMGPU_STREAM_FUNCTION(cudaFreeAsync, _ptsz, (void* pointer, cudaStream_t stream),
                       (pointer, stream)) {
    return to_error(driver.cuMemFreeAsync(device_pointer(pointer), stream));
}

SIMGPU_STREAM_FUNCTION(cudaStreamAttachMemAsync, _ptsz,
                       (cudaStream_t stream, void* pointer, size_t length, unsigned int flags),
                       (stream, pointer, length, flags)) {
    return to_error(driver.cuStreamAttachMemAsync(stream, device_pointer(pointer), length, flags));
}

SIMGPU_STREAM_FUNCTION(cudaMemPrefetchAsync, _ptsz,
                       (const void* pointer, size_t count, cudaMemLocation location,
                        unsigned int flags, cudaStream_t stream),
                       (pointer, count, location, flags, stream)) {
    return to_error(driver.cuMemPrefetchAsync(device_pointer(pointer), count,
                                              driver_location(location), flags, stream));
}

extern "C" cudaError_t cudaMemAdvise(const void* pointer, size_t count, cudaMemoryAdvise advice,
                                     cudaMemLocation location) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuMemAdvise(device_pointer(pointer), count,
                                           static_cast<CUmem_advise>(advice),
                                           driver_location(location)));
    });
}

extern "C" cudaError_t cudaMemPoolCreate(cudaMemPool_t* pool, const cudaMemPoolProps* props) {
    return enter([&](const Driver& driver) {
        return to_error(
            driver.cuMemPoolCreate(pool, reinterpret_cast<const CUmemPoolProps*>(props)));
    });
}

extern "C" cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
    return enter([&](const Driver& driver) { return to_error(driver.cuMemPoolDestroy(pool)); });
}

extern "C" cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, size_t keep) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuMemPoolTrimTo(pool, keep)); });
}

extern "C" cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                               void* value) {
    return enter([&](const Driver& driver) {
        return to_error(
            driver.cuMemPoolSetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
    });
}

extern "C" cudaError_t cudaMemPoolGetAttribute(cudaMemPool_t pool, cudaMemPoolAttr attribute,
                                               void* value) {
    return enter([&](const Driver& driver) {
        return to_error(
            driver.cuMemPoolGetAttribute(pool, static_cast<CUmemPool_attribute>(attribute), value));
    });
}

extern "C" cudaError_t cudaMemPoolSetAccess(cudaMemPool_t pool, const cudaMemAccessDesc* list,
                                            size_t count) {
    return enter([&](const Driver& driver) {
        return to_error(
            driver.cuMemPoolSetAccess(pool, reinterpret_cast<const CUmemAccessDesc*>(list), count));
    });
}

extern "C" cudaError_t cudaMemPoolGetAccess(cudaMemAccessFlags* flags, cudaMemPool_t pool,
                                            cudaMemLocation* location) {
    return enter([&](const Driver& driver) {
        if (!flags || !location) {
            return cudaErrorInvalidValue;
        }
        CUmemLocation where = driver_location(*location);
        CUmemAccess_flags access{};
        const CUresult result = driver.cuMemPoolGetAccess(&access, pool, &where);
        *flags = static_cast<cudaMemAccessFlags>(access);
        return to_error(result);
    });
}

extern "C" cudaError_t cudaDeviceGetDefaultMemPool(cudaMemPool_t* pool, int device) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuDeviceGetDefaultMemPool(pool, device));
    });
}

extern "C" cudaError_t cudaDeviceGetMemPool(cudaMemPool_t* pool, int device) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuDeviceGetMemPool(pool, device)); });
}

extern "C" cudaError_t cudaDeviceSetMemPool(int device, cudaMemPool_t pool) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuDeviceSetMemPool(device, pool)); });
}

extern "C" cudaError_t cudaPointerGetAttributes(cudaPointerAttributes* attributes,
                                                const void* pointer) {
    return enter([&](const Driver& driver) {
        if (!attributes) {
            return cudaErrorInvalidValue;
        }
        unsigned int type = 0;
        int ordinal = -1;
        unsigned int managed = 0;
        void* device = nullptr;
        void* host = nullptr;
        CUpointer_attribute wanted[] = {
            CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
            CU_POINTER_ATTRIBUTE_IS_MANAGED, CU_POINTER_ATTRIBUTE_DEVICE_POINTER,
            CU_POINTER_ATTRIBUTE_HOST_POINTER};
        void* values[] = {&type, &ordinal, &managed, &device, &host};
        const CUresult result =
            driver.cuPointerGetAttributes(5, wanted, values, device_pointer(pointer));
        if (result != CUDA_SUCCESS) {
            return to_error(result);
        }
        *attributes = cudaPointerAttributes{};
        attributes->device = type == 0 ? cudaInvalidDeviceId : ordinal;
        if (type == 0) {
            // As the vendor's runtime since release 11: unknown memory is no error.
            attributes->type = cudaMemoryTypeUnregistered;
            attributes->hostPointer = const_cast<void*>(pointer);
            return cudaSuccess;
        }
        attributes->type = managed                      ? cudaMemoryTypeManaged
                           : type == CU_MEMORYTYPE_HOST ? cudaMemoryTypeHost
                                                        : cudaMemoryTypeDevice;
        attributes->devicePointer = device;
        attributes->hostPointer = host;
        return cudaSuccess;
    });
}

extern "C" cudaError_t cudaIpcGetMemHandle(cudaIpcMemHandle_t* handle, void* pointer) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuIpcGetMemHandle(reinterpret_cast<CUipcMemHandle*>(handle),
                                                 device_pointer(pointer)));
    });
}

extern "C" cudaError_t cudaIpcOpenMemHandle(void** pointer, cudaIpcMemHandle_t handle,
                                            unsigned int flags) {
    return enter([&](const Driver& driver) {
        if (!pointer) {
            return cudaErrorInvalidValue;
        }
        CUipcMemHandle driver_handle{};
        std::memcpy(&driver_handle, &handle, sizeof(driver_handle));
        CUdeviceptr address = 0;
        const CUresult result = driver.cuIpcOpenMemHandle(&address, driver_handle, flags);
        if (result == CUDA_SUCCESS) {
            *pointer = reinterpret_cast<void*>(address);
        }
        return to_error(result);
    });
}

extern "C" cudaError_t cudaIpcCloseMemHandle(void* pointer) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuIpcCloseMemHandle(device_pointer(pointer)));
    });
}

extern "C" cudaError_t cudaIpcGetEventHandle(cudaIpcEventHandle_t* handle, cudaEvent_t event) {
    return enter([&](const Driver& driver) {
        return to_error(
            driver.cuIpcGetEventHandle(reinterpret_cast<CUipcEventHandle*>(handle), event));
    });
}

extern "C" cudaError_t cudaIpcOpenEventHandle(cudaEvent_t* event, cudaIpcEventHandle_t handle) {
    return enter([&](const Driver& driver) {
        CUipcEventHandle driver_handle{};
        std::memcpy(&driver_handle, &handle, sizeof(driver_handle));
        return to_error(driver.cuIpcOpenEventHandle(event, driver_handle));
    });
}
