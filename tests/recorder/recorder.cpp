// SPDX-License-Identifier: Apache-2.0
// A libcuda.so.1 that only records: every function of the driver exists and notes who called it,
// look-ups have the real semantics, and a few answer as with one device, so that the vendor's
// libraries get as far as they can without a driver. No device is modelled here (tests/simgpu does
// that), and no check of the vendor's is answered.
#include <cstring>

#include "tests/recorder/log.hpp"

#define CX_STUB(name)                                                                         \
    extern "C" [[gnu::visibility("default"), gnu::noinline]] int name(long a, long b, long c, \
                                                                      long d, long e)
#define CX_NAME(name) CX_STUB(name);
#define CX_LOOK_UP(base, version, family, name)
#include "names.inc"
#undef CX_NAME
#undef CX_LOOK_UP

namespace {

// Values of cuda.h, which cannot be included: its prototypes are not those of the stubs.
constexpr int kSuccess = 0, kInvalidValue = 1, kNotFound = 500, kNotSupported = 801;
constexpr unsigned long kLegacyStream = 1, kPerThreadStream = 2;
constexpr int kComputeCapabilityMajor = 75, kComputeCapabilityMinor = 76;

enum class Family { kAny, kLegacy, kPerThread };

struct LookUp {
    const char* base;
    int version;
    Family family;
    void* function;
};

#define CX_NAME(name)
#define CX_LOOK_UP(base, version, family, name) \
    {#base, version, Family::family, reinterpret_cast<void*>(&name)},
const LookUp look_ups[] = {
#include "names.inc"
};
#undef CX_NAME
#undef CX_LOOK_UP

int look_up(const char* symbol, void** function, int version, unsigned long flags, int* status) {
    if (symbol == nullptr || function == nullptr || flags == (kLegacyStream | kPerThreadStream) ||
        flags > kPerThreadStream + kLegacyStream) {
        return kInvalidValue;
    }
    const Family avoid = flags == kPerThreadStream ? Family::kLegacy : Family::kPerThread;
    const LookUp* best = nullptr;
    bool known = false;
    for (const LookUp& row : look_ups) {
        if (std::strcmp(row.base, symbol) != 0 || row.family == avoid) {
            continue;
        }
        known = true;
        if (row.version <= version && (best == nullptr || row.version > best->version)) {
            best = &row;
        }
    }
    *function = best == nullptr ? nullptr : best->function;
    if (status != nullptr) {
        *status = best != nullptr ? 0 : known ? 2 : 1;
    }
    return best != nullptr ? kSuccess : kNotFound;
}

template <class Value>
int give(long pointer, Value value) {
    if (pointer == 0) {
        return kInvalidValue;
    }
    *reinterpret_cast<Value*>(pointer) = value;
    return kSuccess;
}

int driver_version() {
    const char* text = std::getenv("RECORDER_DRIVER_VERSION");
    return text == nullptr ? RECORDER_CUDA_VERSION : std::atoi(text);
}

// What a stub returns. The arguments are taken as the ABI passes whole numbers and pointers; a
// function of fewer leaves the rest undefined, and they are not read.
int answer(const char* name, long a, long b, long c, long d, long e) {
    const auto is = [name](const char* other) { return std::strcmp(name, other) == 0; };
    if (is("cuInit") || is("cuCtxSetCurrent") || is("cuDevicePrimaryCtxRelease_v2")) {
        return kSuccess;
    }
    if (is("cuGetProcAddress")) {
        return look_up(reinterpret_cast<const char*>(a), reinterpret_cast<void**>(b),
                       static_cast<int>(c), static_cast<unsigned long>(d), nullptr);
    }
    if (is("cuGetProcAddress_v2")) {
        return look_up(reinterpret_cast<const char*>(a), reinterpret_cast<void**>(b),
                       static_cast<int>(c), static_cast<unsigned long>(d),
                       reinterpret_cast<int*>(e));
    }
    if (is("cuDriverGetVersion")) {
        return give(a, driver_version());
    }
    if (is("cuDeviceGetCount")) {
        return give(a, 1);
    }
    if (is("cuDeviceGet")) {
        return b == 0 ? give(a, 0) : 101;
    }
    if (is("cuDeviceGetName")) {
        std::snprintf(reinterpret_cast<char*>(a), static_cast<std::size_t>(b), "recorder");
        return kSuccess;
    }
    if (is("cuDeviceTotalMem_v2")) {
        return give(a, std::size_t{1} << 34);
    }
    if (is("cuDeviceGetAttribute")) {
        const int attribute = static_cast<int>(b);
        return give(a, attribute == kComputeCapabilityMajor   ? 9
                       : attribute == kComputeCapabilityMinor ? 0
                                                              : 1);
    }
    if (is("cuDeviceGetUuid") || is("cuDeviceGetUuid_v2")) {
        std::memset(reinterpret_cast<void*>(a), 0x5a, 16);
        return kSuccess;
    }
    if (is("cuDevicePrimaryCtxRetain")) {
        return give(a, 0x1000L);
    }
    if (is("cuDevicePrimaryCtxGetState")) {
        return give(b, 0) | give(c, 0);
    }
    if (is("cuCtxGetCurrent")) {
        return give(a, 0L);
    }
    if (is("cuCtxGetDevice")) {
        return give(a, 0);
    }
    if (is("cuGetErrorName") || is("cuGetErrorString")) {
        return give(b, "an error of the recording driver");
    }
    return kNotSupported;
}

}  // namespace

#define CX_NAME(name)                                                              \
    CX_STUB(name) {                                                                \
        recorder::record("call\t%s\t%s", #name,                                    \
                         recorder::owner_of(__builtin_return_address(0)).library); \
        return answer(#name, a, b, c, d, e);                                       \
    }
#define CX_LOOK_UP(base, version, family, name)
#include "names.inc"
#undef CX_NAME
#undef CX_LOOK_UP
