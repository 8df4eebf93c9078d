// SPDX-License-Identifier: Apache-2.0
// What differs between the runtime's major releases: version numbers, device properties, and calls
// whose signature changed under the same name. Compiled once per release with SIMGPU_CUDART_MAJOR;
// keep everything else elsewhere.
#include <cstddef>
#include <cstring>

#include "runtime.hpp"

using namespace simgpu::cudart;

#if SIMGPU_CUDART_MAJOR == 12
constexpr int kRuntimeVersion = 12080;
#elif SIMGPU_CUDART_MAJOR == 13
constexpr int kRuntimeVersion = CUDART_VERSION;
#else
#error "SIMGPU_CUDART_MAJOR must be 12 or 13"
#endif

extern "C" cudaError_t cudaRuntimeGetVersion(int* version) {
    if (!version) {
        return remember(cudaErrorInvalidValue);
    }
    *version = kRuntimeVersion;
    return cudaSuccess;
}

namespace {

#if SIMGPU_CUDART_MAJOR == 12
// Layout of release 12; that of release 11, which the unsuffixed name still fills, is a prefix of
// it.
struct DeviceProperties {
    char name[256];
    cudaUUID_t uuid;
    char luid[8];
    unsigned int luidDeviceNodeMask;
    std::size_t totalGlobalMem;
    std::size_t sharedMemPerBlock;
    int regsPerBlock;
    int warpSize;
    std::size_t memPitch;
    int maxThreadsPerBlock;
    int maxThreadsDim[3];
    int maxGridSize[3];
    int clockRate;
    std::size_t totalConstMem;
    int major;
    int minor;
    std::size_t textureAlignment;
    std::size_t texturePitchAlignment;
    int deviceOverlap;
    int multiProcessorCount;
    int kernelExecTimeoutEnabled;
    int integrated;
    int canMapHostMemory;
    int computeMode;
    int textures_and_surfaces[40];
    std::size_t surfaceAlignment;
    int concurrentKernels;
    int ECCEnabled;
    int pciBusID;
    int pciDeviceID;
    int pciDomainID;
    int tccDriver;
    int asyncEngineCount;
    int unifiedAddressing;
    int memoryClockRate;
    int memoryBusWidth;
    int l2CacheSize;
    int persistingL2CacheMaxSize;
    int maxThreadsPerMultiProcessor;
    int streamPrioritiesSupported;
    int globalL1CacheSupported;
    int localL1CacheSupported;
    std::size_t sharedMemPerMultiprocessor;
    int regsPerMultiprocessor;
    int managedMemory;
    int isMultiGpuBoard;
    int multiGpuBoardGroupID;
    int hostNativeAtomicSupported;
    int singleToDoublePrecisionPerfRatio;
    int pageableMemoryAccess;
    int concurrentManagedAccess;
    int computePreemptionSupported;
    int canUseHostPointerForRegisteredMem;
    int cooperativeLaunch;
    int cooperativeMultiDeviceLaunch;
    std::size_t sharedMemPerBlockOptin;
    int pageableMemoryAccessUsesHostPageTables;
    int directManagedMemAccessFromHost;
    int maxBlocksPerMultiProcessor;
    int accessPolicyMaxWindowSize;
    std::size_t reservedSharedMemPerBlock;
    int hostRegisterSupported;
    int sparseCudaArraySupported;
    int hostRegisterReadOnlySupported;
    int timelineSemaphoreInteropSupported;
    int memoryPoolsSupported;
    int gpuDirectRDMASupported;
    unsigned int gpuDirectRDMAFlushWritesOptions;
    int gpuDirectRDMAWritesOrdering;
    unsigned int memoryPoolSupportedHandleTypes;
    int deferredMappingCudaArraySupported;
    int ipcEventSupported;
    int clusterLaunch;
    int unifiedFunctionPointers;
    int reserved[63];
};
constexpr std::size_t kPropertiesSizeOfRelease11 = 728;
static_assert(sizeof(DeviceProperties) == 1032);
static_assert(offsetof(DeviceProperties, hostRegisterSupported) == kPropertiesSizeOfRelease11);
#else
using DeviceProperties = cudaDeviceProp;
#endif

cudaError_t fill(const Driver& driver, DeviceProperties* out, int device) {
    *out = DeviceProperties{};
    CUresult result = driver.cuDeviceGetName(out->name, sizeof(out->name), device);
    if (result == CUDA_SUCCESS) {
        result = driver.cuDeviceGetUuid(reinterpret_cast<CUuuid*>(&out->uuid), device);
    }
    if (result == CUDA_SUCCESS) {
        result = driver.cuDeviceTotalMem(&out->totalGlobalMem, device);
    }
    const auto get = [&](CUdevice_attribute attribute) {
        int value = 0;
        // An attribute the device does not have reads 0.
        if (result == CUDA_SUCCESS &&
            driver.cuDeviceGetAttribute(&value, attribute, device) != CUDA_SUCCESS) {
            value = 0;
        }
        return value;
    };
    const auto bytes = [&](CUdevice_attribute attribute) {
        return static_cast<std::size_t>(get(attribute));
    };
    out->sharedMemPerBlock = bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK);
    out->regsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK);
    out->warpSize = get(CU_DEVICE_ATTRIBUTE_WARP_SIZE);
    out->memPitch = bytes(CU_DEVICE_ATTRIBUTE_MAX_PITCH);
    out->maxThreadsPerBlock = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
    out->maxThreadsDim[0] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X);
    out->maxThreadsDim[1] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y);
    out->maxThreadsDim[2] = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z);
    out->maxGridSize[0] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X);
    out->maxGridSize[1] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y);
    out->maxGridSize[2] = get(CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z);
    out->totalConstMem = bytes(CU_DEVICE_ATTRIBUTE_TOTAL_CONSTANT_MEMORY);
    out->major = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
    out->minor = get(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
    out->textureAlignment = bytes(CU_DEVICE_ATTRIBUTE_TEXTURE_ALIGNMENT);
    out->texturePitchAlignment = bytes(CU_DEVICE_ATTRIBUTE_TEXTURE_PITCH_ALIGNMENT);
    out->multiProcessorCount = get(CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
    out->integrated = get(CU_DEVICE_ATTRIBUTE_INTEGRATED);
    out->canMapHostMemory = get(CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY);
    out->surfaceAlignment = bytes(CU_DEVICE_ATTRIBUTE_SURFACE_ALIGNMENT);
    out->concurrentKernels = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_KERNELS);
    out->ECCEnabled = get(CU_DEVICE_ATTRIBUTE_ECC_ENABLED);
    out->pciBusID = get(CU_DEVICE_ATTRIBUTE_PCI_BUS_ID);
    out->pciDeviceID = get(CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID);
    out->pciDomainID = get(CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID);
    out->tccDriver = get(CU_DEVICE_ATTRIBUTE_TCC_DRIVER);
    out->asyncEngineCount = get(CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT);
    out->unifiedAddressing = get(CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING);
    out->memoryBusWidth = get(CU_DEVICE_ATTRIBUTE_GLOBAL_MEMORY_BUS_WIDTH);
    out->l2CacheSize = get(CU_DEVICE_ATTRIBUTE_L2_CACHE_SIZE);
    out->persistingL2CacheMaxSize = get(CU_DEVICE_ATTRIBUTE_MAX_PERSISTING_L2_CACHE_SIZE);
    out->maxThreadsPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR);
    out->streamPrioritiesSupported = get(CU_DEVICE_ATTRIBUTE_STREAM_PRIORITIES_SUPPORTED);
    out->globalL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_GLOBAL_L1_CACHE_SUPPORTED);
    out->localL1CacheSupported = get(CU_DEVICE_ATTRIBUTE_LOCAL_L1_CACHE_SUPPORTED);
    out->sharedMemPerMultiprocessor =
        bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_MULTIPROCESSOR);
    out->regsPerMultiprocessor = get(CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_MULTIPROCESSOR);
    out->managedMemory = get(CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY);
    out->isMultiGpuBoard = get(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD);
    out->multiGpuBoardGroupID = get(CU_DEVICE_ATTRIBUTE_MULTI_GPU_BOARD_GROUP_ID);
    out->hostNativeAtomicSupported = get(CU_DEVICE_ATTRIBUTE_HOST_NATIVE_ATOMIC_SUPPORTED);
    out->pageableMemoryAccess = get(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS);
    out->concurrentManagedAccess = get(CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS);
    out->computePreemptionSupported = get(CU_DEVICE_ATTRIBUTE_COMPUTE_PREEMPTION_SUPPORTED);
    out->canUseHostPointerForRegisteredMem =
        get(CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM);
    out->cooperativeLaunch = get(CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH);
    out->sharedMemPerBlockOptin = bytes(CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN);
    out->pageableMemoryAccessUsesHostPageTables =
        get(CU_DEVICE_ATTRIBUTE_PAGEABLE_MEMORY_ACCESS_USES_HOST_PAGE_TABLES);
    out->directManagedMemAccessFromHost =
        get(CU_DEVICE_ATTRIBUTE_DIRECT_MANAGED_MEM_ACCESS_FROM_HOST);
    out->maxBlocksPerMultiProcessor = get(CU_DEVICE_ATTRIBUTE_MAX_BLOCKS_PER_MULTIPROCESSOR);
    out->reservedSharedMemPerBlock = bytes(CU_DEVICE_ATTRIBUTE_RESERVED_SHARED_MEMORY_PER_BLOCK);
    out->hostRegisterSupported = get(CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED);
    out->memoryPoolsSupported = get(CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
    out->ipcEventSupported = get(CU_DEVICE_ATTRIBUTE_IPC_EVENT_SUPPORTED);
    out->clusterLaunch = get(CU_DEVICE_ATTRIBUTE_CLUSTER_LAUNCH);
#if SIMGPU_CUDART_MAJOR == 12
    out->clockRate = get(CU_DEVICE_ATTRIBUTE_CLOCK_RATE);
    out->memoryClockRate = get(CU_DEVICE_ATTRIBUTE_MEMORY_CLOCK_RATE);
    out->deviceOverlap = get(CU_DEVICE_ATTRIBUTE_GPU_OVERLAP);
    out->computeMode = get(CU_DEVICE_ATTRIBUTE_COMPUTE_MODE);
#endif
    return to_error(result);
}

}  // namespace

#if SIMGPU_CUDART_MAJOR == 12

extern "C" cudaError_t cudaGetDeviceProperties_v2(cudaDeviceProp* properties, int device) {
    return enter_without_context([&](const Driver& driver) {
        return properties ? fill(driver, reinterpret_cast<DeviceProperties*>(properties), device)
                          : cudaErrorInvalidValue;
    });
}

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return enter_without_context([&](const Driver& driver) {
        if (!properties) {
            return cudaErrorInvalidValue;
        }
        DeviceProperties full{};
        const cudaError_t error = fill(driver, &full, device);
        if (error == cudaSuccess) {
            std::memcpy(static_cast<void*>(properties), &full, kPropertiesSizeOfRelease11);
        }
        return error;
    });
}

#else

extern "C" cudaError_t cudaGetDeviceProperties(cudaDeviceProp* properties, int device) {
    return enter_without_context([&](const Driver& driver) {
        return properties ? fill(driver, properties, device) : cudaErrorInvalidValue;
    });
}

extern "C" cudaError_t cudaStreamGetCaptureInfo_v3(cudaStream_t, cudaStreamCaptureStatus*,
                                                   unsigned long long*, cudaGraph_t*,
                                                   const cudaGraphNode_t**,
                                                   const cudaGraphEdgeData**, size_t*);
extern "C" cudaError_t cudaStreamGetCaptureInfo_v3_ptsz(cudaStream_t, cudaStreamCaptureStatus*,
                                                        unsigned long long*, cudaGraph_t*,
                                                        const cudaGraphNode_t**,
                                                        const cudaGraphEdgeData**, size_t*);

extern "C" cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream,
                                                cudaStreamCaptureStatus* status,
                                                unsigned long long* id, cudaGraph_t* graph,
                                                const cudaGraphNode_t** dependencies,
                                                const cudaGraphEdgeData** edges, size_t* count) {
    return cudaStreamGetCaptureInfo_v3(stream, status, id, graph, dependencies, edges, count);
}

extern "C" cudaError_t cudaStreamGetCaptureInfo_ptsz(cudaStream_t stream,
                                                     cudaStreamCaptureStatus* status,
                                                     unsigned long long* id, cudaGraph_t* graph,
                                                     const cudaGraphNode_t** dependencies,
                                                     const cudaGraphEdgeData** edges,
                                                     size_t* count) {
    return cudaStreamGetCaptureInfo_v3_ptsz(stream, status, id, graph, dependencies, edges, count);
}

extern "C" cudaError_t cudaGraphAddDependencies(cudaGraph_t graph, const cudaGraphNode_t* from,
                                                const cudaGraphNode_t* to,
                                                const cudaGraphEdgeData* edges, size_t count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphAddDependencies(
            graph, from, to, reinterpret_cast<const CUgraphEdgeData*>(edges), count));
    });
}

extern "C" cudaError_t cudaGraphGetEdges(cudaGraph_t graph, cudaGraphNode_t* from,
                                         cudaGraphNode_t* to, cudaGraphEdgeData* edges,
                                         size_t* count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphGetEdges(graph, from, to,
                                               reinterpret_cast<CUgraphEdgeData*>(edges), count));
    });
}

extern "C" cudaError_t cudaGraphNodeGetDependencies(cudaGraphNode_t node,
                                                    cudaGraphNode_t* dependencies,
                                                    cudaGraphEdgeData* edges, size_t* count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuGraphNodeGetDependencies(
            node, dependencies, reinterpret_cast<CUgraphEdgeData*>(edges), count));
    });
}

#endif
