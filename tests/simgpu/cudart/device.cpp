// SPDX-License-Identifier: Apache-2.0
// Devices of the virtual GPU's CUDA runtime: selection, attributes, limits, peers, profiler, driver
// entry points. What differs between the runtime's major releases stands in release.cpp.
#include "runtime.hpp"

using namespace simgpu::cudart;

extern "C" cudaError_t cudaGetDeviceCount(int* count) {
    if (!count) {
        return remember(cudaErrorInvalidValue);
    }
    *count = 0;
    return enter_without_context(
        [&](const Driver& driver) { return to_error(driver.cuDeviceGetCount(count)); });
}

extern "C" cudaError_t cudaSetDevice(int device) {
    return enter_without_context([&](const Driver&) { return select_device(device); });
}

extern "C" cudaError_t cudaInitDevice(int device, unsigned int device_flags, unsigned int flags) {
    return enter_without_context([&](const Driver& driver) {
        if (flags & cudaInitDeviceFlagsAreValid) {
            const CUresult result = driver.cuDevicePrimaryCtxSetFlags(device, device_flags);
            if (result != CUDA_SUCCESS) {
                return to_error(result);
            }
        }
        CUcontext before = nullptr;
        CUresult result = driver.cuCtxGetCurrent(&before);
        int selected = 0;
        cudaError_t error = to_error(result);
        if (error == cudaSuccess) {
            error = current_device(&selected);
        }
        if (error == cudaSuccess) {
            error = select_device(device);
        }
        if (error == cudaSuccess && device != selected) {
            // Initialises the device without selecting it.
            error = select_device(selected);
        }
        result = driver.cuCtxSetCurrent(before);
        return error != cudaSuccess ? error : to_error(result);
    });
}

extern "C" cudaError_t cudaGetDevice(int* device) {
    return enter_without_context(
        [&](const Driver&) { return device ? current_device(device) : cudaErrorInvalidValue; });
}

extern "C" cudaError_t cudaSetDeviceFlags(unsigned int flags) {
    return enter_without_context([&](const Driver& driver) {
        int device = 0;
        const cudaError_t error = current_device(&device);
        return error != cudaSuccess ? error
                                    : to_error(driver.cuDevicePrimaryCtxSetFlags(device, flags));
    });
}

extern "C" cudaError_t cudaGetDeviceFlags(unsigned int* flags) {
    return enter([&](const Driver& driver) { return to_error(driver.cuCtxGetFlags(flags)); });
}

extern "C" cudaError_t cudaDeviceGetAttribute(int* value, cudaDeviceAttr attribute, int device) {
    return enter_without_context([&](const Driver& driver) {
        return to_error(
            driver.cuDeviceGetAttribute(value, static_cast<CUdevice_attribute>(attribute), device));
    });
}

extern "C" cudaError_t cudaDeviceSynchronize(void) {
    return enter([&](const Driver& driver) { return to_error(driver.cuCtxSynchronize()); });
}

extern "C" cudaError_t cudaDeviceReset(void) {
    return enter_without_context([&](const Driver&) {
        int device = 0;
        const cudaError_t error = current_device(&device);
        return error != cudaSuccess ? error : reset_device(device);
    });
}

extern "C" cudaError_t cudaDeviceSetLimit(cudaLimit limit, size_t value) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuCtxSetLimit(static_cast<CUlimit>(limit), value));
    });
}

extern "C" cudaError_t cudaDeviceGetLimit(size_t* value, cudaLimit limit) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuCtxGetLimit(value, static_cast<CUlimit>(limit)));
    });
}

extern "C" cudaError_t cudaDeviceGetCacheConfig(cudaFuncCache* config) {
    return enter([&](const Driver& driver) {
        if (!config) {
            return cudaErrorInvalidValue;
        }
        CUfunc_cache value{};
        const CUresult result = driver.cuCtxGetCacheConfig(&value);
        *config = static_cast<cudaFuncCache>(value);
        return to_error(result);
    });
}

extern "C" cudaError_t cudaDeviceSetCacheConfig(cudaFuncCache config) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuCtxSetCacheConfig(static_cast<CUfunc_cache>(config)));
    });
}

extern "C" cudaError_t cudaDeviceGetStreamPriorityRange(int* least, int* greatest) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuCtxGetStreamPriorityRange(least, greatest));
    });
}

extern "C" cudaError_t cudaDeviceGetByPCIBusId(int* device, const char* bus_id) {
    return enter_without_context([&](const Driver& driver) {
        return to_error(driver.cuDeviceGetByPCIBusId(device, bus_id));
    });
}

extern "C" cudaError_t cudaDeviceGetPCIBusId(char* bus_id, int length, int device) {
    return enter_without_context([&](const Driver& driver) {
        return to_error(driver.cuDeviceGetPCIBusId(bus_id, length, device));
    });
}

extern "C" cudaError_t cudaDeviceCanAccessPeer(int* can, int device, int peer) {
    return enter_without_context([&](const Driver& driver) {
        return to_error(driver.cuDeviceCanAccessPeer(can, device, peer));
    });
}

extern "C" cudaError_t cudaDeviceGetP2PAttribute(int* value, cudaDeviceP2PAttr attribute,
                                                 int source, int target) {
    return enter_without_context([&](const Driver& driver) {
        return to_error(driver.cuDeviceGetP2PAttribute(
            value, static_cast<CUdevice_P2PAttribute>(attribute), source, target));
    });
}

namespace {

// Peer access is granted to a context, so the peer's primary one is needed for a moment.
template <typename Call>
cudaError_t with_peer_context(const Driver& driver, int peer, Call call) {
    CUcontext own = nullptr;
    int device = 0;
    cudaError_t error = to_error(driver.cuCtxGetCurrent(&own));
    if (error == cudaSuccess) {
        error = current_device(&device);
    }
    if (error == cudaSuccess && device == peer) {
        error = cudaErrorInvalidDevice;
    }
    if (error == cudaSuccess) {
        error = select_device(peer);
    }
    if (error != cudaSuccess) {
        return error;
    }
    CUcontext other = nullptr;
    CUresult result = driver.cuCtxGetCurrent(&other);
    error = select_device(device);
    if (result == CUDA_SUCCESS && error == cudaSuccess) {
        result = driver.cuCtxSetCurrent(own);
    }
    if (result == CUDA_SUCCESS && error == cudaSuccess) {
        result = call(other);
    }
    return error != cudaSuccess ? error : to_error(result);
}

}  // namespace

extern "C" cudaError_t cudaDeviceEnablePeerAccess(int peer, unsigned int flags) {
    return enter([&](const Driver& driver) {
        return with_peer_context(driver, peer, [&](CUcontext context) {
            return driver.cuCtxEnablePeerAccess(context, flags);
        });
    });
}

extern "C" cudaError_t cudaDeviceDisablePeerAccess(int peer) {
    return enter([&](const Driver& driver) {
        return with_peer_context(driver, peer, [&](CUcontext context) {
            return driver.cuCtxDisablePeerAccess(context);
        });
    });
}

extern "C" cudaError_t cudaDriverGetVersion(int* version) {
    if (!version) {
        return remember(cudaErrorInvalidValue);
    }
    // Answers 0 where there is no driver at all, and needs no device.
    *version = 0;
    const CUresult result = legacy_driver().cuDriverGetVersion(version);
    return result == CUDA_ERROR_NOT_SUPPORTED ? cudaSuccess : remember(to_error(result));
}

extern "C" cudaError_t cudaProfilerStart(void) {
    return enter([&](const Driver& driver) { return to_error(driver.cuProfilerStart()); });
}

extern "C" cudaError_t cudaProfilerStop(void) {
    return enter([&](const Driver& driver) { return to_error(driver.cuProfilerStop()); });
}

namespace {

cudaError_t entry_point(const char* symbol, void** pointer, unsigned int version,
                        unsigned long long flags, cudaDriverEntryPointQueryResult* status,
                        bool per_thread) {
    if (!symbol || !pointer) {
        return cudaErrorInvalidValue;
    }
    // The default means what the caller was compiled for; the other two say it outright.
    cuuint64_t driver_flags = flags;
    if (flags == cudaEnableDefault && per_thread) {
        driver_flags = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    }
    CUdriverProcAddressQueryResult found = CU_GET_PROC_ADDRESS_SUCCESS;
    *pointer = nullptr;
    const CUresult result =
        get_proc_address()(symbol, pointer, static_cast<int>(version), driver_flags, &found);
    if (status) {
        *status = static_cast<cudaDriverEntryPointQueryResult>(found);
    }
    // A symbol that is not there is told by `status`, where the caller asked for it.
    return result == CUDA_ERROR_NOT_FOUND && status ? cudaSuccess : to_error(result);
}

}  // namespace

extern "C" cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** pointer,
                                                        unsigned int version,
                                                        unsigned long long flags,
                                                        cudaDriverEntryPointQueryResult* status) {
    return enter_without_context(
        [&](const Driver&) { return entry_point(symbol, pointer, version, flags, status, false); });
}

extern "C" cudaError_t cudaGetDriverEntryPointByVersion_ptsz(
    const char* symbol, void** pointer, unsigned int version, unsigned long long flags,
    cudaDriverEntryPointQueryResult* status) {
    return enter_without_context(
        [&](const Driver&) { return entry_point(symbol, pointer, version, flags, status, true); });
}

// Without a version: that of the runtime itself.
extern "C" cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** pointer,
                                               unsigned long long flags,
                                               cudaDriverEntryPointQueryResult* status) {
    return enter_without_context([&](const Driver&) {
        int version = 0;
        const cudaError_t error = cudaRuntimeGetVersion(&version);
        return error != cudaSuccess
                   ? error
                   : entry_point(symbol, pointer, static_cast<unsigned int>(version), flags, status,
                                 false);
    });
}

extern "C" cudaError_t cudaGetDriverEntryPoint_ptsz(const char* symbol, void** pointer,
                                                    unsigned long long flags,
                                                    cudaDriverEntryPointQueryResult* status) {
    return enter_without_context([&](const Driver&) {
        int version = 0;
        const cudaError_t error = cudaRuntimeGetVersion(&version);
        return error != cudaSuccess
                   ? error
                   : entry_point(symbol, pointer, static_cast<unsigned int>(version), flags, status,
                                 true);
    });
}
