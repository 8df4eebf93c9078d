// SPDX-License-Identifier: Apache-2.0
// Exported fills of memory. All return before the fill is done, as on a real device for device
// memory.

#include "copy.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

CUresult fill(CUstream handle, DefaultStream meaning, CUdeviceptr address, std::size_t pitch,
              std::uint32_t value, std::size_t element, std::size_t width, std::size_t height) {
    return call_in_context([&](Driver& d, CUcontext, auto& lock) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (width == 0 || height == 0) return CUDA_SUCCESS;
        Box box{0, height, 1};
        if (__builtin_mul_overflow(width, element, &box.width)) return CUDA_ERROR_INVALID_VALUE;
        const Place place{pointer_of(address), pitch, 0};
        std::size_t bytes = 0;
        if (address % element != 0 || (height > 1 && pitch < box.width))
            return CUDA_ERROR_INVALID_VALUE;
        if (!extent(place, box, &bytes)) return CUDA_ERROR_INVALID_VALUE;
        Allocation found;
        if (!find_allocation(place.base, &found)) return CUDA_ERROR_INVALID_VALUE;
        if (bytes > found.size - static_cast<std::size_t>(place.base - found.base))
            return CUDA_ERROR_INVALID_VALUE;
        return submit(d, stream, fill_work(place, box, value, element), lock);
    });
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTDS(cuMemsetD8_v2, (CUdeviceptr to, unsigned char value, std::size_t count),
            fill(nullptr, kDefault, to, 0, value, 1, count, 1))
SIMGPU_PTDS(cuMemsetD16_v2, (CUdeviceptr to, unsigned short value, std::size_t count),
            fill(nullptr, kDefault, to, 0, value, 2, count, 1))
SIMGPU_PTDS(cuMemsetD32_v2, (CUdeviceptr to, unsigned int value, std::size_t count),
            fill(nullptr, kDefault, to, 0, value, 4, count, 1))
SIMGPU_PTDS(cuMemsetD2D8_v2,
            (CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
             std::size_t height),
            fill(nullptr, kDefault, to, pitch, value, 1, width, height))
SIMGPU_PTDS(cuMemsetD2D16_v2,
            (CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
             std::size_t height),
            fill(nullptr, kDefault, to, pitch, value, 2, width, height))
SIMGPU_PTDS(cuMemsetD2D32_v2,
            (CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t width,
             std::size_t height),
            fill(nullptr, kDefault, to, pitch, value, 4, width, height))
SIMGPU_PTSZ(cuMemsetD8Async,
            (CUdeviceptr to, unsigned char value, std::size_t count, CUstream stream),
            fill(stream, kDefault, to, 0, value, 1, count, 1))
SIMGPU_PTSZ(cuMemsetD16Async,
            (CUdeviceptr to, unsigned short value, std::size_t count, CUstream stream),
            fill(stream, kDefault, to, 0, value, 2, count, 1))
SIMGPU_PTSZ(cuMemsetD32Async,
            (CUdeviceptr to, unsigned int value, std::size_t count, CUstream stream),
            fill(stream, kDefault, to, 0, value, 4, count, 1))
SIMGPU_PTSZ(cuMemsetD2D8Async,
            (CUdeviceptr to, std::size_t pitch, unsigned char value, std::size_t width,
             std::size_t height, CUstream stream),
            fill(stream, kDefault, to, pitch, value, 1, width, height))
SIMGPU_PTSZ(cuMemsetD2D16Async,
            (CUdeviceptr to, std::size_t pitch, unsigned short value, std::size_t width,
             std::size_t height, CUstream stream),
            fill(stream, kDefault, to, pitch, value, 2, width, height))
SIMGPU_PTSZ(cuMemsetD2D32Async,
            (CUdeviceptr to, std::size_t pitch, unsigned int value, std::size_t width,
             std::size_t height, CUstream stream),
            fill(stream, kDefault, to, pitch, value, 4, width, height))
