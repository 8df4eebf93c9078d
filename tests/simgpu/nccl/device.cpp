// SPDX-License-Identifier: Apache-2.0
// Finds the driver's functions for libnccl of the virtual GPU. No communicator logic here.
#include "device.hpp"

#include <dlfcn.h>

#include "report.hpp"

namespace simgpu::nccl {
namespace {

template <typename Function>
bool find(void* library, const char* name, Function* function) {
    *function = reinterpret_cast<Function>(dlsym(library, name));
    if (!*function) {
        warn("libcuda.so.1 has no %s: not the virtual GPU's driver", name);
    }
    return *function != nullptr;
}

const Device* load() {
    static Device loaded;
    // Through the embedded runtime, so that an interposer on cuGetProcAddress sees it.
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error = cudaGetDriverEntryPointByVersion("cuLaunchKernelEx", &pointer, 11060,
                                                               cudaEnableDefault, &found);
    if (error != cudaSuccess || !pointer) {
        warn("cuLaunchKernelEx not found: %s", cudaGetErrorString(error));
        return nullptr;
    }
    loaded.launch_kernel_ex = reinterpret_cast<PFN_cuLaunchKernelEx_v11060>(pointer);
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        warn("libcuda.so.1 is not loaded");
        return nullptr;
    }
    const bool complete = find(library, "simgpuCommInit", &loaded.comm_init) &&
                          find(library, "simgpuCommAbort", &loaded.comm_abort) &&
                          find(library, "simgpuCommDestroy", &loaded.comm_destroy) &&
                          find(library, "simgpuDataDirectory", &loaded.data_directory) &&
                          find(library, "simgpuCollectiveFunction", &loaded.collective_function);
    return complete ? &loaded : nullptr;
}

}  // namespace

const Device* device() {
    static const Device* const instance = load();
    return instance;
}

}  // namespace simgpu::nccl
