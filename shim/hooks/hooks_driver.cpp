// SPDX-License-Identifier: Apache-2.0
// The exported driver wrappers: each tells the gate what is about to happen, calls the real
// function, and returns its result untouched. No policy, no logging, no environment here.
#include "shim/hooks/hooks_driver.hpp"

#include "shim/hooks/launch_scope.hpp"
#include "shim/wrapped.hpp"

using crossover::real_driver;
using crossover::StreamHandle;

namespace {

StreamHandle handle_of(CUstream stream, bool per_thread) noexcept {
    return {reinterpret_cast<std::uintptr_t>(stream), per_thread};
}

template <class Real>
CUresult gated(CUfunction function, CUstream stream, bool per_thread, Real&& real) noexcept {
    return crossover::launch(reinterpret_cast<std::uintptr_t>(function),
                             handle_of(stream, per_thread), real,
                             [](CUresult result) { return result == CUDA_SUCCESS; });
}

// The real function of the table, or nullptr while the driver is not there.
#define CX_REAL(name) (real_driver() == nullptr ? nullptr : real_driver()->name)

CUresult launch_kernel(decltype(&cuLaunchKernel) real, bool per_thread, CUfunction f, unsigned gx,
                       unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz,
                       unsigned shared, CUstream stream, void** parameters, void** extra) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return gated(f, stream, per_thread, [&] {
        return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
    });
}

CUresult launch_kernel_ex(decltype(&cuLaunchKernelEx) real, bool per_thread,
                          const CUlaunchConfig* config, CUfunction f, void** parameters,
                          void** extra) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (config == nullptr) {
        return real(config, f, parameters, extra);
    }
    return gated(f, config->hStream, per_thread,
                 [&] { return real(config, f, parameters, extra); });
}

CUresult launch_cooperative(decltype(&cuLaunchCooperativeKernel) real, bool per_thread,
                            CUfunction f, unsigned gx, unsigned gy, unsigned gz, unsigned bx,
                            unsigned by, unsigned bz, unsigned shared, CUstream stream,
                            void** parameters) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return gated(f, stream, per_thread,
                 [&] { return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters); });
}

CUresult graph_launch(decltype(&cuGraphLaunch) real, bool per_thread, CUgraphExec graph,
                      CUstream stream) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return gated(nullptr, stream, per_thread, [&] { return real(graph, stream); });
}

bool followed() noexcept { return crossover::attention() && crossover::thread_state().depth == 0; }

CUresult event_record(decltype(&cuEventRecord) real, bool per_thread, CUevent event,
                      CUstream stream) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const CUresult result = real(event, stream);
    if (result == CUDA_SUCCESS && followed()) {
        crossover::event_recorded(handle_of(stream, per_thread),
                                  reinterpret_cast<std::uintptr_t>(event));
    }
    return result;
}

CUresult event_record_flags(decltype(&cuEventRecordWithFlags) real, bool per_thread, CUevent event,
                            CUstream stream, unsigned flags) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const CUresult result = real(event, stream, flags);
    if (result == CUDA_SUCCESS && followed()) {
        crossover::event_recorded(handle_of(stream, per_thread),
                                  reinterpret_cast<std::uintptr_t>(event));
    }
    return result;
}

CUresult stream_wait(decltype(&cuStreamWaitEvent) real, bool per_thread, CUstream stream,
                     CUevent event, unsigned flags) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (followed()) {
        crossover::before_stream_wait(handle_of(stream, per_thread),
                                      reinterpret_cast<std::uintptr_t>(event));
    }
    return real(stream, event, flags);
}

CUresult begin_capture(decltype(&cuStreamBeginCapture_v2) real, CUstream stream,
                       CUstreamCaptureMode mode) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const CUresult result = real(stream, mode);
    if (result == CUDA_SUCCESS) {
        crossover::capture_began();
    }
    return result;
}

CUresult end_capture(decltype(&cuStreamEndCapture) real, CUstream stream, CUgraph* graph) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const CUresult result = real(stream, graph);
    // A capture also ends when it turns out invalid; these say that this stream began none.
    if (result != CUDA_ERROR_ILLEGAL_STATE && result != CUDA_ERROR_STREAM_CAPTURE_UNMATCHED) {
        crossover::capture_ended();
    }
    return result;
}

// The pointer that a look-up gave, replaced where it is a function we wrap.
void replace(const char* symbol, void** function, cuuint64_t flags) noexcept {
    if (function != nullptr && *function != nullptr) {
        const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
        *function = crossover::wrapped_driver_function(*function, symbol, per_thread);
    }
}

}  // namespace

// ---------------------------------------------------------------------------------------------
// launches

CX_EXPORT CUresult CUDAAPI cuLaunchKernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                          unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                          CUstream stream, void** parameters, void** extra) {
    return launch_kernel(CX_REAL(cuLaunchKernel), false, f, gx, gy, gz, bx, by, bz, shared, stream,
                         parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                               unsigned bx, unsigned by, unsigned bz,
                                               unsigned shared, CUstream stream, void** parameters,
                                               void** extra) {
    return launch_kernel(CX_REAL(cuLaunchKernel_ptsz), true, f, gx, gy, gz, bx, by, bz, shared,
                         stream, parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f,
                                            void** parameters, void** extra) {
    return launch_kernel_ex(CX_REAL(cuLaunchKernelEx), false, config, f, parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f,
                                                 void** parameters, void** extra) {
    return launch_kernel_ex(CX_REAL(cuLaunchKernelEx_ptsz), true, config, f, parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy,
                                                     unsigned gz, unsigned bx, unsigned by,
                                                     unsigned bz, unsigned shared, CUstream stream,
                                                     void** parameters) {
    return launch_cooperative(CX_REAL(cuLaunchCooperativeKernel), false, f, gx, gy, gz, bx, by, bz,
                              shared, stream, parameters);
}

CX_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy,
                                                          unsigned gz, unsigned bx, unsigned by,
                                                          unsigned bz, unsigned shared,
                                                          CUstream stream, void** parameters) {
    return launch_cooperative(CX_REAL(cuLaunchCooperativeKernel_ptsz), true, f, gx, gy, gz, bx, by,
                              bz, shared, stream, parameters);
}

CX_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    return graph_launch(CX_REAL(cuGraphLaunch), false, graph, stream);
}

CX_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
    return graph_launch(CX_REAL(cuGraphLaunch_ptsz), true, graph, stream);
}

// ---------------------------------------------------------------------------------- streams and
// events

CX_EXPORT CUresult CUDAAPI cuStreamDestroy_v2(CUstream stream) {
    crossover::stream_destroyed(reinterpret_cast<std::uintptr_t>(stream));
    const auto real = CX_REAL(cuStreamDestroy_v2);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(stream);
}

CX_EXPORT CUresult CUDAAPI cuEventRecord(CUevent event, CUstream stream) {
    return event_record(CX_REAL(cuEventRecord), false, event, stream);
}

CX_EXPORT CUresult CUDAAPI cuEventRecord_ptsz(CUevent event, CUstream stream) {
    return event_record(CX_REAL(cuEventRecord_ptsz), true, event, stream);
}

CX_EXPORT CUresult CUDAAPI cuEventRecordWithFlags(CUevent event, CUstream stream, unsigned flags) {
    return event_record_flags(CX_REAL(cuEventRecordWithFlags), false, event, stream, flags);
}

CX_EXPORT CUresult CUDAAPI cuEventRecordWithFlags_ptsz(CUevent event, CUstream stream,
                                                       unsigned flags) {
    return event_record_flags(CX_REAL(cuEventRecordWithFlags_ptsz), true, event, stream, flags);
}

CX_EXPORT CUresult CUDAAPI cuEventDestroy_v2(CUevent event) {
    crossover::event_destroyed(reinterpret_cast<std::uintptr_t>(event));
    const auto real = CX_REAL(cuEventDestroy_v2);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(event);
}

CX_EXPORT CUresult CUDAAPI cuStreamWaitEvent(CUstream stream, CUevent event, unsigned flags) {
    return stream_wait(CX_REAL(cuStreamWaitEvent), false, stream, event, flags);
}

CX_EXPORT CUresult CUDAAPI cuStreamWaitEvent_ptsz(CUstream stream, CUevent event, unsigned flags) {
    return stream_wait(CX_REAL(cuStreamWaitEvent_ptsz), true, stream, event, flags);
}

// -----------------------------------------------------------------------------------------------
// capture

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture(CX_REAL(cuStreamBeginCapture_v2), stream, mode);
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    return begin_capture(CX_REAL(cuStreamBeginCapture_v2_ptsz), stream, mode);
}

CX_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    return end_capture(CX_REAL(cuStreamEndCapture), stream, graph);
}

CX_EXPORT CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
    return end_capture(CX_REAL(cuStreamEndCapture_ptsz), stream, graph);
}

// ----------------------------------------------------------------------------------------------
// contexts

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxRetain);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(context, device);
    if (result == CUDA_SUCCESS) {
        crossover::context_made(reinterpret_cast<std::uintptr_t>(*context));
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset_v2(CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxReset_v2);
    crossover::device_contexts_lost(static_cast<std::uint32_t>(device));
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(device);
}

CX_EXPORT CUresult CUDAAPI cuCtxDestroy_v2(CUcontext context) {
    const auto real = CX_REAL(cuCtxDestroy_v2);
    crossover::context_lost(reinterpret_cast<std::uintptr_t>(context));
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(context);
}

// ----------------------------------------------------------------------------------------------
// look-up

CX_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* symbol, void** function, int version,
                                            cuuint64_t flags) {
    const auto real = CX_REAL(cuGetProcAddress);
    const CUresult result =
        real == nullptr ? CUDA_ERROR_NOT_FOUND : real(symbol, function, version, flags);
    if (result == CUDA_SUCCESS) {
        replace(symbol, function, flags);
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                               cuuint64_t flags,
                                               CUdriverProcAddressQueryResult* status) {
    const auto real = CX_REAL(cuGetProcAddress_v2);
    const CUresult result =
        real == nullptr ? CUDA_ERROR_NOT_FOUND : real(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS) {
        replace(symbol, function, flags);
    }
    return result;
}
