// SPDX-License-Identifier: Apache-2.0
// The exported communicator management and memory functions of the virtual GPU's libnccl.
#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "device.hpp"
#include "group.hpp"
#include "report.hpp"

using namespace simgpu::nccl;

namespace {

constexpr unsigned int kConfigMagic = 0xcafebeef;

std::uint64_t key_of(const ncclUniqueId& id) {
    std::uint64_t key = 0;
    for (std::size_t at = 0; at < sizeof(id.internal); at += sizeof(key)) {
        std::uint64_t word = 0;
        std::memcpy(&word, id.internal + at, sizeof(word));
        key = mix(key, word);
    }
    return key;
}

// Whether calls block: the environment overrules the program, as in the vendor's library.
ncclResult_t read_config(const char* name, const ncclConfig_t* config, bool inherited,
                         bool* blocking) {
    *blocking = inherited;
    if (config) {
        if (config->magic != kConfigMagic) {
            return fail(ncclInvalidArgument,
                        "%s: configuration not made by NCCL_CONFIG_INITIALIZER", name);
        }
        if (config->blocking != NCCL_CONFIG_UNDEF_INT) {
            if (config->blocking != 0 && config->blocking != 1) {
                return fail(ncclInvalidArgument, "%s: blocking is %d (allowed: 0 or 1)", name,
                            config->blocking);
            }
            *blocking = config->blocking == 1;
        }
    }
    const char* const forced = std::getenv("NCCL_COMM_BLOCKING");
    if (forced && (std::strcmp(forced, "0") == 0 || std::strcmp(forced, "1") == 0)) {
        *blocking = forced[0] == '1';
    }
    return ncclSuccess;
}

// Runs `add` inside a group of its own, or in the program's.
template <typename Add>
ncclResult_t grouped(Add add) {
    group_start();
    const ncclResult_t result = add();
    if (result != ncclSuccess) {
        group_failed(result);
    }
    const ncclResult_t ended = group_end();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t init_rank(const char* name, ncclComm_t* out, int ranks, std::uint64_t key, int rank,
                       int device_index, const ncclConfig_t* config) {
    if (!out) {
        return group_failed(fail(ncclInvalidArgument, "%s: comm is NULL", name));
    }
    *out = nullptr;
    if (ranks < 1 || rank < 0 || rank >= ranks) {
        return group_failed(
            fail(ncclInvalidArgument, "%s: invalid rank %d of %d", name, rank, ranks));
    }
    bool blocking = true;
    const ncclResult_t checked = read_config(name, config, true, &blocking);
    if (checked != ncclSuccess) {
        return group_failed(checked);
    }
    return grouped([&] {
        const Comm comm = std::make_shared<ncclComm>(key, rank, ranks, device_index, blocking);
        publish(comm);
        *out = comm.get();
        group_add_job(comm, [comm] { return comm->join(); });
        return ncclSuccess;
    });
}

// The handle of a failed blocking initialisation does not reach the program.
ncclResult_t cleaned(ncclResult_t result, ncclComm_t* out) {
    if (result != ncclSuccess && result != ncclInProgress && out && *out && !in_group()) {
        withdraw(*out);
        *out = nullptr;
    }
    return result;
}

ncclResult_t init_on_current_device(const char* name, ncclComm_t* out, int ranks, std::uint64_t key,
                                    int rank, const ncclConfig_t* config) {
    int current = 0;
    ncclResult_t result = cuda_result(cudaGetDevice(&current), name);
    if (result == ncclSuccess && !device()) {
        result = ncclUnhandledCudaError;
    }
    if (result != ncclSuccess) {
        return group_failed(result);
    }
    return cleaned(init_rank(name, out, ranks, key, rank, current, config), out);
}

}  // namespace

SIMGPU_NCCL_API(ncclResult_t, ncclGetVersion, (int* version)) {
    if (!version) {
        return ncclInvalidArgument;
    }
    *version = NCCL_VERSION_CODE;
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclGetUniqueId, (ncclUniqueId * id)) {
    if (!id) {
        return fail(ncclInvalidArgument, "ncclGetUniqueId: uniqueId is NULL");
    }
    std::size_t filled = 0;
    while (filled < sizeof(id->internal)) {
        const ssize_t step = getrandom(id->internal + filled, sizeof(id->internal) - filled, 0);
        if (step < 0 && errno != EINTR) {
            return fail(ncclSystemError, "getrandom: %s", std::strerror(errno));
        }
        filled += step > 0 ? static_cast<std::size_t>(step) : 0;
    }
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommInitRankConfig,
                (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank, ncclConfig_t* config)) {
    return init_on_current_device("ncclCommInitRankConfig", comm, ranks, key_of(id), rank, config);
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommInitRank,
                (ncclComm_t * comm, int ranks, ncclUniqueId id, int rank)) {
    return init_on_current_device("ncclCommInitRank", comm, ranks, key_of(id), rank, nullptr);
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommInitRankScalable,
                (ncclComm_t * comm, int ranks, int rank, int id_count, ncclUniqueId* ids,
                 ncclConfig_t* config)) {
    if (id_count < 1 || id_count > ranks || !ids) {
        return group_failed(fail(ncclInvalidArgument,
                                 "ncclCommInitRankScalable: %d unique ids for %d ranks", id_count,
                                 ranks));
    }
    std::uint64_t key = key_of(ids[0]);
    for (int i = 1; i < id_count; ++i) {
        key = mix(key, key_of(ids[i]));
    }
    return init_on_current_device("ncclCommInitRankScalable", comm, ranks, key, rank, config);
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommInitAll,
                (ncclComm_t * comms, int count, const int* devices)) {
    const char* const name = "ncclCommInitAll";
    int available = 0;
    ncclResult_t result = cuda_result(cudaGetDeviceCount(&available), name);
    if (result != ncclSuccess) {
        return result;
    }
    if (!comms || count < 1) {
        return fail(ncclInvalidArgument, "%s: %d devices asked for", name, count);
    }
    std::vector<int> chosen;
    for (int i = 0; i < count; ++i) {
        const int index = devices ? devices[i] : i;
        if (index < 0 || index >= available) {
            return fail(ncclInvalidArgument, "%s: invalid device %d (allowed: 0 to %d)", name,
                        index, available - 1);
        }
        if (std::find(chosen.begin(), chosen.end(), index) != chosen.end()) {
            return fail(ncclInvalidUsage, "%s: device %d appears twice", name, index);
        }
        chosen.push_back(index);
    }
    ncclUniqueId id{};
    result = ncclGetUniqueId(&id);
    if (result != ncclSuccess || !device()) {
        return result != ncclSuccess ? result : ncclUnhandledCudaError;
    }
    result = grouped([&] {
        ncclResult_t added = ncclSuccess;
        for (int i = 0; i < count && added == ncclSuccess; ++i) {
            added = init_rank(name, &comms[i], count, key_of(id), i,
                              chosen[static_cast<std::size_t>(i)], nullptr);
        }
        return added;
    });
    for (int i = 0; i < count; ++i) {
        cleaned(result, &comms[i]);
    }
    return result;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommFinalize, (ncclComm_t handle)) {
    const Comm comm = find_comm(handle);
    if (!comm) {
        return fail(ncclInvalidArgument, "ncclCommFinalize: invalid communicator");
    }
    const ncclResult_t usable = comm->usable();
    if (usable != ncclSuccess) {
        return usable;
    }
    comm->finalize();
    if (comm->blocking()) {
        comm->drain();
        return ncclSuccess;
    }
    return grouped([&] {
        group_add_job(comm, [comm] { return comm->drain_operations(), ncclSuccess; });
        return ncclSuccess;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommDestroy, (ncclComm_t handle)) {
    if (!handle) {
        return ncclSuccess;
    }
    const Comm comm = find_comm(handle);
    if (!comm) {
        return fail(ncclInvalidArgument, "ncclCommDestroy: invalid communicator");
    }
    comm->drain();
    comm->leave();
    withdraw(handle);
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommAbort, (ncclComm_t handle)) {
    if (!handle) {
        return ncclSuccess;
    }
    const Comm comm = find_comm(handle);
    if (!comm) {
        return fail(ncclInvalidArgument, "ncclCommAbort: invalid communicator");
    }
    comm->revoke();
    comm->leave();
    withdraw(handle);
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommRevoke, (ncclComm_t handle, int flags)) {
    const Comm comm = find_comm(handle);
    if (!comm || flags != NCCL_REVOKE_DEFAULT) {
        return fail(ncclInvalidArgument, "ncclCommRevoke: invalid communicator or flags %d", flags);
    }
    comm->revoke();
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommSplit,
                (ncclComm_t handle, int color, int key, ncclComm_t* out, ncclConfig_t* config)) {
    const char* const name = "ncclCommSplit";
    const Comm parent = find_comm(handle);
    if (!parent || !out || (color < 0 && color != NCCL_SPLIT_NOCOLOR)) {
        return group_failed(fail(ncclInvalidArgument,
                                 "%s: invalid communicator, NULL newcomm or color %d", name,
                                 color));
    }
    *out = nullptr;
    ncclResult_t checked = parent->usable();
    bool blocking = true;
    if (checked == ncclSuccess) {
        checked = read_config(name, config, parent->blocking(), &blocking);
    }
    if (checked != ncclSuccess) {
        return group_failed(checked);
    }
    const std::uint64_t salt = parent->next_split();
    return grouped([&] {
        group_add_job(parent, [=] {
            std::vector<std::vector<int>> all;
            ncclResult_t result = parent->gather(salt, {color, key}, &all);
            if (result != ncclSuccess || color == NCCL_SPLIT_NOCOLOR) {
                return result;
            }
            std::vector<std::pair<int, int>> members;  // key, parent's rank
            for (int rank = 0; rank < parent->ranks(); ++rank) {
                const std::vector<int>& values = all[static_cast<std::size_t>(rank)];
                if (values[0] == color) {
                    members.emplace_back(values[1], rank);
                }
            }
            std::sort(members.begin(), members.end());
            const auto own =
                std::find(members.begin(), members.end(), std::pair(key, parent->rank()));
            const Comm child = std::make_shared<ncclComm>(
                mix(mix(parent->key(), salt), static_cast<std::uint64_t>(color) + 1),
                static_cast<int>(own - members.begin()), static_cast<int>(members.size()),
                parent->device(), blocking);
            result = child->join();
            if (result == ncclSuccess) {
                publish(child);
                *out = child.get();
            }
            return result;
        });
        return ncclSuccess;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommShrink,
                (ncclComm_t handle, int* excluded, int excluded_count, ncclComm_t* out,
                 ncclConfig_t* config, int flags)) {
    const char* const name = "ncclCommShrink";
    const Comm parent = find_comm(handle);
    if (!parent || !out || excluded_count < 1 || !excluded ||
        (flags != NCCL_SHRINK_DEFAULT && flags != NCCL_SHRINK_ABORT)) {
        return group_failed(fail(ncclInvalidArgument, "%s: invalid argument", name));
    }
    *out = nullptr;
    std::vector<int> gone(excluded, excluded + excluded_count);
    std::sort(gone.begin(), gone.end());
    gone.erase(std::unique(gone.begin(), gone.end()), gone.end());
    if (gone.front() < 0 || gone.back() >= parent->ranks() ||
        std::binary_search(gone.begin(), gone.end(), parent->rank())) {
        return group_failed(fail(ncclInvalidArgument, "%s: invalid list of excluded ranks", name));
    }
    bool blocking = true;
    const ncclResult_t checked = read_config(name, config, parent->blocking(), &blocking);
    if (checked != ncclSuccess) {
        return group_failed(checked);
    }
    if (flags == NCCL_SHRINK_ABORT) {
        parent->revoke();
    }
    std::uint64_t key = mix(mix(parent->key(), parent->next_split()), 0x736872696e6b2121);
    for (const int rank : gone) {
        key = mix(key, static_cast<std::uint64_t>(rank));
    }
    const auto before = std::lower_bound(gone.begin(), gone.end(), parent->rank()) - gone.begin();
    const int rank = parent->rank() - static_cast<int>(before);
    const int ranks = parent->ranks() - static_cast<int>(gone.size());
    return grouped([&] {
        const Comm child = std::make_shared<ncclComm>(key, rank, ranks, parent->device(), blocking);
        publish(child);
        *out = child.get();
        group_add_job(child, [child] { return child->join(); });
        return ncclSuccess;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommGetAsyncError, (ncclComm_t handle, ncclResult_t* error)) {
    const Comm comm = find_comm(handle);
    if (!comm || !error) {
        return fail(ncclInvalidArgument, "ncclCommGetAsyncError: invalid communicator or NULL");
    }
    *error = comm->async_result();
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommCount, (const ncclComm_t handle, int* count)) {
    const Comm comm = find_comm(handle);
    if (!comm || !count) {
        return fail(ncclInvalidArgument, "ncclCommCount: invalid communicator or NULL");
    }
    *count = comm->ranks();
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommCuDevice, (const ncclComm_t handle, int* index)) {
    const Comm comm = find_comm(handle);
    if (!comm || !index) {
        return fail(ncclInvalidArgument, "ncclCommCuDevice: invalid communicator or NULL");
    }
    *index = comm->device();
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommUserRank, (const ncclComm_t handle, int* rank)) {
    const Comm comm = find_comm(handle);
    if (!comm || !rank) {
        return fail(ncclInvalidArgument, "ncclCommUserRank: invalid communicator or NULL");
    }
    *rank = comm->rank();
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclMemAlloc, (void** pointer, size_t bytes)) {
    if (!pointer || bytes == 0) {
        return fail(ncclInvalidArgument, "ncclMemAlloc: NULL or no bytes");
    }
    return cuda_result(cudaMalloc(pointer, bytes), "ncclMemAlloc");
}

SIMGPU_NCCL_API(ncclResult_t, ncclMemFree, (void* pointer)) {
    return cuda_result(cudaFree(pointer), "ncclMemFree");
}

// Registration speeds up the real library; the model has nothing to speed up. The handle is the
// buffer itself.
SIMGPU_NCCL_API(ncclResult_t, ncclCommRegister,
                (const ncclComm_t handle, void* buffer, size_t bytes, void** registration)) {
    if (!find_comm(handle) || !buffer || bytes == 0 || !registration) {
        return fail(ncclInvalidArgument, "ncclCommRegister: invalid argument");
    }
    *registration = buffer;
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommDeregister, (const ncclComm_t handle, void*)) {
    return find_comm(handle)
               ? ncclSuccess
               : fail(ncclInvalidArgument, "ncclCommDeregister: invalid communicator");
}

// No window: what the real library answers where symmetric memory is not supported.
SIMGPU_NCCL_API(ncclResult_t, ncclCommWindowRegister,
                (ncclComm_t handle, void* buffer, size_t, ncclWindow_t* window, int)) {
    if (!find_comm(handle) || !buffer || !window) {
        return fail(ncclInvalidArgument, "ncclCommWindowRegister: invalid argument");
    }
    *window = nullptr;
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclCommWindowDeregister, (ncclComm_t handle, ncclWindow_t)) {
    return find_comm(handle)
               ? ncclSuccess
               : fail(ncclInvalidArgument, "ncclCommWindowDeregister: invalid communicator");
}

// NCCL_DEBUG is read once; like the real library's, this function no longer changes that.
SIMGPU_NCCL_API(void, ncclResetDebugInit, ()) {}
