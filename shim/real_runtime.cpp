// SPDX-License-Identifier: Apache-2.0
#include "shim/real_runtime.hpp"

#include <atomic>

#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

extern "C" {
cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t, dim3, dim3, void**, size_t,
                                              cudaStream_t);
cudaError_t CUDARTAPI cudaLaunchKernel_ptsz(const void*, dim3, dim3, void**, size_t, cudaStream_t);
cudaError_t CUDARTAPI cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t*, const void*, void**);
cudaError_t CUDARTAPI cudaLaunchCooperativeKernel_ptsz(const void*, dim3, dim3, void**, size_t,
                                                       cudaStream_t);
cudaError_t CUDARTAPI cudaGraphLaunch_ptsz(cudaGraphExec_t, cudaStream_t);
}

namespace crossover {

namespace {

// Newest first; each is a major version's name.
constexpr const char* kSonames[] = {"libcudart.so.13", "libcudart.so.12", "libcudart.so.11.0"};

RealRuntime table;
std::atomic<bool> resolved{false};

template <class Function>
void take(Function& function, const char* soname, const char* name) noexcept {
    function = reinterpret_cast<Function>(find_in_loaded(soname, name));
}

}  // namespace

const RealRuntime* real_runtime() noexcept {
    if (resolved.load(std::memory_order_acquire)) {
        return &table;
    }
    for (const char* soname : kSonames) {
        if (find_in_loaded(soname, "cudaLaunchKernel") == nullptr) {
            continue;
        }
#define CX_RUNTIME(name, prototype) take(table.name, soname, #name);
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
        resolved.store(true, std::memory_order_release);
        return &table;
    }
    return nullptr;
}

void* wrapped_runtime_function(void* real) noexcept {
    const RealRuntime* runtime = real == nullptr ? nullptr : real_runtime();
    if (runtime == nullptr) {
        return real;
    }
#define CX_RUNTIME(name, prototype)                       \
    if (real == reinterpret_cast<void*>(runtime->name)) { \
        return reinterpret_cast<void*>(&::name);          \
    }
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
    return real;
}

}  // namespace crossover
