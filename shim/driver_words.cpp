// SPDX-License-Identifier: Apache-2.0
#include "shim/driver_words.hpp"

#include <sys/mman.h>

#include "shim/real_driver.hpp"
#include "shim/relaxed_capture.hpp"

namespace crossover {

static_assert(sizeof(std::atomic<std::uint32_t>) == sizeof(cuuint32_t) &&
              std::atomic<std::uint32_t>::is_always_lock_free);

DriverWords::Opened DriverWords::open(std::uint32_t ordinal) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->stream_batch_mem_op == nullptr ||
        driver->mem_host_register == nullptr || driver->mem_host_device_pointer == nullptr ||
        driver->device_get_attribute == nullptr) {
        return Opened::kNone;
    }
    const auto refused = [](CUresult result) {
        return result == CUDA_ERROR_DEINITIALIZED ? Opened::kEnded : Opened::kNone;
    };
    // There is none for the operations of 32 bits alone; devices that have these have both.
    int available = 0;
    CUresult result =
        driver->device_get_attribute(&available, CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS,
                                     static_cast<CUdevice>(ordinal));
    if (result != CUDA_SUCCESS || available == 0) {
        return refused(result);
    }
    // Shared, so that a fork does not give parent and GPU different pages.
    constexpr std::size_t kBytes = kWords * sizeof(std::uint32_t);
    void* memory =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED) {
        return Opened::kNone;
    }
    const RelaxedCaptureMode relaxed(*driver);
    CUdeviceptr address = 0;
    result = driver->mem_host_register(memory, kBytes,
                                       CU_MEMHOSTREGISTER_PORTABLE | CU_MEMHOSTREGISTER_DEVICEMAP);
    if (result == CUDA_SUCCESS) {
        result = driver->mem_host_device_pointer(&address, memory, 0);
    }
    if (result != CUDA_SUCCESS) {
        return refused(result);  // a page that the driver may have pinned stays mapped
    }
    words_ = static_cast<std::atomic<std::uint32_t>*>(memory);
    device_address_ = address;
    return Opened::kYes;
}

bool DriverWords::put(std::uintptr_t stream, std::uint32_t index, std::uint32_t epoch) noexcept {
    const RealDriver* driver = real_driver();
    CUstreamBatchMemOpParams both[2] = {};
    both[0].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    both[0].writeValue.address = device_address_ + index * sizeof(std::uint32_t);
    both[0].writeValue.value = epoch;
    both[0].writeValue.flags = CU_STREAM_WRITE_VALUE_DEFAULT;
    both[1].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    both[1].waitValue.address = device_address_;
    both[1].waitValue.value = epoch;
    both[1].waitValue.flags = CU_STREAM_WAIT_VALUE_GEQ;
    const RelaxedCaptureMode relaxed(*driver);
    return driver->stream_batch_mem_op(reinterpret_cast<CUstream>(stream), 2, both, 0) ==
           CUDA_SUCCESS;
}

bool DriverWords::put_hold(std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    CUstreamBatchMemOpParams wait{};
    wait.waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_32;
    wait.waitValue.address = device_address_ + kHold * sizeof(std::uint32_t);
    wait.waitValue.value = 0;
    wait.waitValue.flags = CU_STREAM_WAIT_VALUE_EQ;
    const RelaxedCaptureMode relaxed(*driver);
    return driver->stream_batch_mem_op(reinterpret_cast<CUstream>(stream), 1, &wait, 0) ==
           CUDA_SUCCESS;
}

}  // namespace crossover
