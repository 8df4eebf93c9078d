// SPDX-License-Identifier: Apache-2.0
// Graphs of the virtual GPU's CUDA runtime: built by hand or by capture, instantiated and launched.
// Captures begin and end in stream.cpp.
#include <cstring>

#include "runtime.hpp"

using namespace simgpu::cudart;

namespace {

static_assert(sizeof(cudaGraphInstantiateParams) == sizeof(CUDA_GRAPH_INSTANTIATE_PARAMS));
static_assert(sizeof(cudaGraphExecUpdateResultInfo) == sizeof(CUgraphExecUpdateResultInfo));
static_assert(sizeof(cudaGraphEdgeData) == sizeof(CUgraphEdgeData));

cudaError_t kernel_parameters(const cudaKernelNodeParams* from, CUDA_KERNEL_NODE_PARAMS* to) {
    if (!from) {
        return cudaErrorInvalidValue;
    }
    *to = CUDA_KERNEL_NODE_PARAMS{};
    to->gridDimX = from->gridDim.x;
    to->gridDimY = from->gridDim.y;
    to->gridDimZ = from->gridDim.z;
    to->blockDimX = from->blockDim.x;
    to->blockDimY = from->blockDim.y;
    to->blockDimZ = from->blockDim.z;
    to->sharedMemBytes = from->sharedMemBytes;
    to->kernelParams = from->kernelParams;
    to->extra = from->extra;
    return find_kernel(from->func, &to->kern);
}

CUcontext current_context(const Driver& driver) {
    CUcontext context = nullptr;
    driver.cuCtxGetCurrent(&context);
    return context;
}

}  // namespace

extern "C" cudaError_t cudaGraphCreate(cudaGraph_t* graph, unsigned int flags) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuGraphCreate(graph, flags)); });
}

extern "C" cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
    return enter([&](const Driver& driver) { return to_error(driver.cuGraphDestroy(graph)); });
}

extern "C" cudaError_t cudaGraphClone(cudaGraph_t* clone, cudaGraph_t graph) {
    return enter([&](const Driver& driver) { return to_error(driver.cuGraphClone(clone, graph)); });
}

extern "C" cudaError_t cudaGraphAddKernelNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, size_t count,
                                              const cudaKernelNodeParams* parameters) {
    return enter([&](const Driver& driver) {
        CUDA_KERNEL_NODE_PARAMS converted{};
        const cudaError_t error = kernel_parameters(parameters, &converted);
        return error != cudaSuccess ? error
                                    : to_error(driver.cuGraphAddKernelNode(
                                          node, graph, dependencies, count, &converted));
    });
}

extern "C" cudaError_t cudaGraphKernelNodeSetParams(cudaGraphNode_t node,
                                                    const cudaKernelNodeParams* parameters) {
    return enter([&](const Driver& driver) {
        CUDA_KERNEL_NODE_PARAMS converted{};
        const cudaError_t error = kernel_parameters(parameters, &converted);
        return error != cudaSuccess ? error
                                    : to_error(driver.cuGraphKernelNodeSetParams(node, &converted));
    });
}

extern "C" cudaError_t cudaGraphExecKernelNodeSetParams(cudaGraphExec_t exec, cudaGraphNode_t node,
                                                        const cudaKernelNodeParams* parameters) {
    return enter([&](const Driver& driver) {
        CUDA_KERNEL_NODE_PARAMS converted{};
        const cudaError_t error = kernel_parameters(parameters, &converted);
        return error != cudaSuccess
                   ? error
                   : to_error(driver.cuGraphExecKernelNodeSetParams(exec, node, &converted));
    });
}

extern "C" cudaError_t cudaGraphKernelNodeGetParams(cudaGraphNode_t node,
                                                    cudaKernelNodeParams* parameters) {
    return enter([&](const Driver& driver) {
        if (!parameters) {
            return cudaErrorInvalidValue;
        }
        CUDA_KERNEL_NODE_PARAMS found{};
        const CUresult result = driver.cuGraphKernelNodeGetParams(node, &found);
        if (result != CUDA_SUCCESS) {
            return to_error(result);
        }
        if (found.kern) {
            know_kernel(found.kern);
            parameters->func = found.kern;
        } else {
            parameters->func = reinterpret_cast<void*>(found.func);
        }
        parameters->gridDim = dim3(found.gridDimX, found.gridDimY, found.gridDimZ);
        parameters->blockDim = dim3(found.blockDimX, found.blockDimY, found.blockDimZ);
        parameters->sharedMemBytes = found.sharedMemBytes;
        parameters->kernelParams = found.kernelParams;
        parameters->extra = found.extra;
        return cudaSuccess;
    });
}

extern "C" cudaError_t cudaGraphAddEmptyNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                             const cudaGraphNode_t* dependencies, size_t count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphAddEmptyNode(node, graph, dependencies, count));
    });
}

extern "C" cudaError_t cudaGraphAddHostNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                            const cudaGraphNode_t* dependencies, size_t count,
                                            const cudaHostNodeParams* parameters) {
    return enter([&](const Driver& driver) {
        if (!parameters) {
            return cudaErrorInvalidValue;
        }
        CUDA_HOST_NODE_PARAMS converted{};
        converted.fn = parameters->fn;
        converted.userData = parameters->userData;
        return to_error(driver.cuGraphAddHostNode(node, graph, dependencies, count, &converted));
    });
}

extern "C" cudaError_t cudaGraphAddMemsetNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                              const cudaGraphNode_t* dependencies, size_t count,
                                              const cudaMemsetParams* parameters) {
    return enter([&](const Driver& driver) {
        if (!parameters) {
            return cudaErrorInvalidValue;
        }
        CUDA_MEMSET_NODE_PARAMS converted{};
        converted.dst = device_pointer(parameters->dst);
        converted.pitch = parameters->pitch;
        converted.value = parameters->value;
        converted.elementSize = parameters->elementSize;
        converted.width = parameters->width;
        converted.height = parameters->height;
        return to_error(driver.cuGraphAddMemsetNode(node, graph, dependencies, count, &converted,
                                                    current_context(driver)));
    });
}

extern "C" cudaError_t cudaGraphAddMemcpyNode1D(cudaGraphNode_t* node, cudaGraph_t graph,
                                                const cudaGraphNode_t* dependencies, size_t count,
                                                void* target, const void* source, size_t bytes,
                                                cudaMemcpyKind kind) {
    return enter([&](const Driver& driver) {
        if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault) {
            return cudaErrorInvalidMemcpyDirection;
        }
        CUDA_MEMCPY3D converted{};
        converted.srcMemoryType = CU_MEMORYTYPE_UNIFIED;
        converted.srcDevice = device_pointer(source);
        converted.srcPitch = bytes;
        converted.srcHeight = 1;
        converted.dstMemoryType = CU_MEMORYTYPE_UNIFIED;
        converted.dstDevice = device_pointer(target);
        converted.dstPitch = bytes;
        converted.dstHeight = 1;
        converted.WidthInBytes = bytes;
        converted.Height = 1;
        converted.Depth = 1;
        return to_error(driver.cuGraphAddMemcpyNode(node, graph, dependencies, count, &converted,
                                                    current_context(driver)));
    });
}

extern "C" cudaError_t cudaGraphAddChildGraphNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                  const cudaGraphNode_t* dependencies, size_t count,
                                                  cudaGraph_t child) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphAddChildGraphNode(node, graph, dependencies, count, child));
    });
}

extern "C" cudaError_t cudaGraphAddEventRecordNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                   const cudaGraphNode_t* dependencies,
                                                   size_t count, cudaEvent_t event) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphAddEventRecordNode(node, graph, dependencies, count, event));
    });
}

extern "C" cudaError_t cudaGraphAddEventWaitNode(cudaGraphNode_t* node, cudaGraph_t graph,
                                                 const cudaGraphNode_t* dependencies, size_t count,
                                                 cudaEvent_t event) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphAddEventWaitNode(node, graph, dependencies, count, event));
    });
}

extern "C" cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphGetNodes(graph, nodes, count));
    });
}

extern "C" cudaError_t cudaGraphGetRootNodes(cudaGraph_t graph, cudaGraphNode_t* nodes,
                                             size_t* count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphGetRootNodes(graph, nodes, count));
    });
}

extern "C" cudaError_t cudaGraphNodeGetType(cudaGraphNode_t node, cudaGraphNodeType* type) {
    return enter([&](const Driver& driver) {
        if (!type) {
            return cudaErrorInvalidValue;
        }
        CUgraphNodeType found{};
        const CUresult result = driver.cuGraphNodeGetType(node, &found);
        *type = static_cast<cudaGraphNodeType>(found);
        return to_error(result);
    });
}

extern "C" cudaError_t cudaGraphDestroyNode(cudaGraphNode_t node) {
    return enter([&](const Driver& driver) { return to_error(driver.cuGraphDestroyNode(node)); });
}

extern "C" cudaError_t cudaGraphDebugDotPrint(cudaGraph_t graph, const char* path,
                                              unsigned int flags) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphDebugDotPrint(graph, path, flags));
    });
}

extern "C" cudaError_t cudaGraphInstantiateWithFlags(cudaGraphExec_t* exec, cudaGraph_t graph,
                                                     unsigned long long flags) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphInstantiateWithFlags(exec, graph, flags));
    });
}

extern "C" cudaError_t cudaGraphInstantiate(cudaGraphExec_t* exec, cudaGraph_t graph,
                                            unsigned long long flags) {
    return cudaGraphInstantiateWithFlags(exec, graph, flags);
}

SIMGPU_STREAM_FUNCTION(cudaGraphInstantiateWithParams, _ptsz,
                       (cudaGraphExec_t * exec, cudaGraph_t graph,
                        cudaGraphInstantiateParams* parameters),
                       (exec, graph, parameters)) {
    return to_error(driver.cuGraphInstantiateWithParams(
        exec, graph, reinterpret_cast<CUDA_GRAPH_INSTANTIATE_PARAMS*>(parameters)));
}

extern "C" cudaError_t cudaGraphExecUpdate(cudaGraphExec_t exec, cudaGraph_t graph,
                                           cudaGraphExecUpdateResultInfo* info) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphExecUpdate(
            exec, graph, reinterpret_cast<CUgraphExecUpdateResultInfo*>(info)));
    });
}

extern "C" cudaError_t cudaGraphExecGetFlags(cudaGraphExec_t exec, unsigned long long* flags) {
    return enter([&](const Driver& driver) {
        if (!flags) {
            return cudaErrorInvalidValue;
        }
        cuuint64_t found = 0;
        const CUresult result = driver.cuGraphExecGetFlags(exec, &found);
        *flags = found;
        return to_error(result);
    });
}

extern "C" cudaError_t cudaGraphExecDestroy(cudaGraphExec_t exec) {
    return enter([&](const Driver& driver) { return to_error(driver.cuGraphExecDestroy(exec)); });
}

SIMGPU_STREAM_FUNCTION(cudaGraphUpload, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
                       (exec, stream)) {
    return to_error(driver.cuGraphUpload(exec, stream));
}

SIMGPU_STREAM_FUNCTION(cudaGraphLaunch, _ptsz, (cudaGraphExec_t exec, cudaStream_t stream),
                       (exec, stream)) {
    return to_error(driver.cuGraphLaunch(exec, stream));
}

extern "C" cudaError_t cudaUserObjectCreate(cudaUserObject_t* object, void* pointer,
                                            cudaHostFn_t destroy, unsigned int references,
                                            unsigned int flags) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuUserObjectCreate(object, pointer, destroy, references, flags));
    });
}

extern "C" cudaError_t cudaUserObjectRetain(cudaUserObject_t object, unsigned int count) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuUserObjectRetain(object, count)); });
}

extern "C" cudaError_t cudaUserObjectRelease(cudaUserObject_t object, unsigned int count) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuUserObjectRelease(object, count)); });
}

extern "C" cudaError_t cudaGraphRetainUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                 unsigned int count, unsigned int flags) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphRetainUserObject(graph, object, count, flags));
    });
}

extern "C" cudaError_t cudaGraphReleaseUserObject(cudaGraph_t graph, cudaUserObject_t object,
                                                  unsigned int count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphReleaseUserObject(graph, object, count));
    });
}
