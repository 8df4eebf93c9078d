// SPDX-License-Identifier: Apache-2.0
#include "shim/real_driver.hpp"

#include <atomic>
#include <cstring>

#include "shim/hooks/hooks_driver.hpp"
#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace crossover {

namespace {

constexpr const char* kSoname = "libcuda.so.1";

struct Row {
    const char* name;
    void* wrapper;
    std::atomic<void*> real;
};

Row rows[] = {
#define CX_DRIVER(name, prototype) {#name, reinterpret_cast<void*>(&::name), {nullptr}},
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
};

RealDriver table;
std::atomic<bool> resolved{false};

template <class Function>
void take(Function& function, const char* name, const char* older = nullptr) noexcept {
    void* found = find_in_loaded(kSoname, name);
    if (found == nullptr && older != nullptr) {
        found = find_in_loaded(kSoname, older);
    }
    function = reinterpret_cast<Function>(found);
}

// Threads that meet here write the same values.
void resolve() noexcept {
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
    take(table.event_create, "cuEventCreate");
    take(table.event_query, "cuEventQuery");
    take(table.event_elapsed, "cuEventElapsedTime_v2", "cuEventElapsedTime");
    take(table.exchange_capture_mode, "cuThreadExchangeStreamCaptureMode");
    take(table.func_get_name, "cuFuncGetName");
    take(table.kernel_get_name, "cuKernelGetName");
}

}  // namespace

const RealDriver* real_driver() noexcept {
    if (!resolved.load(std::memory_order_acquire)) {
        if (find_in_loaded(kSoname, "cuInit") == nullptr) {
            return nullptr;
        }
        resolve();
        resolved.store(true, std::memory_order_release);
    }
    return &table;
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
    if (function != real || real == nullptr || symbol == nullptr) {
        return function;
    }
    for (const Row& row : rows) {
        if (row.wrapper == real) {
            return real;  // ours already
        }
    }
    // Only functions with one ABI for ever may go by name; a row with a version suffix never
    // matches here.
    constexpr const char* kSuffix = "_ptsz";
    const std::size_t length = std::strlen(symbol);
    for (const Row& row : rows) {
        if (std::strncmp(row.name, symbol, length) != 0 ||
            row.real.load(std::memory_order_acquire) == nullptr) {
            continue;
        }
        const char* rest = row.name + length;
        if (std::strncmp(symbol, "cuGetProcAddress", length) != 0 &&
            (per_thread ? std::strcmp(rest, kSuffix) == 0 : *rest == '\0')) {
            return row.wrapper;
        }
    }
    return real;
}

}  // namespace crossover
