// SPDX-License-Identifier: Apache-2.0
// A tool that is preloaded too and wraps the runtime's launch: adds 100 to what the next one
// returns. Finds that by RTLD_NEXT, or, where the runtime is not in the global scope, by a handle.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

extern "C" [[gnu::visibility("default")]] cudaError_t CUDARTAPI cudaLaunchKernel(
    const void* f, dim3 grid, dim3 block, void** arguments, size_t shared, cudaStream_t stream) {
    void* next = dlsym(RTLD_NEXT, "cudaLaunchKernel");
    if (next == nullptr) {
        next = dlsym(dlopen("libcudart.so.12", RTLD_NOW | RTLD_NOLOAD), "cudaLaunchKernel");
    }
    if (next == nullptr) {
        return cudaErrorUnknown;
    }
    const auto launch = reinterpret_cast<decltype(&cudaLaunchKernel)>(next);
    return static_cast<cudaError_t>(launch(f, grid, block, arguments, shared, stream) + 100);
}
