// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/driver_device.hpp"

#include <cstring>

#include "shim/gate/nccl_names.hpp"
#include "shim/inference/handle_map.hpp"
#include "shim/real_driver.hpp"

namespace crossover {

namespace {

CUstream stream_of(std::uintptr_t stream) noexcept { return reinterpret_cast<CUstream>(stream); }

bool name_says_nccl(std::uintptr_t function) noexcept {
    const RealDriver* driver = real_driver();
    const char* name = nullptr;
    if (driver == nullptr || driver->func_get_name == nullptr ||
        driver->func_get_name(&name, reinterpret_cast<CUfunction>(function)) != CUDA_SUCCESS ||
        name == nullptr) {
        if (driver == nullptr || driver->kernel_get_name == nullptr ||
            driver->kernel_get_name(&name, reinterpret_cast<CUkernel>(function)) != CUDA_SUCCESS ||
            name == nullptr) {
            return false;
        }
    }
    return is_nccl_kernel_name(name);
}

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

bool is_nccl_kernel(std::uintptr_t function, bool otherwise) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->func_get_name == nullptr) {
        return otherwise;
    }
    struct Known {
        bool nccl;
    };
    static HandleMap<Known> known(16384);
    const Known* found = known.find(function);
    if (found == nullptr) {
        const bool nccl = name_says_nccl(function);
        found = known.find_or_add(function, [&](Known& fresh) { fresh.nccl = nccl; });
        if (found == nullptr) {
            return nccl;
        }
    }
    return found->nccl;
}

}  // namespace crossover
