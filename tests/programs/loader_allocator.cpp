// SPDX-License-Identifier: Apache-2.0
// An allocator of the kind that is preloaded: asks dlsym for the next malloc, and the environment,
// from inside malloc, and counts. While it finds the next one it serves from a block of its own.
#include <dlfcn.h>

#include <atomic>
#include <cstddef>
#include <cstdlib>

namespace {

using Malloc = void* (*)(std::size_t);

std::atomic<unsigned long> calls{0};
thread_local int depth = 0;
alignas(16) char early[1 << 16];
std::atomic<std::size_t> early_used{0};

}  // namespace

extern "C" [[gnu::visibility("default")]] unsigned long loader_allocations() {
    return calls.load();
}

extern "C" [[gnu::visibility("default")]] void* malloc(std::size_t bytes) {
    calls.fetch_add(1);
    if (depth != 0) {
        const std::size_t at = early_used.fetch_add((bytes + 15) & ~std::size_t{15});
        return at + bytes <= sizeof early ? early + at : nullptr;
    }
    ++depth;
    // Each time: whoever allocates in dlsym comes back here without end.
    const auto next = reinterpret_cast<Malloc>(dlsym(RTLD_NEXT, "malloc"));
    if (std::getenv("LOADER_ALLOCATOR_FAILS") != nullptr) {
        --depth;
        return nullptr;
    }
    void* block = next(bytes);
    --depth;
    return block;
}

extern "C" [[gnu::visibility("default")]] void free(void* block) {
    if (block >= early && block < early + sizeof early) {
        return;
    }
    static const auto next = reinterpret_cast<void (*)(void*)>(dlsym(RTLD_NEXT, "free"));
    next(block);
}
