// SPDX-License-Identifier: Apache-2.0
// What every file of the virtual GPU's CUDA runtime shares: the driver's functions as this copy of
// the runtime looked them up, the per-thread error, and the entry sequence of a call. No exported
// function here.
#pragma once

#include <cuda.h>
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

namespace simgpu::cudart {

// A driver function that may be missing from an older driver; calling a missing one gives
// CUDA_ERROR_NOT_SUPPORTED.
template <typename Pointer>
class DriverFunction;

template <typename... Args>
class DriverFunction<CUresult (*)(Args...)> {
  public:
    CUresult operator()(Args... args) const {
        return pointer_ ? pointer_(args...) : CUDA_ERROR_NOT_SUPPORTED;
    }
    void set(void* pointer) { pointer_ = reinterpret_cast<CUresult (*)(Args...)>(pointer); }

  private:
    CUresult (*pointer_)(Args...) = nullptr;
};

struct Driver {
#define SIMGPU_DRIVER_FUNCTION(name, version) DriverFunction<PFN_##name##_v##version> name;
#include "driver_functions.def"
#undef SIMGPU_DRIVER_FUNCTION
};

using GetProcAddress = PFN_cuGetProcAddress_v12000;

// The driver as seen with the legacy default stream, and with the per-thread one (names ending in
// _ptsz and _ptds). Loaded at the first call of any thread; valid even where loading failed (every
// call fails then).
const Driver& legacy_driver();
const Driver& per_thread_driver();
// The driver's own look-up function, as the driver gave it; null where loading failed.
GetProcAddress get_proc_address();
// cudaSuccess once the driver is loaded and initialised; else why not, the same each time.
cudaError_t initialise();

// Both enumerations number their common errors alike.
inline cudaError_t to_error(CUresult result) { return static_cast<cudaError_t>(result); }

// Keeps a failure as the calling thread's last error and returns it.
cudaError_t remember(cudaError_t error);
cudaError_t last_error(bool clear);

// Makes sure that the calling thread has a context: its own, else the primary one of its current
// device.
cudaError_t ensure_context();
// Makes `device` the calling thread's, retaining its primary context. Needs initialise() ==
// cudaSuccess.
cudaError_t select_device(int device);
// Ends the primary context of `device`; handles of it are invalid afterwards.
cudaError_t reset_device(int device);
// Device of the calling thread's current context, else the one it selected (0 at first).
cudaError_t current_device(int* device);

// Runs a call that needs no context / a context; `call` returns cudaError_t.
template <typename Call>
cudaError_t enter_without_context(Call call) {
    const cudaError_t ready = initialise();
    return remember(ready != cudaSuccess ? ready : call(legacy_driver()));
}
template <typename Call>
cudaError_t enter(Call call) {
    cudaError_t ready = initialise();
    if (ready == cudaSuccess) {
        ready = ensure_context();
    }
    return remember(ready != cudaSuccess ? ready : call(legacy_driver()));
}

// Finds the kernel behind what a program passes as `func`: the address of a host stub that was
// registered, or a kernel handle. cudaErrorInvalidDeviceFunction when it is neither.
cudaError_t find_kernel(const void* func, CUkernel* kernel);
// Makes a handle that the driver gave out (cudaLibraryGetKernel) acceptable to find_kernel.
void know_kernel(CUkernel kernel);

inline CUdeviceptr device_pointer(const void* pointer) {
    return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace simgpu::cudart

#define SIMGPU_STRIP(...) __VA_ARGS__
// Defines a stream function and its twin for the per-thread default stream; the body follows and
// uses `driver`.
#define SIMGPU_STREAM_FUNCTION(name, suffix, parameters, arguments)                              \
    static cudaError_t name##_on(const simgpu::cudart::Driver& driver, SIMGPU_STRIP parameters); \
    extern "C" cudaError_t name parameters {                                                     \
        return simgpu::cudart::enter([&](const simgpu::cudart::Driver& driver) {                 \
            return name##_on(driver, SIMGPU_STRIP arguments);                                    \
        });                                                                                      \
    }                                                                                            \
    extern "C" cudaError_t name##suffix parameters {                                             \
        return simgpu::cudart::enter([&](const simgpu::cudart::Driver&) {                        \
            return name##_on(simgpu::cudart::per_thread_driver(), SIMGPU_STRIP arguments);       \
        });                                                                                      \
    }                                                                                            \
    static cudaError_t name##_on([[maybe_unused]] const simgpu::cudart::Driver& driver,          \
                                 SIMGPU_STRIP parameters)
