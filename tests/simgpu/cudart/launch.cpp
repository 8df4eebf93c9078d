// SPDX-License-Identifier: Apache-2.0
// Kernel launches, kernel attributes and occupancy of the virtual GPU's CUDA runtime.
#include <cstring>
#include <vector>

#include "runtime.hpp"

using namespace simgpu::cudart;

namespace {

static_assert(sizeof(cudaLaunchAttribute) == sizeof(CUlaunchAttribute));

struct Configuration {
    dim3 grid;
    dim3 block;
    std::size_t shared_bytes;
    cudaStream_t stream;
};

// A stack, since an argument of a triple-chevron launch may itself launch.
std::vector<Configuration>& configurations() {
    thread_local std::vector<Configuration> stack;
    return stack;
}

CUfunction as_function(CUkernel kernel) { return reinterpret_cast<CUfunction>(kernel); }

bool valid(const dim3& size) { return size.x > 0 && size.y > 0 && size.z > 0; }

cudaError_t launch(const Driver& driver, CUkernel kernel, dim3 grid, dim3 block, void** arguments,
                   std::size_t shared_bytes, cudaStream_t stream) {
    if (!valid(grid) || !valid(block)) {
        return cudaErrorInvalidConfiguration;
    }
    const CUresult result = driver.cuLaunchKernel(
        as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
        static_cast<unsigned int>(shared_bytes), stream, arguments, nullptr);
    return result == CUDA_ERROR_INVALID_VALUE ? cudaErrorInvalidConfiguration : to_error(result);
}

cudaError_t find_function(const Driver& driver, const void* func, CUfunction* function) {
    CUkernel kernel = nullptr;
    const cudaError_t error = find_kernel(func, &kernel);
    return error != cudaSuccess ? error : to_error(driver.cuKernelGetFunction(function, kernel));
}

CUlaunchConfig driver_config(const cudaLaunchConfig_t& config) {
    CUlaunchConfig result{};
    result.gridDimX = config.gridDim.x;
    result.gridDimY = config.gridDim.y;
    result.gridDimZ = config.gridDim.z;
    result.blockDimX = config.blockDim.x;
    result.blockDimY = config.blockDim.y;
    result.blockDimZ = config.blockDim.z;
    result.sharedMemBytes = static_cast<unsigned int>(config.dynamicSmemBytes);
    result.hStream = config.stream;
    result.attrs = reinterpret_cast<CUlaunchAttribute*>(config.attrs);
    result.numAttrs = config.numAttrs;
    return result;
}

}  // namespace

extern "C" unsigned __cudaPushCallConfiguration(dim3 grid, dim3 block, size_t shared_bytes,
                                                CUstream_st* stream) {
    configurations().push_back(Configuration{grid, block, shared_bytes, stream});
    return 0;
}

extern "C" cudaError_t __cudaPopCallConfiguration(dim3* grid, dim3* block, size_t* shared_bytes,
                                                  void* stream) {
    auto& stack = configurations();
    if (stack.empty()) {
        return remember(cudaErrorMissingConfiguration);
    }
    const Configuration& top = stack.back();
    *grid = top.grid;
    *block = top.block;
    *shared_bytes = top.shared_bytes;
    *static_cast<cudaStream_t*>(stream) = top.stream;
    stack.pop_back();
    return cudaSuccess;
}

SIMGPU_STREAM_FUNCTION(cudaLaunchKernel, _ptsz,
                       (const void* func, dim3 grid, dim3 block, void** arguments,
                        size_t shared_bytes, cudaStream_t stream),
                       (func, grid, block, arguments, shared_bytes, stream)) {
    CUkernel kernel = nullptr;
    const cudaError_t error = find_kernel(func, &kernel);
    return error != cudaSuccess
               ? error
               : launch(driver, kernel, grid, block, arguments, shared_bytes, stream);
}

// What the compiler's launch code has called since release 13.
SIMGPU_STREAM_FUNCTION(__cudaLaunchKernel, _ptsz,
                       (cudaKernel_t kernel, dim3 grid, dim3 block, void** arguments,
                        size_t shared_bytes, cudaStream_t stream),
                       (kernel, grid, block, arguments, shared_bytes, stream)) {
    return kernel ? launch(driver, kernel, grid, block, arguments, shared_bytes, stream)
                  : cudaErrorInvalidDeviceFunction;
}

SIMGPU_STREAM_FUNCTION(cudaLaunchCooperativeKernel, _ptsz,
                       (const void* func, dim3 grid, dim3 block, void** arguments,
                        size_t shared_bytes, cudaStream_t stream),
                       (func, grid, block, arguments, shared_bytes, stream)) {
    CUkernel kernel = nullptr;
    const cudaError_t error = find_kernel(func, &kernel);
    if (error != cudaSuccess) {
        return error;
    }
    if (!valid(grid) || !valid(block)) {
        return cudaErrorInvalidConfiguration;
    }
    return to_error(driver.cuLaunchCooperativeKernel(
        as_function(kernel), grid.x, grid.y, grid.z, block.x, block.y, block.z,
        static_cast<unsigned int>(shared_bytes), stream, arguments));
}

SIMGPU_STREAM_FUNCTION(cudaLaunchKernelExC, _ptsz,
                       (const cudaLaunchConfig_t* config, const void* func, void** arguments),
                       (config, func, arguments)) {
    if (!config) {
        return cudaErrorInvalidValue;
    }
    CUkernel kernel = nullptr;
    const cudaError_t error = find_kernel(func, &kernel);
    if (error != cudaSuccess) {
        return error;
    }
    if (!valid(config->gridDim) || !valid(config->blockDim)) {
        return cudaErrorInvalidConfiguration;
    }
    const CUlaunchConfig converted = driver_config(*config);
    return to_error(driver.cuLaunchKernelEx(&converted, as_function(kernel), arguments, nullptr));
}

extern "C" cudaError_t cudaGetKernel(cudaKernel_t* kernel, const void* func) {
    return enter(
        [&](const Driver&) { return kernel ? find_kernel(func, kernel) : cudaErrorInvalidValue; });
}

extern "C" cudaError_t __cudaGetKernel(cudaKernel_t* kernel, const void* func) {
    return cudaGetKernel(kernel, func);
}

extern "C" cudaError_t cudaGetFuncBySymbol(cudaFunction_t* function, const void* func) {
    return enter([&](const Driver& driver) {
        return function ? find_function(driver, func, function) : cudaErrorInvalidValue;
    });
}

extern "C" cudaError_t cudaFuncGetName(const char** name, const void* func) {
    return enter([&](const Driver& driver) {
        CUkernel kernel = nullptr;
        const cudaError_t error = find_kernel(func, &kernel);
        return error != cudaSuccess ? error : to_error(driver.cuKernelGetName(name, kernel));
    });
}

extern "C" cudaError_t cudaFuncGetParamInfo(const void* func, size_t index, size_t* offset,
                                            size_t* size) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        return error != cudaSuccess
                   ? error
                   : to_error(driver.cuFuncGetParamInfo(function, index, offset, size));
    });
}

extern "C" cudaError_t cudaFuncGetAttributes(cudaFuncAttributes* attributes, const void* func) {
    return enter([&](const Driver& driver) {
        if (!attributes) {
            return cudaErrorInvalidValue;
        }
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        if (error != cudaSuccess) {
            return error;
        }
        *attributes = cudaFuncAttributes{};
        CUresult result = CUDA_SUCCESS;
        const auto get = [&](CUfunction_attribute attribute) {
            int value = 0;
            if (result == CUDA_SUCCESS) {
                result = driver.cuFuncGetAttribute(&value, attribute, function);
            }
            return value;
        };
        const auto bytes = [&](CUfunction_attribute attribute) {
            return static_cast<std::size_t>(get(attribute));
        };
        attributes->sharedSizeBytes = bytes(CU_FUNC_ATTRIBUTE_SHARED_SIZE_BYTES);
        attributes->constSizeBytes = bytes(CU_FUNC_ATTRIBUTE_CONST_SIZE_BYTES);
        attributes->localSizeBytes = bytes(CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES);
        attributes->maxThreadsPerBlock = get(CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK);
        attributes->numRegs = get(CU_FUNC_ATTRIBUTE_NUM_REGS);
        attributes->ptxVersion = get(CU_FUNC_ATTRIBUTE_PTX_VERSION);
        attributes->binaryVersion = get(CU_FUNC_ATTRIBUTE_BINARY_VERSION);
        attributes->cacheModeCA = get(CU_FUNC_ATTRIBUTE_CACHE_MODE_CA);
        attributes->maxDynamicSharedSizeBytes =
            get(CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES);
        attributes->preferredShmemCarveout =
            get(CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT);
        return to_error(result);
    });
}

extern "C" cudaError_t cudaFuncSetAttribute(const void* func, cudaFuncAttribute attribute,
                                            int value) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        return error != cudaSuccess
                   ? error
                   : to_error(driver.cuFuncSetAttribute(
                         function, static_cast<CUfunction_attribute>(attribute), value));
    });
}

extern "C" cudaError_t cudaFuncSetCacheConfig(const void* func, cudaFuncCache config) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        return error != cudaSuccess ? error
                                    : to_error(driver.cuFuncSetCacheConfig(
                                          function, static_cast<CUfunc_cache>(config)));
    });
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
    int* blocks, const void* func, int block_size, size_t shared_bytes, unsigned int flags) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        return error != cudaSuccess
                   ? error
                   : to_error(driver.cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(
                         blocks, function, block_size, shared_bytes, flags));
    });
}

extern "C" cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, const void* func,
                                                                     int block_size,
                                                                     size_t shared_bytes) {
    return cudaOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(blocks, func, block_size,
                                                                  shared_bytes, 0);
}

extern "C" cudaError_t cudaOccupancyAvailableDynamicSMemPerBlock(size_t* bytes, const void* func,
                                                                 int blocks, int block_size) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error = find_function(driver, func, &function);
        return error != cudaSuccess ? error
                                    : to_error(driver.cuOccupancyAvailableDynamicSMemPerBlock(
                                          bytes, function, blocks, block_size));
    });
}

extern "C" cudaError_t cudaOccupancyMaxPotentialClusterSize(int* size, const void* func,
                                                            const cudaLaunchConfig_t* config) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error =
            config ? find_function(driver, func, &function) : cudaErrorInvalidValue;
        if (error != cudaSuccess) {
            return error;
        }
        const CUlaunchConfig converted = driver_config(*config);
        return to_error(driver.cuOccupancyMaxPotentialClusterSize(size, function, &converted));
    });
}

extern "C" cudaError_t cudaOccupancyMaxActiveClusters(int* count, const void* func,
                                                      const cudaLaunchConfig_t* config) {
    return enter([&](const Driver& driver) {
        CUfunction function = nullptr;
        const cudaError_t error =
            config ? find_function(driver, func, &function) : cudaErrorInvalidValue;
        if (error != cudaSuccess) {
            return error;
        }
        const CUlaunchConfig converted = driver_config(*config);
        return to_error(driver.cuOccupancyMaxActiveClusters(count, function, &converted));
    });
}

extern "C" cudaError_t cudaLibraryLoadData(cudaLibrary_t* library, const void* code,
                                           cudaJitOption* jit_options, void** jit_values,
                                           unsigned int jit_count,
                                           cudaLibraryOption* library_options,
                                           void** library_values, unsigned int library_count) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuLibraryLoadData(
            library, code, reinterpret_cast<CUjit_option*>(jit_options), jit_values, jit_count,
            reinterpret_cast<CUlibraryOption*>(library_options), library_values, library_count));
    });
}

extern "C" cudaError_t cudaLibraryUnload(cudaLibrary_t library) {
    return enter([&](const Driver& driver) { return to_error(driver.cuLibraryUnload(library)); });
}

extern "C" cudaError_t cudaLibraryGetKernel(cudaKernel_t* kernel, cudaLibrary_t library,
                                            const char* name) {
    return enter([&](const Driver& driver) {
        if (!kernel) {
            return cudaErrorInvalidValue;
        }
        const CUresult result = driver.cuLibraryGetKernel(kernel, library, name);
        if (result == CUDA_SUCCESS) {
            know_kernel(*kernel);
        }
        return to_error(result);
    });
}

extern "C" cudaError_t cudaLibraryGetGlobal(void** pointer, size_t* bytes, cudaLibrary_t library,
                                            const char* name) {
    return enter([&](const Driver& driver) {
        CUdeviceptr address = 0;
        const CUresult result = driver.cuLibraryGetGlobal(&address, bytes, library, name);
        if (result == CUDA_SUCCESS && pointer) {
            *pointer = reinterpret_cast<void*>(address);
        }
        return to_error(result);
    });
}

extern "C" cudaError_t cudaKernelSetAttributeForDevice(cudaKernel_t kernel,
                                                       cudaFuncAttribute attribute, int value,
                                                       int device) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuKernelSetAttribute(static_cast<CUfunction_attribute>(attribute),
                                                    value, kernel, device));
    });
}
