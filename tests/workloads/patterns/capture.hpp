// SPDX-License-Identifier: Apache-2.0
// A CUDA graph made as torch.cuda.graph() makes one (torch/cuda/graphs.py,
// ATen/cuda/CUDAGraph.cpp): the device synchronised, a capture of a side stream in mode "global",
// instantiated at its end, launched on the current stream. No training here.
#pragma once

#include <cuda_runtime_api.h>

#include "../dp_device.hpp"

namespace patterns {

class CapturedGraph {
  public:
    CapturedGraph() = default;
    ~CapturedGraph() {
        if (graph_ != nullptr) {
            dp::check(cudaGraphExecDestroy(graph_), "cudaGraphExecDestroy");
        }
    }
    CapturedGraph(const CapturedGraph&) = delete;
    CapturedGraph& operator=(const CapturedGraph&) = delete;

    // `submit` gives the stream what the graph shall hold; other streams may join by events.
    template <typename Submit>
    void capture(cudaStream_t stream, const Submit& submit) {
        dp::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        dp::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal),
                  "cudaStreamBeginCapture");
        submit();
        cudaGraph_t graph = nullptr;
        dp::check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture");
        dp::check(
            cudaGraphInstantiateWithFlags(&graph_, graph, cudaGraphInstantiateFlagAutoFreeOnLaunch),
            "cudaGraphInstantiateWithFlags");
        dp::check(cudaGraphDestroy(graph), "cudaGraphDestroy");
    }
    bool captured() const { return graph_ != nullptr; }
    void launch(cudaStream_t stream) const {
        dp::check(cudaGraphLaunch(graph_, stream), "cudaGraphLaunch");
    }

  private:
    cudaGraphExec_t graph_ = nullptr;
};

// As frameworks do before a capture, so that nothing is set up inside.
inline constexpr int kEagerIterations = 2;

}  // namespace patterns
