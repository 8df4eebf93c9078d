// SPDX-License-Identifier: Apache-2.0
#include "shim/real_nccl.hpp"

#include <atomic>

#include "shim/callers.hpp"
#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace crossover {

namespace {

constexpr const char* kSoname = "libnccl.so.2";
// What tells an NCCL from a library that wraps some functions of one.
constexpr const char* kMark = "ncclGetVersion";

bool in_one_library(const void* one, const void* other) noexcept {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    const auto value = reinterpret_cast<std::uintptr_t>(other);
    return bounds_of(one, begin, end) && begin <= value && value < end;
}

// In the order in which the loader would have gone on behind us. `twin` is the name under which
// NCCL has the same function for those who wrap it.
void* linked_function(const char* name, const char* twin, const void* caller) noexcept {
    void* found = find_behind_us(name);
    // Another wrapper that got ours by a handle wants the library behind the handle, not itself.
    if (found != nullptr && function_beside(found, kMark) == nullptr &&
        in_one_library(found, caller)) {
        found = nullptr;
    }
    if (found == nullptr) {
        found = find_in_scope_of(caller, name, nullptr);
    }
    if (found == nullptr || in_one_library(found, caller)) {
        void* usual = find_in_loaded(kSoname, name);
        found = found == nullptr || function_beside(found, kMark) == nullptr ? usual : found;
    }
    if (found == nullptr) {
        return nullptr;
    }
    void* same = function_beside(found, twin);
    return same == nullptr ? found : same;
}

template <class Find>
bool fill(RealNccl& table, Find&& find) noexcept {
    bool any = false;
#define CX_NCCL(name)                                                            \
    table.name = reinterpret_cast<decltype(table.name)>(find(#name, "p" #name)); \
    any = any || table.name != nullptr;
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
    return any;
}

TablesOfCallers<RealNccl> callers;
RealNccl public_names;  // the weak ncclX symbols of libnccl.so.2, for look-ups by name
std::atomic<bool> public_known{false};

}  // namespace

const RealNccl* real_nccl(const void* caller) noexcept {
    const RealNccl* found = callers.find(caller, 0, [](RealNccl& table, const void* from) {
        return fill(table, [&](const char* name, const char* twin) {
            return linked_function(name, twin, from);
        });
    });
    if (found != nullptr) {
        return found;
    }
    // More callers than are remembered. Threads that meet here write the same.
    static RealNccl usual;
    return fill(usual, [](const char*, const char* twin) { return find_in_loaded(kSoname, twin); })
               ? &usual
               : nullptr;
}

void* wrapped_nccl_function(void* real) noexcept {
    if (real == nullptr) {
        return real;
    }
    if (!public_known.load(std::memory_order_acquire)) {
        if (!fill(public_names,
                  [](const char* name, const char*) { return find_in_loaded(kSoname, name); })) {
            return real;
        }
        public_known.store(true, std::memory_order_release);
    }
#define CX_NCCL(name)                                         \
    if (real == reinterpret_cast<void*>(public_names.name)) { \
        return reinterpret_cast<void*>(&::name);              \
    }
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
    return real;
}

bool nccl_has(const char* name) noexcept {
    return find_behind_us(name) != nullptr || find_in_loaded(kSoname, name) != nullptr;
}

}  // namespace crossover
