// SPDX-License-Identifier: Apache-2.0
// Copies and fills of the virtual GPU's CUDA runtime. The driver function used follows the
// direction the program named, as in the vendor's runtime, so that an interposer sees the same
// calls.
#include "runtime.hpp"

using namespace simgpu::cudart;

namespace {

bool valid(cudaMemcpyKind kind) {
    return kind >= cudaMemcpyHostToHost && kind <= cudaMemcpyDefault;
}

cudaError_t copy(const Driver& driver, void* target, const void* source, std::size_t count,
                 cudaMemcpyKind kind) {
    if (!valid(kind)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    if (count == 0) {
        return cudaSuccess;
    }
    const CUdeviceptr to = device_pointer(target);
    const CUdeviceptr from = device_pointer(source);
    switch (kind) {
        case cudaMemcpyHostToDevice:
            return to_error(driver.cuMemcpyHtoD(to, source, count));
        case cudaMemcpyDeviceToHost:
            return to_error(driver.cuMemcpyDtoH(target, from, count));
        case cudaMemcpyDeviceToDevice:
            return to_error(driver.cuMemcpyDtoD(to, from, count));
        default:
            return to_error(driver.cuMemcpy(to, from, count));
    }
}

cudaError_t copy_async(const Driver& driver, void* target, const void* source, std::size_t count,
                       cudaMemcpyKind kind, cudaStream_t stream) {
    if (!valid(kind)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    if (count == 0) {
        return cudaSuccess;
    }
    const CUdeviceptr to = device_pointer(target);
    const CUdeviceptr from = device_pointer(source);
    switch (kind) {
        case cudaMemcpyHostToDevice:
            return to_error(driver.cuMemcpyHtoDAsync(to, source, count, stream));
        case cudaMemcpyDeviceToHost:
            return to_error(driver.cuMemcpyDtoHAsync(target, from, count, stream));
        case cudaMemcpyDeviceToDevice:
            return to_error(driver.cuMemcpyDtoDAsync(to, from, count, stream));
        default:
            return to_error(driver.cuMemcpyAsync(to, from, count, stream));
    }
}

CUmemorytype source_type(cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToHost:
        case cudaMemcpyHostToDevice:
            return CU_MEMORYTYPE_HOST;
        case cudaMemcpyDeviceToHost:
        case cudaMemcpyDeviceToDevice:
            return CU_MEMORYTYPE_DEVICE;
        default:
            return CU_MEMORYTYPE_UNIFIED;
    }
}

CUmemorytype target_type(cudaMemcpyKind kind) {
    switch (kind) {
        case cudaMemcpyHostToHost:
        case cudaMemcpyDeviceToHost:
            return CU_MEMORYTYPE_HOST;
        case cudaMemcpyHostToDevice:
        case cudaMemcpyDeviceToDevice:
            return CU_MEMORYTYPE_DEVICE;
        default:
            return CU_MEMORYTYPE_UNIFIED;
    }
}

CUDA_MEMCPY2D copy_2d(void* target, std::size_t target_pitch, const void* source,
                      std::size_t source_pitch, std::size_t width, std::size_t height,
                      cudaMemcpyKind kind) {
    CUDA_MEMCPY2D result{};
    result.srcMemoryType = source_type(kind);
    result.srcHost = source;
    result.srcDevice = device_pointer(source);
    result.srcPitch = source_pitch;
    result.dstMemoryType = target_type(kind);
    result.dstHost = target;
    result.dstDevice = device_pointer(target);
    result.dstPitch = target_pitch;
    result.WidthInBytes = width;
    result.Height = height;
    return result;
}

// Arrays are not modelled: a copy from or to one is refused.
cudaError_t copy_3d(const cudaMemcpy3DParms* parameters, CUDA_MEMCPY3D* result) {
    if (!parameters) {
        return cudaErrorInvalidValue;
    }
    if (parameters->srcArray || parameters->dstArray) {
        return cudaErrorNotSupported;
    }
    if (!valid(parameters->kind)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    *result = CUDA_MEMCPY3D{};
    result->srcMemoryType = source_type(parameters->kind);
    result->srcXInBytes = parameters->srcPos.x;
    result->srcY = parameters->srcPos.y;
    result->srcZ = parameters->srcPos.z;
    result->srcHost = parameters->srcPtr.ptr;
    result->srcDevice = device_pointer(parameters->srcPtr.ptr);
    result->srcPitch = parameters->srcPtr.pitch;
    result->srcHeight = parameters->srcPtr.ysize;
    result->dstMemoryType = target_type(parameters->kind);
    result->dstXInBytes = parameters->dstPos.x;
    result->dstY = parameters->dstPos.y;
    result->dstZ = parameters->dstPos.z;
    result->dstHost = parameters->dstPtr.ptr;
    result->dstDevice = device_pointer(parameters->dstPtr.ptr);
    result->dstPitch = parameters->dstPtr.pitch;
    result->dstHeight = parameters->dstPtr.ysize;
    result->WidthInBytes = parameters->extent.width;
    result->Height = parameters->extent.height;
    result->Depth = parameters->extent.depth;
    return cudaSuccess;
}

// Offset into a registered variable, checked against its size.
cudaError_t in_symbol(const void* symbol, std::size_t count, std::size_t offset, char** address) {
    void* start = nullptr;
    std::size_t size = 0;
    cudaError_t error = cudaGetSymbolAddress(&start, symbol);
    if (error == cudaSuccess) {
        error = cudaGetSymbolSize(&size, symbol);
    }
    if (error != cudaSuccess) {
        return error;
    }
    if (offset > size || count > size - offset) {
        return cudaErrorInvalidValue;
    }
    *address = static_cast<char*>(start) + offset;
    return cudaSuccess;
}

}  // namespace

SIMGPU_STREAM_FUNCTION(cudaMemcpy, _ptds,
                       (void* target, const void* source, size_t count, cudaMemcpyKind kind),
                       (target, source, count, kind)) {
    return copy(driver, target, source, count, kind);
}

SIMGPU_STREAM_FUNCTION(cudaMemcpyAsync, _ptsz,
                       (void* target, const void* source, size_t count, cudaMemcpyKind kind,
                        cudaStream_t stream),
                       (target, source, count, kind, stream)) {
    return copy_async(driver, target, source, count, kind, stream);
}

static cudaError_t copy_peer(const Driver& driver, void* target, int target_device,
                             const void* source, int source_device, std::size_t count,
                             const cudaStream_t* stream) {
    int devices = 0;
    const CUresult counted = driver.cuDeviceGetCount(&devices);
    if (counted != CUDA_SUCCESS) {
        return to_error(counted);
    }
    if (target_device < 0 || target_device >= devices || source_device < 0 ||
        source_device >= devices) {
        return cudaErrorInvalidDevice;
    }
    // Addresses are unified, so the direction alone tells the driver all it needs.
    return stream ? copy_async(driver, target, source, count, cudaMemcpyDeviceToDevice, *stream)
                  : copy(driver, target, source, count, cudaMemcpyDeviceToDevice);
}

extern "C" cudaError_t cudaMemcpyPeer(void* target, int target_device, const void* source,
                                      int source_device, size_t count) {
    return enter([&](const Driver& driver) {
        return copy_peer(driver, target, target_device, source, source_device, count, nullptr);
    });
}

extern "C" cudaError_t cudaMemcpyPeerAsync(void* target, int target_device, const void* source,
                                           int source_device, size_t count, cudaStream_t stream) {
    return enter([&](const Driver& driver) {
        return copy_peer(driver, target, target_device, source, source_device, count, &stream);
    });
}

SIMGPU_STREAM_FUNCTION(cudaMemcpy2D, _ptds,
                       (void* target, size_t target_pitch, const void* source, size_t source_pitch,
                        size_t width, size_t height, cudaMemcpyKind kind),
                       (target, target_pitch, source, source_pitch, width, height, kind)) {
    if (!valid(kind)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    const CUDA_MEMCPY2D parameters =
        copy_2d(target, target_pitch, source, source_pitch, width, height, kind);
    return to_error(driver.cuMemcpy2DUnaligned(&parameters));
}

SIMGPU_STREAM_FUNCTION(cudaMemcpy2DAsync, _ptsz,
                       (void* target, size_t target_pitch, const void* source, size_t source_pitch,
                        size_t width, size_t height, cudaMemcpyKind kind, cudaStream_t stream),
                       (target, target_pitch, source, source_pitch, width, height, kind, stream)) {
    if (!valid(kind)) {
        return cudaErrorInvalidMemcpyDirection;
    }
    const CUDA_MEMCPY2D parameters =
        copy_2d(target, target_pitch, source, source_pitch, width, height, kind);
    return to_error(driver.cuMemcpy2DAsync(&parameters, stream));
}

SIMGPU_STREAM_FUNCTION(cudaMemcpy3D, _ptds, (const cudaMemcpy3DParms* parameters), (parameters)) {
    CUDA_MEMCPY3D converted{};
    const cudaError_t error = copy_3d(parameters, &converted);
    return error != cudaSuccess ? error : to_error(driver.cuMemcpy3D(&converted));
}

SIMGPU_STREAM_FUNCTION(cudaMemcpy3DAsync, _ptsz,
                       (const cudaMemcpy3DParms* parameters, cudaStream_t stream),
                       (parameters, stream)) {
    CUDA_MEMCPY3D converted{};
    const cudaError_t error = copy_3d(parameters, &converted);
    return error != cudaSuccess ? error : to_error(driver.cuMemcpy3DAsync(&converted, stream));
}

SIMGPU_STREAM_FUNCTION(cudaMemset, _ptds, (void* pointer, int value, size_t count),
                       (pointer, value, count)) {
    return to_error(
        driver.cuMemsetD8(device_pointer(pointer), static_cast<unsigned char>(value), count));
}

SIMGPU_STREAM_FUNCTION(cudaMemsetAsync, _ptsz,
                       (void* pointer, int value, size_t count, cudaStream_t stream),
                       (pointer, value, count, stream)) {
    return to_error(driver.cuMemsetD8Async(device_pointer(pointer),
                                           static_cast<unsigned char>(value), count, stream));
}

SIMGPU_STREAM_FUNCTION(cudaMemset2D, _ptds,
                       (void* pointer, size_t pitch, int value, size_t width, size_t height),
                       (pointer, pitch, value, width, height)) {
    return to_error(driver.cuMemsetD2D8(device_pointer(pointer), pitch,
                                        static_cast<unsigned char>(value), width, height));
}

SIMGPU_STREAM_FUNCTION(cudaMemset2DAsync, _ptsz,
                       (void* pointer, size_t pitch, int value, size_t width, size_t height,
                        cudaStream_t stream),
                       (pointer, pitch, value, width, height, stream)) {
    return to_error(driver.cuMemsetD2D8Async(
        device_pointer(pointer), pitch, static_cast<unsigned char>(value), width, height, stream));
}

SIMGPU_STREAM_FUNCTION(cudaMemcpyToSymbol, _ptds,
                       (const void* symbol, const void* source, size_t count, size_t offset,
                        cudaMemcpyKind kind),
                       (symbol, source, count, offset, kind)) {
    char* address = nullptr;
    const cudaError_t error = in_symbol(symbol, count, offset, &address);
    return error != cudaSuccess ? error : copy(driver, address, source, count, kind);
}

SIMGPU_STREAM_FUNCTION(cudaMemcpyFromSymbol, _ptds,
                       (void* target, const void* symbol, size_t count, size_t offset,
                        cudaMemcpyKind kind),
                       (target, symbol, count, offset, kind)) {
    char* address = nullptr;
    const cudaError_t error = in_symbol(symbol, count, offset, &address);
    return error != cudaSuccess ? error : copy(driver, target, address, count, kind);
}

SIMGPU_STREAM_FUNCTION(cudaMemcpyToSymbolAsync, _ptsz,
                       (const void* symbol, const void* source, size_t count, size_t offset,
                        cudaMemcpyKind kind, cudaStream_t stream),
                       (symbol, source, count, offset, kind, stream)) {
    char* address = nullptr;
    const cudaError_t error = in_symbol(symbol, count, offset, &address);
    return error != cudaSuccess ? error : copy_async(driver, address, source, count, kind, stream);
}

SIMGPU_STREAM_FUNCTION(cudaMemcpyFromSymbolAsync, _ptsz,
                       (void* target, const void* symbol, size_t count, size_t offset,
                        cudaMemcpyKind kind, cudaStream_t stream),
                       (target, symbol, count, offset, kind, stream)) {
    char* address = nullptr;
    const cudaError_t error = in_symbol(symbol, count, offset, &address);
    return error != cudaSuccess ? error : copy_async(driver, target, address, count, kind, stream);
}
