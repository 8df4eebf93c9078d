// SPDX-License-Identifier: Apache-2.0
// The real CUDA runtimes: typed pointers for every row of intercepts_runtime.def. There may be
// several in one process, of several releases, loaded late and RTLD_LOCAL, renamed, or inside the
// library that uses them; each call goes to the one that it would have gone to without us.
#pragma once

#include <cuda_runtime_api.h>

#include <array>
#include <atomic>
#include <cstdint>

#include "shim/callers.hpp"

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

// The wrappers exist once for each way to them. A linked reference with a symbol version is bound
// to the wrapper of that version (hooks_runtime.cpp); kAnyVersion is for references without one.
// What a look-up by handle finds is replaced by the wrapper of that copy of the runtime: copies are
// numbered.
enum RuntimeWay : unsigned {
    kAnyVersion = 0,
    kVersion11 = 11,
    kVersion12 = 12,
    kVersion13 = 13,
    kCopy0 = 100,
    kCopy1,
    kCopy2,
    kCopy3,
};
constexpr unsigned kMaxRuntimeCopies = kCopy3 - kCopy0 + 1;

// Behind real_runtime() and known_runtime(); nothing else touches them.
struct RuntimeCopy {
    std::uintptr_t begin = 0;
    RealRuntime table;
    std::atomic<bool> ready{false};
};
[[gnu::visibility("hidden")]] extern std::array<RuntimeCopy, kMaxRuntimeCopies> runtime_copies;
[[gnu::visibility("hidden")]] extern TablesOfCallers<RealRuntime> runtime_callers;

// The same as real_runtime() where this way and caller came by before, else nullptr. Calls nothing.
inline const RealRuntime* known_runtime(RuntimeWay way, const void* caller) noexcept {
    return way >= kCopy0 ? &runtime_copies[way - kCopy0].table : runtime_callers.known(caller, way);
}

// The functions that code at `caller`, in a call that came this way, would have called without us;
// nullptr where there is no runtime, a row nullptr where that one lacks it. Any thread, no lock.
const RealRuntime* real_runtime(RuntimeWay way, const void* caller) noexcept;

}  // namespace crossover
