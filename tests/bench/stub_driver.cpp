// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 that does nothing, for measuring what stands in front of a driver: one device,
// contexts, streams and events that libcrossover can attach to, and launches that return at once
// or, with STUB_DRIVER_LAUNCH_NS set, after spinning that many nanoseconds. It computes nothing and
// keeps no time: no test of behaviour belongs on top of it (that is tests/simgpu).
#include <cuda.h>
#undef cuGetProcAddress

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <ctime>

#define STUB_EXPORT extern "C" [[gnu::visibility("default")]]

struct CUctx_st {
    int device;
};
struct CUstream_st {
    CUcontext context;
    unsigned flags;
};
struct CUevent_st {
    unsigned flags;
};
struct CUkern_st {
    const char* name;
};

namespace {

CUctx_st primary_context{0};
CUkern_st kernel{"stub_kernel"};
thread_local CUcontext current = nullptr;
std::uint64_t launch_ns = 0;  // set by cuInit, then constant

std::uint64_t now_ns() noexcept {
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000U +
           static_cast<std::uint64_t>(now.tv_nsec);
}

[[gnu::noinline, gnu::cold]] void spin() noexcept {
    for (const std::uint64_t until = now_ns() + launch_ns; now_ns() < until;) {
    }
}

CUresult launched() noexcept {
    if (launch_ns != 0) {
        spin();
    }
    return CUDA_SUCCESS;
}

}  // namespace

// ------------------------------------------------------------------------------------- launches

#define STUB_LAUNCHES(suffix)                                                                      \
    STUB_EXPORT CUresult cuLaunchKernel##suffix(CUfunction, unsigned, unsigned, unsigned,          \
                                                unsigned, unsigned, unsigned, unsigned, CUstream,  \
                                                void**, void**) {                                  \
        return launched();                                                                         \
    }                                                                                              \
    STUB_EXPORT CUresult cuLaunchKernelEx##suffix(const CUlaunchConfig*, CUfunction, void**,       \
                                                  void**) {                                        \
        return launched();                                                                         \
    }                                                                                              \
    STUB_EXPORT CUresult cuLaunchCooperativeKernel##suffix(CUfunction, unsigned, unsigned,         \
                                                           unsigned, unsigned, unsigned, unsigned, \
                                                           unsigned, CUstream, void**) {           \
        return launched();                                                                         \
    }                                                                                              \
    STUB_EXPORT CUresult cuGraphLaunch##suffix(CUgraphExec, CUstream) { return launched(); }       \
    STUB_EXPORT CUresult cuEventRecord##suffix(CUevent, CUstream) { return CUDA_SUCCESS; }         \
    STUB_EXPORT CUresult cuStreamWaitEvent##suffix(CUstream, CUevent, unsigned) {                  \
        return CUDA_SUCCESS;                                                                       \
    }                                                                                              \
    STUB_EXPORT CUresult cuStreamIsCapturing##suffix(CUstream, CUstreamCaptureStatus* status) {    \
        *status = CU_STREAM_CAPTURE_STATUS_NONE;                                                   \
        return CUDA_SUCCESS;                                                                       \
    }                                                                                              \
    STUB_EXPORT CUresult cuStreamGetFlags##suffix(CUstream stream, unsigned* flags) {              \
        *flags = stream == nullptr ? 0 : stream->flags;                                            \
        return CUDA_SUCCESS;                                                                       \
    }                                                                                              \
    STUB_EXPORT CUresult cuStreamGetCtx##suffix(CUstream stream, CUcontext* context) {             \
        *context = stream == nullptr ? current : stream->context;                                  \
        return CUDA_SUCCESS;                                                                       \
    }
STUB_LAUNCHES()
STUB_LAUNCHES(_ptsz)

// -------------------------------------------------------------------------- device and contexts

STUB_EXPORT CUresult cuInit(unsigned) {
    const char* const asked = std::getenv("STUB_DRIVER_LAUNCH_NS");
    launch_ns = asked == nullptr ? 0 : std::strtoull(asked, nullptr, 10);
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuDriverGetVersion(int* version) {
    *version = 13000;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuDeviceGetCount(int* count) {
    *count = 1;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuDeviceGet(CUdevice* device, int ordinal) {
    *device = 0;
    return ordinal == 0 ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}
STUB_EXPORT CUresult cuDeviceGetUuid_v2(CUuuid* uuid, CUdevice) {
    std::memset(uuid->bytes, 0x5A, sizeof uuid->bytes);
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuDevicePrimaryCtxRetain(CUcontext* context, CUdevice) {
    *context = &primary_context;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuCtxGetCurrent(CUcontext* context) {
    *context = current;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuCtxSetCurrent(CUcontext context) {
    current = context;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuCtxGetDevice(CUdevice* device) {
    *device = 0;
    return current == nullptr ? CUDA_ERROR_INVALID_CONTEXT : CUDA_SUCCESS;
}

// ---------------------------------------------------------------------------- streams and events

STUB_EXPORT CUresult cuStreamCreate(CUstream* stream, unsigned flags) {
    *stream = new CUstream_st{current, flags};
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuStreamDestroy_v2(CUstream stream) {
    delete stream;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuEventCreate(CUevent* event, unsigned flags) {
    *event = new CUevent_st{flags};
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuEventDestroy_v2(CUevent event) {
    delete event;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuEventQuery(CUevent) { return CUDA_SUCCESS; }
STUB_EXPORT CUresult cuEventElapsedTime_v2(float* milliseconds, CUevent, CUevent) {
    *milliseconds = 0.0F;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    static thread_local CUstreamCaptureMode held = CU_STREAM_CAPTURE_MODE_GLOBAL;
    const CUstreamCaptureMode before = held;
    held = *mode;
    *mode = before;
    return CUDA_SUCCESS;
}

// ----------------------------------------------------------------------------- kernels by name

STUB_EXPORT CUresult cuLibraryLoadData(CUlibrary* library, const void*, CUjit_option*, void**,
                                       unsigned, CUlibraryOption*, void**, unsigned) {
    *library = reinterpret_cast<CUlibrary>(&primary_context);
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuLibraryUnload(CUlibrary) { return CUDA_SUCCESS; }
STUB_EXPORT CUresult cuLibraryGetKernel(CUkernel* found, CUlibrary, const char*) {
    *found = &kernel;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuKernelGetFunction(CUfunction* function, CUkernel from) {
    *function = reinterpret_cast<CUfunction>(from);
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuFuncGetName(const char** name, CUfunction) {
    *name = kernel.name;
    return CUDA_SUCCESS;
}
STUB_EXPORT CUresult cuKernelGetName(const char** name, CUkernel) {
    *name = kernel.name;
    return CUDA_SUCCESS;
}

// -------------------------------------------------------------------------------------- look-up

STUB_EXPORT CUresult cuGetProcAddress(const char*, void**, int, cuuint64_t);
STUB_EXPORT CUresult cuGetProcAddress_v2(const char*, void**, int, cuuint64_t,
                                         CUdriverProcAddressQueryResult*);

namespace {

struct Row {
    const char* base;
    void* legacy;
    void* per_thread;  // nullptr: the same
};

#define STUB_ROW(base, symbol) \
    { #base, reinterpret_cast < void*>(&::symbol), nullptr }
#define STUB_STREAM_ROW(base) \
    { #base, reinterpret_cast < void*>(&::base), reinterpret_cast < void*>(&::base##_ptsz) }
const Row rows[] = {
    STUB_STREAM_ROW(cuLaunchKernel),
    STUB_STREAM_ROW(cuLaunchKernelEx),
    STUB_STREAM_ROW(cuLaunchCooperativeKernel),
    STUB_STREAM_ROW(cuGraphLaunch),
    STUB_STREAM_ROW(cuEventRecord),
    STUB_STREAM_ROW(cuStreamWaitEvent),
    STUB_STREAM_ROW(cuStreamIsCapturing),
    STUB_STREAM_ROW(cuStreamGetFlags),
    STUB_STREAM_ROW(cuStreamGetCtx),
    STUB_ROW(cuInit, cuInit),
    STUB_ROW(cuDriverGetVersion, cuDriverGetVersion),
    STUB_ROW(cuDeviceGetCount, cuDeviceGetCount),
    STUB_ROW(cuDeviceGet, cuDeviceGet),
    STUB_ROW(cuDeviceGetUuid, cuDeviceGetUuid_v2),
    STUB_ROW(cuDevicePrimaryCtxRetain, cuDevicePrimaryCtxRetain),
    STUB_ROW(cuCtxGetCurrent, cuCtxGetCurrent),
    STUB_ROW(cuCtxSetCurrent, cuCtxSetCurrent),
    STUB_ROW(cuCtxGetDevice, cuCtxGetDevice),
    STUB_ROW(cuStreamCreate, cuStreamCreate),
    STUB_ROW(cuStreamDestroy, cuStreamDestroy_v2),
    STUB_ROW(cuEventCreate, cuEventCreate),
    STUB_ROW(cuEventDestroy, cuEventDestroy_v2),
    STUB_ROW(cuEventQuery, cuEventQuery),
    STUB_ROW(cuEventElapsedTime, cuEventElapsedTime_v2),
    STUB_ROW(cuThreadExchangeStreamCaptureMode, cuThreadExchangeStreamCaptureMode),
    STUB_ROW(cuLibraryLoadData, cuLibraryLoadData),
    STUB_ROW(cuLibraryUnload, cuLibraryUnload),
    STUB_ROW(cuLibraryGetKernel, cuLibraryGetKernel),
    STUB_ROW(cuKernelGetFunction, cuKernelGetFunction),
    STUB_ROW(cuKernelGetName, cuKernelGetName),
    STUB_ROW(cuFuncGetName, cuFuncGetName),
};

}  // namespace

STUB_EXPORT CUresult cuGetProcAddress_v2(const char* symbol, void** function, int version,
                                         cuuint64_t flags, CUdriverProcAddressQueryResult* status) {
    *function = nullptr;
    if (std::strcmp(symbol, "cuGetProcAddress") == 0) {
        *function = version >= 12000 ? reinterpret_cast<void*>(&cuGetProcAddress_v2)
                                     : reinterpret_cast<void*>(&cuGetProcAddress);
    }
    for (const Row& row : rows) {
        if (std::strcmp(row.base, symbol) == 0) {
            const bool per_thread = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0;
            *function = per_thread && row.per_thread != nullptr ? row.per_thread : row.legacy;
        }
    }
    if (status != nullptr) {
        *status = *function != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                                       : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    }
    return *function != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

STUB_EXPORT CUresult cuGetProcAddress(const char* symbol, void** function, int version,
                                      cuuint64_t flags) {
    return cuGetProcAddress_v2(symbol, function, version, flags, nullptr);
}
