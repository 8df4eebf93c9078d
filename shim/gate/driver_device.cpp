// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/driver_device.hpp"

#include <cstring>

#include "shim/real_driver.hpp"

namespace crossover {

namespace {

CUstream stream_of(std::uintptr_t stream) noexcept { return reinterpret_cast<CUstream>(stream); }

}  // namespace

void* current_context() noexcept {
    const RealDriver* driver = real_driver();
    CUcontext context = nullptr;
    if (driver == nullptr || driver->ctx_get_current == nullptr ||
        driver->ctx_get_current(&context) != CUDA_SUCCESS) {
        return nullptr;
    }
    return context;
}

void* context_of_stream(std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    CUcontext context = nullptr;
    if (driver == nullptr || driver->stream_get_ctx == nullptr ||
        driver->stream_get_ctx(stream_of(stream), &context) != CUDA_SUCCESS) {
        return current_context();
    }
    return context;
}

bool stream_is_non_blocking(std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    unsigned flags = 0;
    return driver != nullptr && driver->stream_get_flags != nullptr &&
           driver->stream_get_flags(stream_of(stream), &flags) == CUDA_SUCCESS &&
           (flags & CU_STREAM_NON_BLOCKING) != 0;
}

std::uint64_t capture_number(std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t number = 0;
    if (driver == nullptr || driver->stream_get_capture == nullptr ||
        driver->stream_get_capture(stream_of(stream), &status, &number) != CUDA_SUCCESS ||
        status != CU_STREAM_CAPTURE_STATUS_ACTIVE) {
        return 0;
    }
    return number;
}

bool device_of_current_context(void* context, DeviceUuid& device, std::uint32_t& ordinal) noexcept {
    const RealDriver* driver = real_driver();
    CUdevice number = 0;
    CUuuid uuid{};
    if (driver == nullptr || driver->ctx_get_device == nullptr ||
        driver->device_get_uuid == nullptr || current_context() != context ||
        driver->ctx_get_device(&number) != CUDA_SUCCESS ||
        driver->device_get_uuid(&uuid, number) != CUDA_SUCCESS) {
        return false;
    }
    static_assert(sizeof uuid.bytes == sizeof device.bytes);
    std::memcpy(device.bytes, uuid.bytes, sizeof device.bytes);
    ordinal = static_cast<std::uint32_t>(number);
    return true;
}

std::optional<KernelName> name_of_kernel(std::uintptr_t function) noexcept {
    const RealDriver* driver = real_driver();
    const char* name = nullptr;
    if (driver == nullptr || driver->func_get_name == nullptr) {
        return std::nullopt;
    }
    if (driver->func_get_name(&name, reinterpret_cast<CUfunction>(function)) != CUDA_SUCCESS ||
        name == nullptr) {
        if (driver->kernel_get_name == nullptr ||
            driver->kernel_get_name(&name, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS ||
            name == nullptr) {
            return std::nullopt;
        }
    }
    return kernel_name(name);
}

}  // namespace crossover
