// SPDX-License-Identifier: Apache-2.0
// The exported runtime wrappers. They gate here, before the runtime takes any lock of its own; what
// the runtime then asks of the driver passes. No policy, no logging, no environment.
#include "shim/hooks/launch_scope.hpp"
#include "shim/real_runtime.hpp"

#define CX_EXPORT extern "C" [[gnu::visibility("default")]]

using crossover::real_runtime;

namespace {

template <class Real>
cudaError_t gated(cudaStream_t stream, bool per_thread, Real&& real) noexcept {
    // Before the runtime's first call there is no context and nothing to gate: the driver's entry
    // sees it then.
    if (crossover::attention() && crossover::current_context() == nullptr) {
        return real();
    }
    return crossover::launch(0, {reinterpret_cast<std::uintptr_t>(stream), per_thread}, real,
                             [](cudaError_t result) { return result == cudaSuccess; });
}

#define CX_REAL(name) (real_runtime() == nullptr ? nullptr : real_runtime()->name)

// `Kernel` is a host function's address or a cudaKernel_t.
template <class Kernel>
cudaError_t launch_kernel(cudaError_t (*real)(Kernel, dim3, dim3, void**, size_t, cudaStream_t),
                          bool per_thread, Kernel kernel, dim3 grid, dim3 block, void** arguments,
                          size_t shared, cudaStream_t stream) noexcept {
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    return gated(stream, per_thread,
                 [&] { return real(kernel, grid, block, arguments, shared, stream); });
}

cudaError_t launch_kernel_ex(decltype(&cudaLaunchKernelExC) real, bool per_thread,
                             const cudaLaunchConfig_t* config, const void* function,
                             void** arguments) noexcept {
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    if (config == nullptr) {
        return real(config, function, arguments);
    }
    return gated(config->stream, per_thread, [&] { return real(config, function, arguments); });
}

cudaError_t graph_launch(decltype(&cudaGraphLaunch) real, bool per_thread, cudaGraphExec_t graph,
                         cudaStream_t stream) noexcept {
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    return gated(stream, per_thread, [&] { return real(graph, stream); });
}

}  // namespace

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchKernel(const void* function, dim3 grid, dim3 block,
                                                 void** arguments, size_t shared,
                                                 cudaStream_t stream) {
    return launch_kernel(CX_REAL(cudaLaunchKernel), false, function, grid, block, arguments, shared,
                         stream);
}

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchKernel_ptsz(const void* function, dim3 grid, dim3 block,
                                                      void** arguments, size_t shared,
                                                      cudaStream_t stream) {
    return launch_kernel(CX_REAL(cudaLaunchKernel_ptsz), true, function, grid, block, arguments,
                         shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI __cudaLaunchKernel(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                   void** arguments, size_t shared,
                                                   cudaStream_t stream) {
    return launch_kernel(CX_REAL(__cudaLaunchKernel), false, kernel, grid, block, arguments, shared,
                         stream);
}

CX_EXPORT cudaError_t CUDARTAPI __cudaLaunchKernel_ptsz(cudaKernel_t kernel, dim3 grid, dim3 block,
                                                        void** arguments, size_t shared,
                                                        cudaStream_t stream) {
    return launch_kernel(CX_REAL(__cudaLaunchKernel_ptsz), true, kernel, grid, block, arguments,
                         shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchKernelExC(const cudaLaunchConfig_t* config,
                                                    const void* function, void** arguments) {
    return launch_kernel_ex(CX_REAL(cudaLaunchKernelExC), false, config, function, arguments);
}

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchKernelExC_ptsz(const cudaLaunchConfig_t* config,
                                                         const void* function, void** arguments) {
    return launch_kernel_ex(CX_REAL(cudaLaunchKernelExC_ptsz), true, config, function, arguments);
}

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchCooperativeKernel(const void* function, dim3 grid,
                                                            dim3 block, void** arguments,
                                                            size_t shared, cudaStream_t stream) {
    return launch_kernel(CX_REAL(cudaLaunchCooperativeKernel), false, function, grid, block,
                         arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI cudaLaunchCooperativeKernel_ptsz(const void* function, dim3 grid,
                                                                 dim3 block, void** arguments,
                                                                 size_t shared,
                                                                 cudaStream_t stream) {
    return launch_kernel(CX_REAL(cudaLaunchCooperativeKernel_ptsz), true, function, grid, block,
                         arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI cudaGraphLaunch(cudaGraphExec_t graph, cudaStream_t stream) {
    return graph_launch(CX_REAL(cudaGraphLaunch), false, graph, stream);
}

CX_EXPORT cudaError_t CUDARTAPI cudaGraphLaunch_ptsz(cudaGraphExec_t graph, cudaStream_t stream) {
    return graph_launch(CX_REAL(cudaGraphLaunch_ptsz), true, graph, stream);
}
