// SPDX-License-Identifier: Apache-2.0
// Exported copies. Each says which side a pointer is on; the rest is copy().

#include "copy.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

constexpr bool kSync = true;
constexpr bool kAsync = false;

Place host(const void* pointer) { return {static_cast<std::byte*>(const_cast<void*>(pointer))}; }
Place device(CUdeviceptr address) { return {pointer_of(address)}; }
Box line(std::size_t bytes) { return {bytes}; }

// One side of a 2D or 3D copy description.
struct End {
    CUmemorytype type;
    const void* host;
    CUdeviceptr device;
    std::size_t x, y, z;
    std::size_t pitch, rows;
};

CUresult resolve_end(const End& end, const Box& box, Side* side, Place* place) {
    std::byte* base = nullptr;
    switch (end.type) {
        case CU_MEMORYTYPE_HOST:
            *side = Side::kHost;
            base = static_cast<std::byte*>(const_cast<void*>(end.host));
            break;
        case CU_MEMORYTYPE_DEVICE:
            *side = Side::kDevice;
            base = pointer_of(end.device);
            break;
        case CU_MEMORYTYPE_UNIFIED:
            *side = Side::kAny;
            base = pointer_of(end.device);
            break;
        case CU_MEMORYTYPE_ARRAY:
            return CUDA_ERROR_NOT_SUPPORTED;  // the virtual GPU has no arrays
        default:
            return CUDA_ERROR_INVALID_VALUE;
    }
    if (base == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const std::size_t pitch = end.pitch != 0 ? end.pitch : box.width;
    const std::size_t rows = end.rows != 0 ? end.rows : box.height;
    if (pitch < box.width + end.x || rows < box.height + end.y) return CUDA_ERROR_INVALID_VALUE;
    *place = {base + end.x + end.y * pitch + end.z * pitch * rows, pitch, pitch * rows};
    return CUDA_SUCCESS;
}

CUresult copy_ends(CUstream stream, DefaultStream meaning, const End& to, const End& from,
                   const Box& box, bool synchronous) {
    if (box.width == 0 || box.height == 0 || box.depth == 0) return CUDA_SUCCESS;
    Side to_side{};
    Side from_side{};
    Place destination;
    Place source;
    if (const CUresult rc = resolve_end(to, box, &to_side, &destination); rc != CUDA_SUCCESS)
        return rc;
    if (const CUresult rc = resolve_end(from, box, &from_side, &source); rc != CUDA_SUCCESS)
        return rc;
    return copy(stream, meaning, to_side, destination, from_side, source, box, synchronous);
}

CUresult copy_2d(const CUDA_MEMCPY2D* c, CUstream stream, DefaultStream meaning, bool synchronous) {
    if (c == nullptr) return CUDA_ERROR_INVALID_VALUE;
    // Rows of a plane have no count of their own: whatever fits.
    const End to{c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                 c->dstY,          0,          c->dstPitch,  c->Height + c->dstY};
    const End from{c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                   c->srcY,          0,          c->srcPitch,  c->Height + c->srcY};
    return copy_ends(stream, meaning, to, from, {c->WidthInBytes, c->Height, 1}, synchronous);
}

CUresult copy_3d(const CUDA_MEMCPY3D* c, CUstream stream, DefaultStream meaning, bool synchronous) {
    if (c == nullptr || c->srcLOD != 0 || c->dstLOD != 0) return CUDA_ERROR_INVALID_VALUE;
    const End to{c->dstMemoryType, c->dstHost, c->dstDevice, c->dstXInBytes,
                 c->dstY,          c->dstZ,    c->dstPitch,  c->dstHeight};
    const End from{c->srcMemoryType, c->srcHost, c->srcDevice, c->srcXInBytes,
                   c->srcY,          c->srcZ,    c->srcPitch,  c->srcHeight};
    return copy_ends(stream, meaning, to, from, {c->WidthInBytes, c->Height, c->Depth},
                     synchronous);
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTDS(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes),
            copy(nullptr, kDefault, Side::kAny, device(to), Side::kAny, device(from), line(bytes),
                 kSync))
SIMGPU_PTSZ(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream),
            copy(stream, kDefault, Side::kAny, device(to), Side::kAny, device(from), line(bytes),
                 kAsync))
SIMGPU_PTDS(cuMemcpyHtoD_v2, (CUdeviceptr to, const void* from, std::size_t bytes),
            copy(nullptr, kDefault, Side::kDevice, device(to), Side::kHost, host(from), line(bytes),
                 kSync))
SIMGPU_PTDS(cuMemcpyDtoH_v2, (void* to, CUdeviceptr from, std::size_t bytes),
            copy(nullptr, kDefault, Side::kHost, host(to), Side::kDevice, device(from), line(bytes),
                 kSync))
SIMGPU_PTDS(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, std::size_t bytes),
            copy(nullptr, kDefault, Side::kDevice, device(to), Side::kDevice, device(from),
                 line(bytes), kSync))
SIMGPU_PTSZ(cuMemcpyHtoDAsync_v2,
            (CUdeviceptr to, const void* from, std::size_t bytes, CUstream stream),
            copy(stream, kDefault, Side::kDevice, device(to), Side::kHost, host(from), line(bytes),
                 kAsync))
SIMGPU_PTSZ(cuMemcpyDtoHAsync_v2, (void* to, CUdeviceptr from, std::size_t bytes, CUstream stream),
            copy(stream, kDefault, Side::kHost, host(to), Side::kDevice, device(from), line(bytes),
                 kAsync))
SIMGPU_PTSZ(cuMemcpyDtoDAsync_v2,
            (CUdeviceptr to, CUdeviceptr from, std::size_t bytes, CUstream stream),
            copy(stream, kDefault, Side::kDevice, device(to), Side::kDevice, device(from),
                 line(bytes), kAsync))
SIMGPU_PTDS(cuMemcpyPeer,
            (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes),
            copy(nullptr, kDefault, Side::kDevice, device(to), Side::kDevice, device(from),
                 line(bytes), kSync))
SIMGPU_PTSZ(cuMemcpyPeerAsync,
            (CUdeviceptr to, CUcontext, CUdeviceptr from, CUcontext, std::size_t bytes,
             CUstream stream),
            copy(stream, kDefault, Side::kDevice, device(to), Side::kDevice, device(from),
                 line(bytes), kAsync))
SIMGPU_PTDS(cuMemcpy2D_v2, (const CUDA_MEMCPY2D* description),
            copy_2d(description, nullptr, kDefault, kSync))
SIMGPU_PTDS(cuMemcpy2DUnaligned_v2, (const CUDA_MEMCPY2D* description),
            copy_2d(description, nullptr, kDefault, kSync))
SIMGPU_PTSZ(cuMemcpy2DAsync_v2, (const CUDA_MEMCPY2D* description, CUstream stream),
            copy_2d(description, stream, kDefault, kAsync))
SIMGPU_PTDS(cuMemcpy3D_v2, (const CUDA_MEMCPY3D* description),
            copy_3d(description, nullptr, kDefault, kSync))
SIMGPU_PTSZ(cuMemcpy3DAsync_v2, (const CUDA_MEMCPY3D* description, CUstream stream),
            copy_3d(description, stream, kDefault, kAsync))
