// SPDX-License-Identifier: Apache-2.0
// The private interface for libnccl: collective.h. The launches themselves are in launch_api.cpp.

#include "collective.h"

#include "driver.hpp"

namespace simgpu {
namespace {

// SIMGPU_OK when the driver can be used.
int usable(const Driver& d) {
    const CUresult alive = check_alive(d);
    if (alive == CUDA_SUCCESS || alive == CUDA_ERROR_NOT_PERMITTED) return SIMGPU_OK;
    return alive == CUDA_ERROR_NOT_INITIALIZED ? SIMGPU_NOT_INITIALIZED : SIMGPU_DEVICE_LOST;
}

// Both ways of leaving a communicator; nothing of this rank follows on the wire.
int leave(RequestKind kind, std::uint64_t comm, std::uint32_t rank) {
    Driver& d = driver();
    if (const int rc = usable(d); rc != SIMGPU_OK) return rc;
    const std::lock_guard lock(d.mutex);
    if (d.comms.erase({comm, rank}) == 0) return SIMGPU_INVALID;
    Request request;
    request.kind = kind;
    request.comm_key = comm;
    request.rank = rank;
    return d.connection->send({&request, 1}) ? SIMGPU_OK : SIMGPU_DEVICE_LOST;
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT int simgpuCommInit(uint64_t key, uint32_t rank, uint32_t ranks, int ordinal,
                                 uint64_t host, const volatile uint32_t* abort_flag,
                                 uint64_t* comm) {
    if (comm == nullptr || ranks == 0 || rank >= ranks) return SIMGPU_INVALID;
    Driver& d = driver();
    if (const int rc = usable(d); rc != SIMGPU_OK) return rc;
    const Device* const device = device_of(d, ordinal);
    if (device == nullptr) return SIMGPU_INVALID;
    try {
        switch (d.connection->join(key, rank, ranks, device->physical, host, abort_flag, comm)) {
            case CommStatus::kReady: {
                const std::lock_guard lock(d.mutex);
                d.comms.emplace(*comm, rank);
                return SIMGPU_OK;
            }
            case CommStatus::kDuplicateDevice:
                return SIMGPU_DUPLICATE_DEVICE;
            case CommStatus::kBadRank:
                return SIMGPU_BAD_RANK;
            case CommStatus::kAborted:
                return SIMGPU_ABORTED;
            case CommStatus::kLost:
                break;
        }
    } catch (...) {
        return SIMGPU_INVALID;  // out of memory
    }
    return SIMGPU_DEVICE_LOST;
}

SIMGPU_EXPORT int simgpuCommAbort(uint64_t comm, uint32_t rank) {
    return leave(RequestKind::kCommAbort, comm, rank);
}

SIMGPU_EXPORT int simgpuCommDestroy(uint64_t comm, uint32_t rank) {
    return leave(RequestKind::kCommDestroy, comm, rank);
}

SIMGPU_EXPORT const char* simgpuDataDirectory(void) {
    const Driver& d = driver();
    return d.initialized && !d.data_dir.empty() ? d.data_dir.c_str() : nullptr;
}

SIMGPU_EXPORT void* simgpuCollectiveFunction(const char* kernel_name) {
    if (kernel_name == nullptr || *kernel_name == '\0' || in_forked_child()) return nullptr;
    try {
        Driver& d = driver();
        const std::lock_guard lock(d.mutex);
        static auto* const functions = new std::map<std::string, std::unique_ptr<CUfunc_st>>;
        auto& function = (*functions)[kernel_name];
        if (!function) {
            function = std::make_unique<CUfunc_st>();
            function->name = kernel_name;
            function->collective = true;
            d.functions.insert(function.get());
        }
        return function.get();
    } catch (...) {
        return nullptr;
    }
}

SIMGPU_EXPORT int simgpuSameDevice(int a, int b) {
    const Driver& d = driver();
    if (!d.initialized) return -1;
    const Device* const first = device_of(d, a);
    const Device* const second = device_of(d, b);
    if (first == nullptr || second == nullptr) return -1;
    return first->physical == second->physical ? 1 : 0;
}
