// SPDX-License-Identifier: Apache-2.0
// The runtime wrappers. They gate here, before the runtime takes any lock of its own; what the
// runtime then asks of the driver passes. Compiled once for each way to a runtime, which
// CX_RUNTIME_WAY names (RuntimeWay). No policy, no logging, no environment.
#include "shim/hooks/hooks_runtime.hpp"

#include <type_traits>

#include "shim/hooks/launch_scope.hpp"

#define CX_EXPORT extern "C" [[gnu::visibility("hidden")]]
#define CX_PASTE(name, way) CX_RUNTIME_NAME(name, way)
#define CX_NAME(name) CX_PASTE(name, CX_RUNTIME_WAY)

using crossover::RealRuntime;

namespace {

// Before the runtime's first call there is no context and nothing to gate: the driver's entry sees
// it then.
bool too_early() noexcept {
    return crossover::attention() && crossover::current_context() == nullptr;
}

bool taken(cudaError_t result) noexcept { return result == cudaSuccess; }

template <class Real>
cudaError_t gated(cudaStream_t stream, bool per_thread, Real&& real) noexcept {
    if (too_early()) {
        return real();
    }
    return crossover::launch(0, {reinterpret_cast<std::uintptr_t>(stream), per_thread}, real,
                             &taken);
}

// The same as launch_scope.hpp's, for a function of the runtime of the wrapper's caller: to the
// real one if the launch passes and the caller is known, else to `followed`, which finds the caller
// in the thread's state.
template <class Function>
[[gnu::always_inline]] inline Function route(Function RealRuntime::*row,
                                             std::type_identity_t<Function> followed,
                                             const void* caller) noexcept {
    const RealRuntime* runtime =
        crossover::attention()
            ? nullptr
            : crossover::known_runtime(static_cast<crossover::RuntimeWay>(CX_RUNTIME_WAY), caller);
    if (runtime != nullptr && runtime->*row != nullptr) [[likely]] {
        return runtime->*row;
    }
    crossover::thread_state().caller = caller;
    return followed;
}
#define CX_CALLER __builtin_return_address(0)

// The function of the runtime of whoever called the wrapper that has just come here by route().
template <class Function>
Function of_caller(Function RealRuntime::*row) noexcept {
    const RealRuntime* runtime = crossover::real_runtime(
        static_cast<crossover::RuntimeWay>(CX_RUNTIME_WAY), crossover::thread_state().caller);
    return runtime == nullptr ? nullptr : runtime->*row;
}

// `Kernel` is a host function's address or a cudaKernel_t.
template <auto kRow, bool kPerThread, class Kernel>
[[gnu::noinline]] cudaError_t launch_kernel(Kernel kernel, dim3 grid, dim3 block, void** arguments,
                                            size_t shared, cudaStream_t stream) noexcept {
    const auto real = of_caller(kRow);
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    return gated(stream, kPerThread,
                 [&] { return real(kernel, grid, block, arguments, shared, stream); });
}

template <auto kRow, bool kPerThread>
[[gnu::noinline]] cudaError_t launch_kernel_ex(const cudaLaunchConfig_t* config,
                                               const void* function, void** arguments) noexcept {
    const auto real = of_caller(kRow);
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    if (config == nullptr) {
        return real(config, function, arguments);
    }
    return gated(config->stream, kPerThread, [&] { return real(config, function, arguments); });
}

template <auto kRow, bool kPerThread>
[[gnu::noinline]] cudaError_t graph_launch(cudaGraphExec_t graph, cudaStream_t stream) noexcept {
    const auto real = of_caller(kRow);
    if (real == nullptr) {
        return cudaErrorSharedObjectSymbolNotFound;
    }
    const auto call = [&] { return real(graph, stream); };
    if (too_early()) {
        return call();
    }
    // The runtime's handle is the driver's.
    return crossover::launch_graph(reinterpret_cast<std::uintptr_t>(graph),
                                   {reinterpret_cast<std::uintptr_t>(stream), kPerThread}, call,
                                   &taken);
}

}  // namespace

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchKernel)(const void* function, dim3 grid,
                                                          dim3 block, void** arguments,
                                                          size_t shared, cudaStream_t stream) {
    return route(&RealRuntime::cudaLaunchKernel,
                 &launch_kernel<&RealRuntime::cudaLaunchKernel, false, const void*>,
                 CX_CALLER)(function, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchKernel_ptsz)(const void* function, dim3 grid,
                                                               dim3 block, void** arguments,
                                                               size_t shared, cudaStream_t stream) {
    return route(&RealRuntime::cudaLaunchKernel_ptsz,
                 &launch_kernel<&RealRuntime::cudaLaunchKernel_ptsz, true, const void*>,
                 CX_CALLER)(function, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(__cudaLaunchKernel)(cudaKernel_t kernel, dim3 grid,
                                                            dim3 block, void** arguments,
                                                            size_t shared, cudaStream_t stream) {
    return route(&RealRuntime::__cudaLaunchKernel,
                 &launch_kernel<&RealRuntime::__cudaLaunchKernel, false, cudaKernel_t>,
                 CX_CALLER)(kernel, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(__cudaLaunchKernel_ptsz)(cudaKernel_t kernel, dim3 grid,
                                                                 dim3 block, void** arguments,
                                                                 size_t shared,
                                                                 cudaStream_t stream) {
    return route(&RealRuntime::__cudaLaunchKernel_ptsz,
                 &launch_kernel<&RealRuntime::__cudaLaunchKernel_ptsz, true, cudaKernel_t>,
                 CX_CALLER)(kernel, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchKernelExC)(const cudaLaunchConfig_t* config,
                                                             const void* function,
                                                             void** arguments) {
    return route(&RealRuntime::cudaLaunchKernelExC,
                 &launch_kernel_ex<&RealRuntime::cudaLaunchKernelExC, false>,
                 CX_CALLER)(config, function, arguments);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchKernelExC_ptsz)(const cudaLaunchConfig_t* config,
                                                                  const void* function,
                                                                  void** arguments) {
    return route(&RealRuntime::cudaLaunchKernelExC_ptsz,
                 &launch_kernel_ex<&RealRuntime::cudaLaunchKernelExC_ptsz, true>,
                 CX_CALLER)(config, function, arguments);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchCooperativeKernel)(const void* function,
                                                                     dim3 grid, dim3 block,
                                                                     void** arguments,
                                                                     size_t shared,
                                                                     cudaStream_t stream) {
    return route(&RealRuntime::cudaLaunchCooperativeKernel,
                 &launch_kernel<&RealRuntime::cudaLaunchCooperativeKernel, false, const void*>,
                 CX_CALLER)(function, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaLaunchCooperativeKernel_ptsz)(const void* function,
                                                                          dim3 grid, dim3 block,
                                                                          void** arguments,
                                                                          size_t shared,
                                                                          cudaStream_t stream) {
    return route(&RealRuntime::cudaLaunchCooperativeKernel_ptsz,
                 &launch_kernel<&RealRuntime::cudaLaunchCooperativeKernel_ptsz, true, const void*>,
                 CX_CALLER)(function, grid, block, arguments, shared, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaGraphLaunch)(cudaGraphExec_t graph,
                                                         cudaStream_t stream) {
    return route(&RealRuntime::cudaGraphLaunch, &graph_launch<&RealRuntime::cudaGraphLaunch, false>,
                 CX_CALLER)(graph, stream);
}

CX_EXPORT cudaError_t CUDARTAPI CX_NAME(cudaGraphLaunch_ptsz)(cudaGraphExec_t graph,
                                                              cudaStream_t stream) {
    return route(&RealRuntime::cudaGraphLaunch_ptsz,
                 &graph_launch<&RealRuntime::cudaGraphLaunch_ptsz, true>, CX_CALLER)(graph, stream);
}

// The linked ways are exported under the version that real runtimes give their symbols: the loader
// then binds each reference to the wrapper of its release. References without a version, and those
// alone, are bound to the wrapper of our own version: a definition without one would also satisfy
// the others.
#if CX_RUNTIME_WAY == 0
#define CX_VERSION "@@CROSSOVER"
#elif CX_RUNTIME_WAY == 11
#define CX_VERSION "@libcudart.so.11.0"
#elif CX_RUNTIME_WAY == 12
#define CX_VERSION "@libcudart.so.12"
#elif CX_RUNTIME_WAY == 13
#define CX_VERSION "@libcudart.so.13"
#endif
#ifdef CX_VERSION
#define CX_TEXT(text) #text
#define CX_TEXT_OF(text) CX_TEXT(text)
#define CX_EXPORTED_PASTE(name, way) crossover_exported_##way##_##name
#define CX_EXPORTED(name, way) CX_EXPORTED_PASTE(name, way)
extern "C" {
#define CX_RUNTIME(name, prototype)                                                         \
    [[gnu::visibility("default"),                                                           \
      gnu::alias(CX_TEXT_OF(                                                                \
          CX_NAME(name)))]] extern decltype(::prototype) CX_EXPORTED(name, CX_RUNTIME_WAY); \
    asm(".symver " CX_TEXT_OF(CX_EXPORTED(name, CX_RUNTIME_WAY)) ", " #name CX_VERSION      \
                                                                 ", "                       \
                                                                 "remove");
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
}
#endif
