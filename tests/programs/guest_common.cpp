// SPDX-License-Identifier: Apache-2.0
// See guest_cuda.hpp. What guest programs do with the driver; no ways of living or dying here.
#include "guest_cuda.hpp"

namespace guest {

void need(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        std::printf("%s: error %d\n", what, static_cast<int>(result));
        std::fflush(stdout);
        std::_Exit(1);
    }
}

CUcontext primary(int ordinal) {
    need(cuInit(0), "cuInit");
    CUcontext context = nullptr;
    need(cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
    need(cuCtxSetCurrent(context), "cuCtxSetCurrent");
    return context;
}

CUfunction add_kernel() {
    static const CUfunction function = [] {
        CUlibrary library = nullptr;
        CUkernel kernel = nullptr;
        CUfunction found = nullptr;
        need(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0),
             "cuLibraryLoadData");
        need(cuLibraryGetKernel(&kernel, library, "add"), "cuLibraryGetKernel");
        need(cuKernelGetFunction(&found, kernel), "cuKernelGetFunction");
        return found;
    }();
    return function;
}

CUresult add(CUstream stream, CUdeviceptr at, unsigned cost_us) {
    int value = 1;
    int count = 1;
    void* parameters[] = {&at, &value, &count, &cost_us};
    return cuLaunchKernel(add_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
}

CUdeviceptr number() {
    CUdeviceptr at = 0;
    need(cuMemAlloc(&at, sizeof(int)), "cuMemAlloc");
    need(cuMemsetD32(at, 0, 1), "cuMemsetD32");
    return at;
}

int value_of(CUdeviceptr at) {
    int value = -1;
    need(cuMemcpyDtoH(&value, at, sizeof value), "cuMemcpyDtoH");
    return value;
}

void say(const char* text) {
    std::puts(text);
    std::fflush(stdout);
}

}  // namespace guest
