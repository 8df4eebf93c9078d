// SPDX-License-Identifier: Apache-2.0
// The real driver: a typed pointer for every row of intercepts_driver.def, and the further driver
// functions the library itself calls. Pointers are nullptr until libcuda.so.1 is loaded and for
// functions it lacks.
#pragma once

#include <cuda.h>

#undef cuGetProcAddress  // the table names both forms

// The four-argument form of CUDA 11.3 to 11.8, which cuda.h no longer declares. A type only, never
// defined.
CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version,
                                     cuuint64_t flags);

namespace crossover {

struct RealDriver {
#define CX_DRIVER(name, prototype) decltype(&::prototype) name = nullptr;
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
    // Used by the library itself, not intercepted.
    decltype(&::cuCtxGetCurrent) ctx_get_current = nullptr;
    decltype(&::cuCtxSetCurrent) ctx_set_current = nullptr;
    decltype(&::cuCtxGetDevice) ctx_get_device = nullptr;
    decltype(&::cuDeviceGetUuid) device_get_uuid = nullptr;  // MIG-aware where the driver is
    decltype(&::cuStreamGetFlags) stream_get_flags = nullptr;
    decltype(&::cuStreamGetCtx) stream_get_ctx = nullptr;
    decltype(&::cuStreamIsCapturing) stream_is_capturing = nullptr;
    decltype(&::cuEventCreate) event_create = nullptr;
    decltype(&::cuEventQuery) event_query = nullptr;
    decltype(&::cuEventElapsedTime) event_elapsed = nullptr;
    decltype(&::cuThreadExchangeStreamCaptureMode) exchange_capture_mode = nullptr;
    decltype(&::cuFuncGetName) func_get_name = nullptr;      // CUDA 12.3 and newer
    decltype(&::cuKernelGetName) kernel_get_name = nullptr;  // CUDA 12.3 and newer
};

// The table, resolved once libcuda.so.1 is in the process; nullptr before. Any thread, lock-free
// after success.
const RealDriver* real_driver() noexcept;

}  // namespace crossover
