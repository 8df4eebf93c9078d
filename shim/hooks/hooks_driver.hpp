// SPDX-License-Identifier: Apache-2.0
// Declares every exported driver wrapper, so that their addresses can be taken. Names only.
#pragma once

#include "shim/real_driver.hpp"

#define CX_EXPORT extern "C" [[gnu::visibility("default")]]

extern "C" {
CUresult CUDAAPI cuLaunchKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned,
                                     unsigned, unsigned, CUstream, void**, void**);
CUresult CUDAAPI cuLaunchKernelEx_ptsz(const CUlaunchConfig*, CUfunction, void**, void**);
CUresult CUDAAPI cuLaunchCooperativeKernel_ptsz(CUfunction, unsigned, unsigned, unsigned, unsigned,
                                                unsigned, unsigned, unsigned, CUstream, void**);
CUresult CUDAAPI cuGraphLaunch_ptsz(CUgraphExec, CUstream);
CUresult CUDAAPI cuEventRecord_ptsz(CUevent, CUstream);
CUresult CUDAAPI cuEventRecordWithFlags_ptsz(CUevent, CUstream, unsigned);
CUresult CUDAAPI cuStreamWaitEvent_ptsz(CUstream, CUevent, unsigned);
CUresult CUDAAPI cuStreamBeginCapture_v2_ptsz(CUstream, CUstreamCaptureMode);
CUresult CUDAAPI cuStreamBeginCapture(CUstream);  // without a mode: CUDA 10.0
CUresult CUDAAPI cuStreamBeginCapture_ptsz(CUstream);
CUresult CUDAAPI cuStreamBeginCaptureToGraph_ptsz(CUstream, CUgraph, const CUgraphNode*,
                                                  const CUgraphEdgeData*, size_t,
                                                  CUstreamCaptureMode);
CUresult CUDAAPI cuStreamEndCapture_ptsz(CUstream, CUgraph*);
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec*, CUgraph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS*);
CUresult CUDAAPI cuDevicePrimaryCtxRelease(CUdevice);
CUresult CUDAAPI cuDevicePrimaryCtxReset(CUdevice);
CUresult CUDAAPI cuGetProcAddress(const char*, void**, int, cuuint64_t);
}
