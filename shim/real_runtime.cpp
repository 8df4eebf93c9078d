// SPDX-License-Identifier: Apache-2.0
#include "shim/real_runtime.hpp"

#include <array>
#include <atomic>
#include <cstring>

#include "shim/callers.hpp"
#include "shim/hooks/hooks_runtime.hpp"
#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace crossover {

constinit std::array<RuntimeCopy, kMaxRuntimeCopies> runtime_copies;
constinit TablesOfCallers<RealRuntime> runtime_callers;

namespace {

// What tells a runtime from a library that wraps some functions of one.
constexpr const char* kMark = "cudaRuntimeGetVersion";

struct Release {
    RuntimeWay way;
    const char* name;  // soname, and version of its symbols
};
constexpr Release kReleases[] = {
    // newest first
    {kVersion13, "libcudart.so.13"},
    {kVersion12, "libcudart.so.12"},
    {kVersion11, "libcudart.so.11.0"},
};

const char* version_of(RuntimeWay way) noexcept {
    for (const Release& release : kReleases) {
        if (release.way == way) {
            return release.name;
        }
    }
    return nullptr;
}

// The one a loaded runtime goes by its usual name; for callers whose own cannot be told.
void* function_by_soname(RuntimeWay way, const char* name) noexcept {
    for (const Release& release : kReleases) {
        if (way == kAnyVersion || way == release.way) {
            if (void* found = find_in_loaded(release.name, name)) {
                return found;
            }
        }
    }
    return nullptr;
}

// In the order in which the loader would have gone on behind us.
void* linked_function(RuntimeWay way, const char* name, const void* caller) noexcept {
    const char* version = version_of(way);
    void* found = find_behind_us(name);
    const bool is_other_wrapper = found != nullptr && function_beside(found, kMark) == nullptr;
    if (version != nullptr && !is_other_wrapper) {
        found = find_behind_us(name, version);
    }
    if (found == nullptr) {
        found = find_in_scope_of(caller, name, version);
        // Another wrapper that asked for the next one does not want itself.
        if (found != nullptr && function_beside(found, kMark) == nullptr) {
            found = nullptr;
        }
    }
    return found != nullptr ? found : function_by_soname(way, name);
}

template <class Find>
bool fill(RealRuntime& table, Find&& find) noexcept {
    bool any = false;
#define CX_RUNTIME(name, prototype)                                   \
    table.name = reinterpret_cast<decltype(table.name)>(find(#name)); \
    any = any || table.name != nullptr;
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
    return any;
}

std::atomic<unsigned> copies_claimed{0};

constexpr unsigned kNoCopy = kMaxRuntimeCopies;

// The number of the copy that `real` is a function of. Two threads that meet at a new one number it
// twice, which does no harm.
unsigned copy_of(const void* real) noexcept {
    std::uintptr_t begin = 0;
    std::uintptr_t end = 0;
    if (function_beside(real, kMark) == nullptr || !bounds_of(real, begin, end)) {
        return kNoCopy;
    }
    for (unsigned index = 0; index < kMaxRuntimeCopies; ++index) {
        if (runtime_copies[index].ready.load(std::memory_order_acquire) &&
            runtime_copies[index].begin == begin) {
            return index;
        }
    }
    if (copies_claimed.load(std::memory_order_relaxed) >= kMaxRuntimeCopies) {
        return kNoCopy;
    }
    const unsigned index = copies_claimed.fetch_add(1, std::memory_order_acq_rel);
    if (index >= kMaxRuntimeCopies) {
        return kNoCopy;
    }
    keep_loaded(real);
    runtime_copies[index].begin = begin;
    fill(runtime_copies[index].table,
         [&](const char* name) { return function_beside(real, name); });
    runtime_copies[index].ready.store(true, std::memory_order_release);
    return index;
}

#define CX_RUNTIME(name, prototype) +1
constexpr std::size_t kRows = 0
#include "shim/intercepts_runtime.def"
    ;
#undef CX_RUNTIME

// The wrappers of each copy, in the order of the rows.
void* const wrappers[kMaxRuntimeCopies][kRows] = {
#define CX_RUNTIME(name, prototype) reinterpret_cast<void*>(&CX_RUNTIME_NAME(name, 100)),
    {
#include "shim/intercepts_runtime.def"
    },
#undef CX_RUNTIME
#define CX_RUNTIME(name, prototype) reinterpret_cast<void*>(&CX_RUNTIME_NAME(name, 101)),
    {
#include "shim/intercepts_runtime.def"
    },
#undef CX_RUNTIME
#define CX_RUNTIME(name, prototype) reinterpret_cast<void*>(&CX_RUNTIME_NAME(name, 102)),
    {
#include "shim/intercepts_runtime.def"
    },
#undef CX_RUNTIME
#define CX_RUNTIME(name, prototype) reinterpret_cast<void*>(&CX_RUNTIME_NAME(name, 103)),
    {
#include "shim/intercepts_runtime.def"
    },
#undef CX_RUNTIME
};

}  // namespace

const RealRuntime* real_runtime(RuntimeWay way, const void* caller) noexcept {
    if (way >= kCopy0) {
        return &runtime_copies[way - kCopy0].table;
    }
    const RealRuntime* found =
        runtime_callers.find(caller, way, [way](RealRuntime& table, const void* from) {
            return fill(table, [&](const char* name) { return linked_function(way, name, from); });
        });
    if (found != nullptr) {
        return found;
    }
    // More callers than are remembered: what most of them use. Threads that meet write the same.
    static RealRuntime usual[kVersion13 + 1];
    return fill(usual[way], [way](const char* name) { return function_by_soname(way, name); })
               ? &usual[way]
               : nullptr;
}

void* wrapped_runtime_function(void* real) noexcept {
    const unsigned copy = real == nullptr || is_ours(real) ? kNoCopy : copy_of(real);
    if (copy == kNoCopy) {
        return real;
    }
    const RealRuntime& table = runtime_copies[copy].table;
    std::size_t row = 0;
#define CX_RUNTIME(name, prototype)                    \
    if (real == reinterpret_cast<void*>(table.name)) { \
        return wrappers[copy][row];                    \
    }                                                  \
    ++row;
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
    return real;
}

bool runtime_has(const char* name, const char* version) noexcept {
    void* behind = version == nullptr ? find_behind_us(name) : find_behind_us(name, version);
    if (behind != nullptr) {
        return true;
    }
    for (const Release& release : kReleases) {
        if ((version == nullptr || std::strcmp(version, release.name) == 0) &&
            find_in_loaded(release.name, name) != nullptr) {
            return true;
        }
    }
    return false;
}

}  // namespace crossover
