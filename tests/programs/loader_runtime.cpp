// SPDX-License-Identifier: Apache-2.0
// A stand-in for one release of the CUDA runtime: every launch returns LOADER_TAG, so that a caller
// sees which of several runtimes it reached. Symbol versions are given by the linker's map.
#include <cuda_runtime_api.h>
#include <dlfcn.h>

#define LOADER_EXPORT extern "C" [[gnu::visibility("default")]]

LOADER_EXPORT cudaError_t CUDARTAPI cudaRuntimeGetVersion(int* version) {
    *version = LOADER_TAG * 1000;
    return cudaSuccess;
}
LOADER_EXPORT cudaError_t CUDARTAPI cudaLaunchKernel(const void*, dim3, dim3, void**, size_t,
                                                     cudaStream_t) {
    return static_cast<cudaError_t>(LOADER_TAG);
}
LOADER_EXPORT cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t, cudaStream_t) {
    return static_cast<cudaError_t>(LOADER_TAG);
}
// What it finds as the driver's launch, in the way in which runtimes look that up.
LOADER_EXPORT void* cudaLoaderDriverLaunch() {
    void* driver = dlopen("libcuda.so.1", RTLD_NOW);
    return driver == nullptr ? nullptr : dlsym(driver, "cuLaunchKernel");
}
