// SPDX-License-Identifier: Apache-2.0
// The real driver: a typed pointer for every row of intercepts_driver.def, and the further driver
// functions the library itself calls. Pointers are nullptr until libcuda.so.1 is loaded and for
// functions it lacks.
#pragma once

#include <cuda.h>

#include <atomic>

// The table names every form of these; cuda.h defines the plain name as the newest.
#undef cuGetProcAddress
#undef cuDevicePrimaryCtxRelease
#undef cuDevicePrimaryCtxReset
#undef cuGraphInstantiate
#undef cuStreamBeginCapture

// The four-argument form of CUDA 11.3 to 11.8, which cuda.h no longer declares. A type only, never
// defined.
CUresult CUDAAPI cuGetProcAddress_v1(const char* symbol, void** function, int version,
                                     cuuint64_t flags);
// Likewise: captures of CUDA 10.0, graphs up to 11.8, and the capture's number as every driver
// since 10.1 gives it.
CUresult CUDAAPI cuStreamBeginCapture_v1(CUstream stream);
CUresult CUDAAPI cuGraphInstantiate_v1(CUgraphExec* executable, CUgraph graph,
                                       CUgraphNode* error_node, char* log, size_t log_bytes);
CUresult CUDAAPI cuStreamGetCaptureInfo_v1(CUstream stream, CUstreamCaptureStatus* status,
                                           cuuint64_t* number);

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
    decltype(&::cuStreamGetCaptureInfo_v1) stream_get_capture = nullptr;
    decltype(&::cuEventCreate) event_create = nullptr;
    decltype(&::cuEventQuery) event_query = nullptr;
    decltype(&::cuEventElapsedTime) event_elapsed = nullptr;
    decltype(&::cuThreadExchangeStreamCaptureMode) exchange_capture_mode = nullptr;
    decltype(&::cuFuncGetName) func_get_name = nullptr;      // CUDA 12.3 and newer
    decltype(&::cuKernelGetName) kernel_get_name = nullptr;  // CUDA 12.3 and newer
    // Of the newer form of stream memory operations, which needs no module option (CUDA 11.7).
    decltype(&::cuStreamBatchMemOp_v2) stream_batch_mem_op = nullptr;
    decltype(&::cuMemHostRegister_v2) mem_host_register = nullptr;
    decltype(&::cuMemHostGetDevicePointer_v2) mem_host_device_pointer = nullptr;
    decltype(&::cuDeviceGetAttribute) device_get_attribute = nullptr;
};

// Behind real_driver() and real_function(); nothing else touches them.
[[gnu::visibility("hidden")]] extern RealDriver real_driver_table;
[[gnu::visibility("hidden")]] extern std::atomic<bool> real_driver_resolved;
[[gnu::cold]] const RealDriver* resolve_real_driver() noexcept;

// The table, resolved once libcuda.so.1 is in the process; nullptr before. Any thread; after
// success a load and a branch, since every launch comes by here.
inline const RealDriver* real_driver() noexcept {
    return real_driver_resolved.load(std::memory_order_acquire) ? &real_driver_table
                                                                : resolve_real_driver();
}

// One function of the table, by its member; nullptr while there is no driver or where it lacks it.
template <class Function>
inline Function real_function(Function RealDriver::*member) noexcept {
    const RealDriver* driver = real_driver();
    return driver == nullptr ? nullptr : driver->*member;
}

}  // namespace crossover
