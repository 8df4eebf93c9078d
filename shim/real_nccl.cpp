// SPDX-License-Identifier: Apache-2.0
#include "shim/real_nccl.hpp"

#include <atomic>

#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace crossover {

namespace {

constexpr const char* kSoname = "libnccl.so.2";

RealNccl table;
RealNccl public_names;  // the weak ncclX symbols, for look-ups by name
std::atomic<bool> resolved{false};

template <class Function>
void take(Function& function, const char* name) noexcept {
    function = reinterpret_cast<Function>(find_in_loaded(kSoname, name));
}

}  // namespace

const RealNccl* real_nccl() noexcept {
    if (!resolved.load(std::memory_order_acquire)) {
        if (find_in_loaded(kSoname, "ncclGetVersion") == nullptr) {
            return nullptr;
        }
#define CX_NCCL(name)                   \
    take(public_names.name, #name);     \
    take(table.name, "p" #name);        \
    if (table.name == nullptr) {        \
        table.name = public_names.name; \
    }
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
        resolved.store(true, std::memory_order_release);
    }
    return &table;
}

void* wrapped_nccl_function(void* real) noexcept {
    if (real == nullptr || real_nccl() == nullptr) {
        return real;
    }
#define CX_NCCL(name)                                         \
    if (real == reinterpret_cast<void*>(public_names.name)) { \
        return reinterpret_cast<void*>(&::name);              \
    }
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
    return real;
}

}  // namespace crossover
