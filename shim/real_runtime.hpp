// SPDX-License-Identifier: Apache-2.0
// The real CUDA runtime: a typed pointer for every row of intercepts_runtime.def. Resolved per call
// until found: the runtime may be loaded long after the first launch, and RTLD_LOCAL.
#pragma once

#include <cuda_runtime_api.h>

// What nvcc 13 compiles <<<>>> to; declared by the compiler's own headers only.
extern "C" cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                    void** arguments, size_t shared,
                                                    cudaStream_t stream);

namespace crossover {

struct RealRuntime {
#define CX_RUNTIME(name, prototype) decltype(&::prototype) name = nullptr;
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
};

// The table of the runtime in the process; nullptr while there is none.
const RealRuntime* real_runtime() noexcept;

}  // namespace crossover
