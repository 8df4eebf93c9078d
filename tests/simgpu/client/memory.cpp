// SPDX-License-Identifier: Apache-2.0
// The register of memory: see memory.hpp. No exported function here.

#include "memory.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>

namespace simgpu {
namespace {

constexpr std::uint64_t kDefaultMemory = std::uint64_t{80} << 30;
constexpr std::size_t kAlignment = 512;  // of device memory, as on real devices
constexpr std::size_t kMapFrom = std::size_t{1}
                                 << 20;  // from here on pages that take no memory until touched

struct Register {
    std::mutex mutex;
    std::map<std::uintptr_t, Allocation> by_address;
    std::map<const Device*, std::uint64_t> used;
    std::uint64_t next_id = 1;
};

Register& memory_register() {
    static Register* const the_register = new Register;  // outlives every thread
    return *the_register;
}

std::uintptr_t number(const void* pointer) { return reinterpret_cast<std::uintptr_t>(pointer); }

std::size_t rounded(std::size_t size) { return (size + kAlignment - 1) / kAlignment * kAlignment; }

std::byte* take(std::size_t size) {
    if (size < kMapFrom) return static_cast<std::byte*>(std::aligned_alloc(kAlignment, size));
    void* pages = mmap(nullptr, size, PROT_READ | PROT_WRITE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    return pages == MAP_FAILED ? nullptr : static_cast<std::byte*>(pages);
}

void give_back(const Allocation& allocation) {
    if (allocation.kind == MemoryKind::kRegistered) return;
    const std::size_t size = rounded(allocation.size);
    if (size < kMapFrom) {
        std::free(allocation.base);
    } else {
        munmap(allocation.base, size);
    }
}

bool on_device(MemoryKind kind) {
    return kind == MemoryKind::kDevice || kind == MemoryKind::kManaged;
}

// The lock is held.
void account(Register& r, const Allocation& allocation, bool add) {
    if (!on_device(allocation.kind)) return;
    const std::uint64_t bytes = rounded(allocation.size);
    std::uint64_t& used = r.used[allocation.device];
    used = add ? used + bytes : used - bytes;
    if (allocation.pool == nullptr) return;
    if (add) {
        const std::uint64_t now = allocation.pool->used += bytes;
        allocation.pool->used_high = std::max(allocation.pool->used_high.load(), now);
    } else {
        allocation.pool->used -= bytes;
    }
}

std::uint64_t read_total_memory() {
    const char* text = std::getenv("SIMGPU_MEMORY_MIB");
    if (text == nullptr || *text == '\0') return kDefaultMemory;
    char* end = nullptr;
    const unsigned long long mib = std::strtoull(text, &end, 10);
    if (*text < '0' || *text > '9' || *end != '\0' || mib == 0 || mib > (1U << 30)) {
        std::fprintf(stderr, "simgpu: SIMGPU_MEMORY_MIB is '%s'; allowed: 1 to %u\n", text,
                     1U << 30);
        return kDefaultMemory;
    }
    return std::uint64_t{mib} << 20;
}

}  // namespace

std::uint64_t total_memory(const Device& device) {
    static const std::uint64_t bytes = read_total_memory();
    return bytes / std::max(1U, device.instances);
}

std::uint64_t used_memory(const Device& device) {
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    const auto found = r.used.find(&device);
    return found == r.used.end() ? 0 : found->second;
}

CUresult allocate(CUcontext context, std::size_t size, MemoryKind kind, unsigned flags,
                  CUmemoryPool pool, Allocation* result) {
    if (size == 0) return CUDA_ERROR_INVALID_VALUE;
    if (size > total_memory(pool != nullptr ? *pool->device : *context->device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    Allocation made;
    made.size = size;
    made.kind = kind;
    made.flags = flags;
    made.context = context;
    made.device = pool != nullptr ? pool->device : context->device;
    made.pool = pool;
    if (on_device(kind) && r.used[made.device] + rounded(size) > total_memory(*made.device))
        return CUDA_ERROR_OUT_OF_MEMORY;
    made.base = take(rounded(size));
    if (made.base == nullptr) return CUDA_ERROR_OUT_OF_MEMORY;
    made.id = r.next_id++;
    account(r, made, true);
    r.by_address.emplace(number(made.base), made);
    *result = made;
    return CUDA_SUCCESS;
}

CUresult register_host(CUcontext context, void* pointer, std::size_t size, unsigned flags) {
    if (pointer == nullptr || size == 0) return CUDA_ERROR_INVALID_VALUE;
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    const auto after = r.by_address.lower_bound(number(pointer) + size);
    if (after != r.by_address.begin()) {
        const Allocation& before = std::prev(after)->second;
        if (number(before.base) + before.size > number(pointer))
            return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
    }
    Allocation made;
    made.base = static_cast<std::byte*>(pointer);
    made.size = size;
    made.kind = MemoryKind::kRegistered;
    made.flags = flags;
    made.context = context;
    made.device = context->device;
    made.id = r.next_id++;
    r.by_address.emplace(number(pointer), made);
    return CUDA_SUCCESS;
}

bool find_allocation(const void* pointer, Allocation* result) {
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    auto found = r.by_address.upper_bound(number(pointer));
    if (found == r.by_address.begin()) return false;
    --found;
    if (number(pointer) - found->first >= found->second.size) return false;
    *result = found->second;
    return true;
}

bool free_allocation(const void* pointer, MemoryKind kind, MemoryKind other) {
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    const auto found = r.by_address.find(number(pointer));
    if (found == r.by_address.end() || (found->second.kind != kind && found->second.kind != other))
        return false;
    account(r, found->second, false);
    give_back(found->second);
    r.by_address.erase(found);
    return true;
}

bool unregister_host(const void* pointer) {
    return free_allocation(pointer, MemoryKind::kRegistered, MemoryKind::kRegistered);
}

void free_memory_of(CUcontext context) {
    Register& r = memory_register();
    const std::lock_guard lock(r.mutex);
    std::erase_if(r.by_address, [&](const auto& entry) {
        const Allocation& allocation = entry.second;
        if (allocation.context != context) return false;
        account(r, allocation, false);
        give_back(allocation);
        return true;
    });
}

}  // namespace simgpu
