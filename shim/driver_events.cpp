// SPDX-License-Identifier: Apache-2.0
#include "shim/driver_events.hpp"

#include "shim/real_driver.hpp"
#include "shim/relaxed_capture.hpp"

namespace crossover {

namespace {

CUstream stream_of(std::uintptr_t handle) noexcept { return reinterpret_cast<CUstream>(handle); }
CUevent event_of(GpuEvent event) noexcept { return static_cast<CUevent>(event); }

}  // namespace

bool DriverEvents::succeeded(int result) noexcept {
    if (result == CUDA_ERROR_DEINITIALIZED) {
        ended_.store(true, std::memory_order_relaxed);
    }
    return result == CUDA_SUCCESS;
}

GpuEvent DriverEvents::create() noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->event_create == nullptr) {
        return nullptr;
    }
    const RelaxedCaptureMode relaxed(*driver);
    CUevent event = nullptr;
    return succeeded(driver->event_create(&event, CU_EVENT_DEFAULT)) ? event : nullptr;
}

void DriverEvents::destroy(GpuEvent event) noexcept {
    const RealDriver* driver = real_driver();
    if (driver != nullptr && driver->cuEventDestroy_v2 != nullptr) {
        const RelaxedCaptureMode relaxed(*driver);
        driver->cuEventDestroy_v2(event_of(event));
    }
}

bool DriverEvents::record(GpuEvent event, std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->cuEventRecord == nullptr) {
        return false;
    }
    const RelaxedCaptureMode relaxed(*driver);
    return succeeded(driver->cuEventRecord(event_of(event), stream_of(stream)));
}

EventState DriverEvents::query(GpuEvent event) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->event_query == nullptr) {
        return EventState::kFault;
    }
    const RelaxedCaptureMode relaxed(*driver);
    const CUresult result = driver->event_query(event_of(event));
    switch (result) {
        case CUDA_SUCCESS:
        case CUDA_ERROR_CAPTURED_EVENT:  // its stream joined a capture just before the record
            return EventState::kDone;
        case CUDA_ERROR_NOT_READY:
            return EventState::kPending;
        default:
            succeeded(result);
            return EventState::kFault;
    }
}

std::int64_t DriverEvents::elapsed_ns(GpuEvent from, GpuEvent to) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->event_elapsed == nullptr) {
        return 0;
    }
    const RelaxedCaptureMode relaxed(*driver);
    float milliseconds = 0.0F;
    if (driver->event_elapsed(&milliseconds, event_of(from), event_of(to)) != CUDA_SUCCESS) {
        return 0;
    }
    return static_cast<std::int64_t>(static_cast<double>(milliseconds) * 1e6);
}

bool DriverEvents::capturing(std::uintptr_t stream) noexcept {
    const RealDriver* driver = real_driver();
    if (driver == nullptr || driver->stream_is_capturing == nullptr) {
        return false;  // a driver before graphs
    }
    CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
    return driver->stream_is_capturing(stream_of(stream), &status) != CUDA_SUCCESS ||
           status != CU_STREAM_CAPTURE_STATUS_NONE;
}

}  // namespace crossover
