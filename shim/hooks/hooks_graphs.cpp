// SPDX-License-Identifier: Apache-2.0
// The exported driver wrappers of captures and graphs: each tells the process's state what became
// of which handle, calls the real function, and returns its result untouched. No policy, no
// logging. Launches of graphs stand with the other launches.
#include "shim/gate/process.hpp"
#include "shim/hooks/hooks_driver.hpp"

using crossover::RealDriver;
using crossover::StreamHandle;

namespace {

StreamHandle handle_of(CUstream stream, bool per_thread) noexcept {
    return {reinterpret_cast<std::uintptr_t>(stream), per_thread};
}

template <class Handle>
std::uintptr_t number_of(Handle handle) noexcept {
    return reinterpret_cast<std::uintptr_t>(handle);
}

// The real function of the table, or nullptr while the driver is not there.
#define CX_REAL(name) crossover::real_function(&RealDriver::name)

// `Real` is the driver's function with all arguments but the stream bound.
template <class Real>
CUresult begin_capture(CUstream stream, bool per_thread, bool into_graph, Real&& real) noexcept {
    const crossover::NothingRecorded no_record;
    const CUresult result = real();
    if (result == CUDA_SUCCESS) {
        crossover::capture_began(handle_of(stream, per_thread), into_graph);
    }
    return result;
}

CUresult end_capture(decltype(&cuStreamEndCapture) real, bool per_thread, CUstream stream,
                     CUgraph* graph) noexcept {
    if (real == nullptr) {
        return CUDA_ERROR_NOT_FOUND;
    }
    const StreamHandle handle = handle_of(stream, per_thread);
    const std::uint64_t capture = crossover::capture_ending(handle);
    const CUresult result = real(stream, graph);
    crossover::capture_ended(handle, capture,
                             result == CUDA_SUCCESS && graph != nullptr ? number_of(*graph) : 0);
    return result;
}

// The real instantiation has answered `result`.
CUresult instantiated(CUresult result, CUgraph graph, const CUgraphExec* executable) noexcept {
    if (result == CUDA_SUCCESS && executable != nullptr) {
        crossover::graph_instantiated(number_of(graph), number_of(*executable));
    }
    return result;
}

}  // namespace

// -----------------------------------------------------------------------------------------------
// capture

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture(CUstream stream) {
    const auto real = CX_REAL(cuStreamBeginCapture);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : begin_capture(stream, false, false, [&] { return real(stream); });
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream stream) {
    const auto real = CX_REAL(cuStreamBeginCapture_ptsz);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : begin_capture(stream, true, false, [&] { return real(stream); });
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream stream, CUstreamCaptureMode mode) {
    const auto real = CX_REAL(cuStreamBeginCapture_v2);
    return real == nullptr
               ? CUDA_ERROR_NOT_FOUND
               : begin_capture(stream, false, false, [&] { return real(stream, mode); });
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream stream, CUstreamCaptureMode mode) {
    const auto real = CX_REAL(cuStreamBeginCapture_v2_ptsz);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : begin_capture(stream, true, false, [&] { return real(stream, mode); });
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph(CUstream stream, CUgraph graph,
                                                       const CUgraphNode* dependencies,
                                                       const CUgraphEdgeData* edges, size_t count,
                                                       CUstreamCaptureMode mode) {
    const auto real = CX_REAL(cuStreamBeginCaptureToGraph);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : begin_capture(stream, false, true, [&] {
        return real(stream, graph, dependencies, edges, count, mode);
    });
}

CX_EXPORT CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream stream, CUgraph graph,
                                                            const CUgraphNode* dependencies,
                                                            const CUgraphEdgeData* edges,
                                                            size_t count,
                                                            CUstreamCaptureMode mode) {
    const auto real = CX_REAL(cuStreamBeginCaptureToGraph_ptsz);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : begin_capture(stream, true, true, [&] {
        return real(stream, graph, dependencies, edges, count, mode);
    });
}

CX_EXPORT CUresult CUDAAPI cuStreamEndCapture(CUstream stream, CUgraph* graph) {
    return end_capture(CX_REAL(cuStreamEndCapture), false, stream, graph);
}

CX_EXPORT CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream stream, CUgraph* graph) {
    return end_capture(CX_REAL(cuStreamEndCapture_ptsz), true, stream, graph);
}

// -----------------------------------------------------------------------------------------------
// graphs

CX_EXPORT CUresult CUDAAPI cuGraphClone(CUgraph* clone, CUgraph graph) {
    const auto real = CX_REAL(cuGraphClone);
    const CUresult result = real == nullptr ? CUDA_ERROR_NOT_FOUND : real(clone, graph);
    if (result == CUDA_SUCCESS && clone != nullptr) {
        crossover::graph_copied(number_of(graph), number_of(*clone));
    }
    return result;
}

CX_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* executable, CUgraph graph,
                                              CUgraphNode* error_node, char* log,
                                              size_t log_bytes) {
    const auto real = CX_REAL(cuGraphInstantiate);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : instantiated(real(executable, graph, error_node, log, log_bytes),
                                          graph, executable);
}

CX_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* executable, CUgraph graph,
                                                 CUgraphNode* error_node, char* log,
                                                 size_t log_bytes) {
    const auto real = CX_REAL(cuGraphInstantiate_v2);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : instantiated(real(executable, graph, error_node, log, log_bytes),
                                          graph, executable);
}

CX_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* executable, CUgraph graph,
                                                       unsigned long long flags) {
    const auto real = CX_REAL(cuGraphInstantiateWithFlags);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : instantiated(real(executable, graph, flags), graph, executable);
}

CX_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams(CUgraphExec* executable, CUgraph graph,
                                                        CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    const auto real = CX_REAL(cuGraphInstantiateWithParams);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : instantiated(real(executable, graph, parameters), graph, executable);
}

CX_EXPORT CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(
    CUgraphExec* executable, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters) {
    const auto real = CX_REAL(cuGraphInstantiateWithParams_ptsz);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND
                           : instantiated(real(executable, graph, parameters), graph, executable);
}

CX_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
    crossover::graph_destroyed(number_of(graph));
    const auto real = CX_REAL(cuGraphDestroy);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(graph);
}

CX_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec executable) {
    crossover::executable_destroyed(number_of(executable));
    const auto real = CX_REAL(cuGraphExecDestroy);
    return real == nullptr ? CUDA_ERROR_NOT_FOUND : real(executable);
}
