// SPDX-License-Identifier: Apache-2.0
// The register of memory the driver handed out or registered. Device memory is memory of this
// process. Has its own lock, since effects on the executor thread free memory too; no CUDA call,
// stream or copy here.
#pragma once

#include <cstddef>
#include <cstdint>

#include "driver.hpp"

struct CUmemPoolHandle_st {
    simgpu::Device* device = nullptr;
    bool is_default = false;
    std::uint64_t release_threshold = 0;  // bytes; kept for the program, nothing is cached
    std::map<int, int> switches;
    std::atomic<std::uint64_t> used{0};  // bytes
    std::atomic<std::uint64_t> used_high{0};
};

namespace simgpu {

enum class MemoryKind { kDevice, kManaged, kHost, kRegistered };

struct Allocation {
    std::byte* base = nullptr;
    std::size_t size = 0;  // bytes, as asked
    MemoryKind kind = MemoryKind::kDevice;
    unsigned flags = 0;  // of host memory
    CUcontext context = nullptr;
    Device* device = nullptr;
    CUmemoryPool pool = nullptr;
    std::uint64_t id = 0;  // never used again
};

// Bytes of memory of a device: its instance's part of SIMGPU_MEMORY_MIB, else of an H100's 80 GiB.
std::uint64_t total_memory(const Device& device);
// Bytes in use on a device by this process.
std::uint64_t used_memory(const Device& device);

// Allocates and registers. CUDA_ERROR_OUT_OF_MEMORY beyond the device's size or the host's.
CUresult allocate(CUcontext context, std::size_t size, MemoryKind kind, unsigned flags,
                  CUmemoryPool pool, Allocation* result);
CUresult register_host(CUcontext context, void* pointer, std::size_t size, unsigned flags);

// The allocation that holds `pointer`; false when none does.
bool find_allocation(const void* pointer, Allocation* result);
// Frees the allocation that begins at `pointer` and is of one of the two kinds; false when there is
// none.
bool free_allocation(const void* pointer, MemoryKind kind, MemoryKind other);
// Takes it out of the register, and leaves the memory (kRegistered).
bool unregister_host(const void* pointer);
void free_memory_of(CUcontext context);

inline std::byte* pointer_of(CUdeviceptr address) { return reinterpret_cast<std::byte*>(address); }
inline CUdeviceptr address_of(const void* pointer) {
    return reinterpret_cast<CUdeviceptr>(pointer);
}

}  // namespace simgpu
