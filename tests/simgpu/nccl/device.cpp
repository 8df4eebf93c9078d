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

// Through the embedded runtime, so that an interposer on cuGetProcAddress sees it.
template <typename Function>
bool find_public(const char* name, unsigned int version, Function* function) {
    void* pointer = nullptr;
    cudaDriverEntryPointQueryResult found{};
    const cudaError_t error =
        cudaGetDriverEntryPointByVersion(name, &pointer, version, cudaEnableDefault, &found);
    if (error != cudaSuccess || !pointer) {
        warn("%s not found: %s", name, cudaGetErrorString(error));
        return false;
    }
    *function = reinterpret_cast<Function>(pointer);
    return true;
}

const Device* load() {
    static Device loaded;
    PFN_cuLibraryLoadData_v12000 load_data = nullptr;
    if (!find_public("cuLaunchKernelEx", 11060, &loaded.launch_kernel_ex) ||
        !find_public("cuLibraryLoadData", 12000, &load_data) ||
        !find_public("cuLibraryGetKernel", 12000, &loaded.library_get_kernel) ||
        !find_public("cuKernelGetFunction", 12000, &loaded.kernel_get_function)) {
        return nullptr;
    }
    if (load_data(&loaded.kernels, SIMGPU_COLLECTIVE_IMAGE, nullptr, nullptr, 0, nullptr, nullptr,
                  0) != CUDA_SUCCESS) {
        warn("the kernels cannot be loaded");
        return nullptr;
    }
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (!library) {
        warn("libcuda.so.1 is not loaded");
        return nullptr;
    }
    const bool complete = find(library, "simgpuCommInit", &loaded.comm_init) &&
                          find(library, "simgpuCommAbort", &loaded.comm_abort) &&
                          find(library, "simgpuCommDestroy", &loaded.comm_destroy) &&
                          find(library, "simgpuDataDirectory", &loaded.data_directory);
    return complete ? &loaded : nullptr;
}

}  // namespace

const Device* device() {
    static const Device* const instance = load();
    return instance;
}

}  // namespace simgpu::nccl
