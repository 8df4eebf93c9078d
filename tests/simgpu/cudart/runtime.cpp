// SPDX-License-Identifier: Apache-2.0
// Loading of the driver, the per-thread error and the primary contexts. Looks the driver up in the
// one way the vendor's runtime does, since that is what an interposer has to cope with. No exported
// function here.
#include "runtime.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <mutex>
#include <vector>

namespace simgpu::cudart {
namespace {

// What an entry is asked for with the per-thread flag: no twin is older than this release.
constexpr int kFirstPerThreadVersion = 7000;

struct Loaded {
    cudaError_t status = cudaErrorInsufficientDriver;
    GetProcAddress get_proc_address = nullptr;
    Driver legacy;
    Driver per_thread;
    std::mutex mutex;
    std::vector<CUcontext> primary;  // by device; null: not retained
};

void fill(Driver& driver, GetProcAddress find, bool per_thread) {
    const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM : 0;
    CUdriverProcAddressQueryResult found{};
    void* pointer = nullptr;
#define SIMGPU_DRIVER_FUNCTION(name, version)                                                   \
    pointer = nullptr;                                                                          \
    if (find(#name, &pointer, per_thread ? std::max(version, kFirstPerThreadVersion) : version, \
             flags, &found) == CUDA_SUCCESS) {                                                  \
        driver.name.set(pointer);                                                               \
    }
#include "driver_functions.def"
#undef SIMGPU_DRIVER_FUNCTION
}

void load(Loaded& loaded) {
    // The handle stays open for the life of the process: pointers into the driver are handed out.
    void* const library = dlopen("libcuda.so.1", RTLD_NOW);
    if (!library) {
        return;
    }
    const auto first = reinterpret_cast<GetProcAddress>(dlsym(library, "cuGetProcAddress_v2"));
    if (!first) {
        return;
    }
    void* pointer = nullptr;
    CUdriverProcAddressQueryResult found{};
    if (first("cuGetProcAddress", &pointer, 11030, 0, &found) != CUDA_SUCCESS || !pointer) {
        return;
    }
    pointer = nullptr;
    if (first("cuGetProcAddress", &pointer, 12000, 0, &found) != CUDA_SUCCESS || !pointer) {
        return;
    }
    loaded.get_proc_address = reinterpret_cast<GetProcAddress>(pointer);
    fill(loaded.legacy, loaded.get_proc_address, false);
    fill(loaded.per_thread, loaded.get_proc_address, true);
    int version = 0;
    if (loaded.legacy.cuDriverGetVersion(&version) != CUDA_SUCCESS) {
        return;
    }
    loaded.status = to_error(loaded.legacy.cuInit(0));
    int count = 0;
    if (loaded.status == cudaSuccess) {
        loaded.status = to_error(loaded.legacy.cuDeviceGetCount(&count));
    }
    if (loaded.status == cudaSuccess && count == 0) {
        loaded.status = cudaErrorNoDevice;
    }
    loaded.primary.assign(static_cast<std::size_t>(count), nullptr);
}

Loaded& loaded() {
    // Never destroyed: programs call the runtime from their own exit handlers.
    static Loaded* const instance = [] {
        auto* fresh = new Loaded;
        load(*fresh);
        return fresh;
    }();
    return *instance;
}

thread_local cudaError_t thread_error = cudaSuccess;
thread_local int thread_device = 0;

}  // namespace

const Driver& legacy_driver() { return loaded().legacy; }
const Driver& per_thread_driver() { return loaded().per_thread; }
GetProcAddress get_proc_address() { return loaded().get_proc_address; }
cudaError_t initialise() { return loaded().status; }

cudaError_t remember(cudaError_t error) {
    if (error != cudaSuccess) {
        thread_error = error;
    }
    return error;
}

cudaError_t last_error(bool clear) {
    const cudaError_t error = thread_error;
    if (clear) {
        thread_error = cudaSuccess;
    }
    return error;
}

cudaError_t select_device(int device) {
    Loaded& state = loaded();
    if (device < 0 || static_cast<std::size_t>(device) >= state.primary.size()) {
        return cudaErrorInvalidDevice;
    }
    CUcontext context = nullptr;
    {
        const std::lock_guard lock(state.mutex);
        CUcontext& slot = state.primary[static_cast<std::size_t>(device)];
        if (!slot) {
            CUdevice handle = 0;
            CUresult result = state.legacy.cuDeviceGet(&handle, device);
            if (result == CUDA_SUCCESS) {
                result = state.legacy.cuDevicePrimaryCtxRetain(&slot, handle);
            }
            if (result != CUDA_SUCCESS) {
                return to_error(result);
            }
        }
        context = slot;
    }
    const CUresult result = state.legacy.cuCtxSetCurrent(context);
    if (result == CUDA_SUCCESS) {
        thread_device = device;
    }
    return to_error(result);
}

cudaError_t reset_device(int device) {
    Loaded& state = loaded();
    const std::lock_guard lock(state.mutex);
    state.primary.at(static_cast<std::size_t>(device)) = nullptr;
    CUresult result = state.legacy.cuDevicePrimaryCtxReset(device);
    if (result == CUDA_SUCCESS) {
        result = state.legacy.cuCtxSetCurrent(nullptr);
    }
    return to_error(result);
}

cudaError_t ensure_context() {
    CUcontext context = nullptr;
    const CUresult result = loaded().legacy.cuCtxGetCurrent(&context);
    if (result != CUDA_SUCCESS) {
        return to_error(result);
    }
    return context ? cudaSuccess : select_device(thread_device);
}

cudaError_t current_device(int* device) {
    const Driver& driver = legacy_driver();
    CUcontext context = nullptr;
    CUresult result = driver.cuCtxGetCurrent(&context);
    *device = thread_device;
    if (result == CUDA_SUCCESS && context) {
        result = driver.cuCtxGetDevice(device);
    }
    return to_error(result);
}

}  // namespace simgpu::cudart
