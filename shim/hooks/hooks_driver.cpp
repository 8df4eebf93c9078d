// SPDX-License-Identifier: Apache-2.0
// The exported driver wrappers: each tells the gate what is about to happen, calls the real
// function, and returns its result untouched. No policy, no logging, no environment here.
#include "shim/hooks/hooks_driver.hpp"

#include "shim/hooks/launch_scope.hpp"
#include "shim/wrapped.hpp"

using crossover::real_driver_table;
using crossover::RealDriver;
using crossover::route;
using crossover::StreamHandle;

namespace {

StreamHandle handle_of(CUstream stream, bool per_thread) noexcept {
    return {reinterpret_cast<std::uintptr_t>(stream), per_thread};
}

template <class Handle>
std::uintptr_t number_of(Handle handle) noexcept {
    return reinterpret_cast<std::uintptr_t>(handle);
}

template <class Real>
CUresult gated(CUfunction function, CUstream stream, bool per_thread, Real&& real) noexcept {
    return crossover::launch(reinterpret_cast<std::uintptr_t>(function),
                             handle_of(stream, per_thread), real,
                             [](CUresult result) { return result == CUDA_SUCCESS; });
}

// The real function of the table, or nullptr while the driver is not there.
#define CX_REAL(name) crossover::real_function(&RealDriver::name)

template <auto kEntry, bool kPerThread>
[[gnu::noinline]] CUresult launch_kernel(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                         unsigned bx, unsigned by, unsigned bz, unsigned shared,
                                         CUstream stream, void** parameters,
                                         void** extra) noexcept {
    const auto real = crossover::real_function(kEntry);
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return gated(f, stream, kPerThread, [&] {
        return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
    });
}

template <auto kEntry, bool kPerThread>
[[gnu::noinline]] CUresult launch_kernel_ex(const CUlaunchConfig* config, CUfunction f,
                                            void** parameters, void** extra) noexcept {
    const auto real = crossover::real_function(kEntry);
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (config == nullptr) {
        return real(config, f, parameters, extra);
    }
    return gated(f, config->hStream, kPerThread,
                 [&] { return real(config, f, parameters, extra); });
}

template <auto kEntry, bool kPerThread>
[[gnu::noinline]] CUresult launch_cooperative(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                              unsigned bx, unsigned by, unsigned bz,
                                              unsigned shared, CUstream stream,
                                              void** parameters) noexcept {
    const auto real = crossover::real_function(kEntry);
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return gated(f, stream, kPerThread,
                 [&] { return real(f, gx, gy, gz, bx, by, bz, shared, stream, parameters); });
}

template <auto kEntry, bool kPerThread>
[[gnu::noinline]] CUresult graph_launch(CUgraphExec graph, CUstream stream) noexcept {
    const auto real = crossover::real_function(kEntry);
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    return crossover::launch_graph(
        number_of(graph), handle_of(stream, kPerThread), [&] { return real(graph, stream); },
        [](CUresult result) { return result == CUDA_SUCCESS; });
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
    if (!followed()) {
        return real(stream, event, flags);
    }
    const crossover::StreamWait wait = crossover::begin_stream_wait(
        handle_of(stream, per_thread), reinterpret_cast<std::uintptr_t>(event));
    const CUresult result = real(stream, event, flags);
    crossover::end_stream_wait(wait);
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
    return route(real_driver_table.cuLaunchKernel,
                 &launch_kernel<&RealDriver::cuLaunchKernel, false>)(
        f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction f, unsigned gx, unsigned gy, unsigned gz,
                                               unsigned bx, unsigned by, unsigned bz,
                                               unsigned shared, CUstream stream, void** parameters,
                                               void** extra) {
    return route(real_driver_table.cuLaunchKernel_ptsz,
                 &launch_kernel<&RealDriver::cuLaunchKernel_ptsz, true>)(
        f, gx, gy, gz, bx, by, bz, shared, stream, parameters, extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernelEx(const CUlaunchConfig* config, CUfunction f,
                                            void** parameters, void** extra) {
    return route(real_driver_table.cuLaunchKernelEx,
                 &launch_kernel_ex<&RealDriver::cuLaunchKernelEx, false>)(config, f, parameters,
                                                                          extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig* config, CUfunction f,
                                                 void** parameters, void** extra) {
    return route(real_driver_table.cuLaunchKernelEx_ptsz,
                 &launch_kernel_ex<&RealDriver::cuLaunchKernelEx_ptsz, true>)(config, f, parameters,
                                                                              extra);
}

CX_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel(CUfunction f, unsigned gx, unsigned gy,
                                                     unsigned gz, unsigned bx, unsigned by,
                                                     unsigned bz, unsigned shared, CUstream stream,
                                                     void** parameters) {
    return route(real_driver_table.cuLaunchCooperativeKernel,
                 &launch_cooperative<&RealDriver::cuLaunchCooperativeKernel, false>)(
        f, gx, gy, gz, bx, by, bz, shared, stream, parameters);
}

CX_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction f, unsigned gx, unsigned gy,
                                                          unsigned gz, unsigned bx, unsigned by,
                                                          unsigned bz, unsigned shared,
                                                          CUstream stream, void** parameters) {
    return route(real_driver_table.cuLaunchCooperativeKernel_ptsz,
                 &launch_cooperative<&RealDriver::cuLaunchCooperativeKernel_ptsz, true>)(
        f, gx, gy, gz, bx, by, bz, shared, stream, parameters);
}

// One launch for several devices, up to CUDA 12. It takes the turn of the first alone: it needs
// them all at once, and to wait for one turn while holding another could leave two jobs waiting for
// each other.
CX_EXPORT CUresult CUDAAPI cuLaunchCooperativeKernelMultiDevice(CUDA_LAUNCH_PARAMS* launches,
                                                                unsigned count, unsigned flags) {
    const auto real = CX_REAL(cuLaunchCooperativeKernelMultiDevice);
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    if (launches == nullptr || count == 0) {
        return real(launches, count, flags);
    }
    return gated(launches->function, launches->hStream, false,
                 [&] { return real(launches, count, flags); });
}

// The launches of CUDA 1 to 3, which drivers still offer. The first two go to the default stream.
CX_EXPORT CUresult CUDAAPI cuLaunch(CUfunction f) {
    const auto real = CX_REAL(cuLaunch);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : gated(f, nullptr, false, [&] { return real(f); });
}

CX_EXPORT CUresult CUDAAPI cuLaunchGrid(CUfunction f, int width, int height) {
    const auto real = CX_REAL(cuLaunchGrid);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : gated(f, nullptr, false, [&] { return real(f, width, height); });
}

CX_EXPORT CUresult CUDAAPI cuLaunchGridAsync(CUfunction f, int width, int height, CUstream stream) {
    const auto real = CX_REAL(cuLaunchGridAsync);
    return real == nullptr
               ? CUDA_ERROR_NOT_FOUND
               : gated(f, stream, false, [&] { return real(f, width, height, stream); });
}

CX_EXPORT CUresult CUDAAPI cuGraphLaunch(CUgraphExec graph, CUstream stream) {
    return route(real_driver_table.cuGraphLaunch, &graph_launch<&RealDriver::cuGraphLaunch, false>)(
        graph, stream);
}

CX_EXPORT CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec graph, CUstream stream) {
    return route(real_driver_table.cuGraphLaunch_ptsz,
                 &graph_launch<&RealDriver::cuGraphLaunch_ptsz, true>)(graph, stream);
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

// ----------------------------------------------------------------------------------------------
// contexts

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxRetain);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(context, device);
    if (result == CUDA_SUCCESS) {
        crossover::context_retained(static_cast<std::uint32_t>(device), number_of(*context));
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxRelease);
    crossover::context_released(static_cast<std::uint32_t>(device));
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(device);
}

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxRelease_v2(CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxRelease_v2);
    crossover::context_released(static_cast<std::uint32_t>(device));
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(device);
}

CX_EXPORT CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice device) {
    const auto real = CX_REAL(cuDevicePrimaryCtxReset);
    crossover::device_contexts_lost(static_cast<std::uint32_t>(device));
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(device);
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
// modules

CX_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module,
                                               const char* name) {
    const auto real = CX_REAL(cuModuleGetFunction);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(function, module, name);
    if (result == CUDA_SUCCESS) {
        crossover::function_named(reinterpret_cast<std::uintptr_t>(*function), name);
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library,
                                              const char* name) {
    const auto real = CX_REAL(cuLibraryGetKernel);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(kernel, library, name);
    if (result == CUDA_SUCCESS) {
        crossover::function_named(reinterpret_cast<std::uintptr_t>(*kernel), name);
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    const auto real = CX_REAL(cuKernelGetFunction);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(function, kernel);
    if (result == CUDA_SUCCESS) {
        crossover::function_same(reinterpret_cast<std::uintptr_t>(*function),
                                 reinterpret_cast<std::uintptr_t>(kernel));
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module) {
    crossover::functions_lost();
    const auto real = CX_REAL(cuModuleUnload);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(module);
}

CX_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
    crossover::functions_lost();
    const auto real = CX_REAL(cuLibraryUnload);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(library);
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
