// SPDX-License-Identifier: Apache-2.0
#include "shim/real_driver.hpp"

#include <cstring>

#include "shim/hooks/hooks_driver.hpp"
#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace crossover {

constinit RealDriver real_driver_table;
constinit std::atomic<bool> real_driver_resolved{false};

namespace {

constexpr const char* kSoname = "libcuda.so.1";

struct Row {
    const char* name;
    void* wrapper;
    std::atomic<void*> real;
    std::atomic<void*> other;  // by cuGetProcAddress, where that gives another one
};

Row rows[] = {
#define CX_DRIVER(name, prototype) {#name, reinterpret_cast<void*>(&::name), {nullptr}, {nullptr}},
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
};

template <class Function>
void take(Function& function, const char* name, const char* older = nullptr) noexcept {
    void* found = find_in_loaded(kSoname, name);
    if (found == nullptr && older != nullptr) {
        found = find_in_loaded(kSoname, older);
    }
    // Launches read it at any time (hooks/launch_scope.hpp).
    __atomic_store_n(&function, reinterpret_cast<Function>(found), __ATOMIC_RELAXED);
}

// Threads that meet here write the same values.
void resolve() noexcept {
    RealDriver& table = real_driver_table;
    std::size_t row = 0;
#define CX_DRIVER(name, prototype) \
    take(table.name, #name);       \
    rows[row++].real.store(reinterpret_cast<void*>(table.name), std::memory_order_release);
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
    take(table.ctx_get_current, "cuCtxGetCurrent");
    take(table.ctx_set_current, "cuCtxSetCurrent");
    take(table.ctx_get_device, "cuCtxGetDevice");
    take(table.device_get_uuid, "cuDeviceGetUuid_v2", "cuDeviceGetUuid");
    take(table.stream_get_flags, "cuStreamGetFlags");
    take(table.stream_get_ctx, "cuStreamGetCtx");
    take(table.stream_is_capturing, "cuStreamIsCapturing");
    take(table.stream_get_capture, "cuStreamGetCaptureInfo");
    take(table.event_create, "cuEventCreate");
    take(table.event_query, "cuEventQuery");
    take(table.event_elapsed, "cuEventElapsedTime_v2", "cuEventElapsedTime");
    take(table.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    take(table.func_get_name, "cuFuncGetName");
    take(table.kernel_get_name, "cuKernelGetName");
    take(table.stream_batch_mem_op, "cuStreamBatchMemOp_v2");
    take(table.mem_host_register, "cuMemHostRegister_v2");
    take(table.mem_host_device_pointer, "cuMemHostGetDevicePointer_v2");
    take(table.device_get_attribute, "cuDeviceGetAttribute");
}

// Whether a row is the first form of `symbol` (no version in its name), of the family asked for.
bool is_first_form(const char* name, const char* symbol, bool per_thread) noexcept {
    const std::size_t length = std::strlen(symbol);
    return std::strncmp(name, symbol, length) == 0 &&
           std::strcmp(name + length, per_thread ? "_ptsz" : "") == 0;
}

// A driver may give another address by cuGetProcAddress than by dlsym. Which one it gives for the
// first form is what it gives to a program of the oldest release that it knows the symbol for: a
// later form of the same name has another signature, and must not be taken for it.
void* other_address(Row& row, const char* symbol, bool per_thread) noexcept {
    constexpr int kReleases[] = {2000,  3000,  3020,  4000,  4010,  5000,  5050,  6000,  6050,
                                 7000,  7050,  8000,  9000,  9020,  10000, 10010, 10020, 11000,
                                 11010, 11020, 11030, 11040, 11050, 11060, 11070, 11080, 12000,
                                 12010, 12020, 12030, 12040, 12050, 12060, 12080, 12090, 13000};
    void* known = row.other.load(std::memory_order_acquire);
    if (known != nullptr || row.real.load(std::memory_order_acquire) == nullptr) {
        return known;
    }
    const RealDriver& table = real_driver_table;
    const cuuint64_t flags = per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                        : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    for (const int release : kReleases) {
        CUresult result = CUDA_ERROR_NOT_FOUND;
        if (table.cuGetProcAddress_v2 != nullptr) {
            result = table.cuGetProcAddress_v2(symbol, &known, release, flags, nullptr);
        } else if (table.cuGetProcAddress != nullptr) {
            result = table.cuGetProcAddress(symbol, &known, release, flags);
        }
        if (result == CUDA_SUCCESS && known != nullptr) {
            row.other.store(known, std::memory_order_release);
            return known;
        }
    }
    return nullptr;
}

}  // namespace

const RealDriver* resolve_real_driver() noexcept {
    if (find_in_loaded(kSoname, "cuInit") == nullptr) {
        return nullptr;
    }
    resolve();
    real_driver_resolved.store(true, std::memory_order_release);
    return &real_driver_table;
}

void* wrapped_driver_function(void* real) noexcept {
    if (real == nullptr || real_driver() == nullptr) {
        return real;
    }
    for (const Row& row : rows) {
        if (row.real.load(std::memory_order_acquire) == real) {
            return row.wrapper;
        }
    }
    return real;
}

void* wrapped_driver_function(void* real, const char* symbol, bool per_thread) noexcept {
    void* function = wrapped_driver_function(real);
    if (function != real || real == nullptr || symbol == nullptr || is_ours(real)) {
        return function;
    }
    for (Row& row : rows) {
        if (is_first_form(row.name, symbol, per_thread) &&
            other_address(row, symbol, per_thread) == real) {
            return row.wrapper;
        }
    }
    return real;
}

bool driver_has(const char* name) noexcept {
    if (real_driver() == nullptr) {
        return false;
    }
    for (const Row& row : rows) {
        if (std::strcmp(row.name, name) == 0) {
            return row.real.load(std::memory_order_acquire) != nullptr;
        }
    }
    return false;
}

}  // namespace crossover
