// SPDX-License-Identifier: Apache-2.0
// See segment_memory.hpp. Boost's exceptions end here.
#include "arbiter/segment_memory.hpp"

#include <errno.h>
#include <signal.h>
#include <sys/shm.h>
#include <sys/stat.h>
#include <unistd.h>

#include <boost/interprocess/xsi_shared_memory.hpp>
#include <cstddef>
#include <cstring>

#include "arbiter/file.hpp"
#include "arbiter/hash.hpp"

namespace crossover {

namespace ipc = boost::interprocess;

namespace {

// What the headers offer to Linux programs only with all extensions on.
constexpr int kShmStat = 13;
constexpr int kShmInfo = 14;

bool map(int memory, bool writable, ipc::mapped_region& mapping) noexcept {
    try {
        const ipc::xsi_shared_memory shared(ipc::open_only, memory);
        ipc::mapped_region(shared, writable ? ipc::read_write : ipc::read_only).swap(mapping);
        return true;
    } catch (const ipc::interprocess_exception& refused) {
        errno = refused.get_native_error();
    } catch (...) {
        errno = ENOMEM;
    }
    return false;
}

bool trusted(const Folder& folder, const shmid_ds& info) noexcept {
    const unsigned mode = info.shm_perm.mode;
    if ((mode & S_IWOTH) != 0) return false;
    if (folder.group_shared) {
        return info.shm_perm.uid == geteuid() || info.shm_perm.gid == folder.group;
    }
    return info.shm_perm.uid == geteuid() && (mode & S_IWGRP) == 0;
}

// Made, and then its maker died before it had it mapped: nothing would ever remove it.
bool abandoned(const shmid_ds& info) noexcept {
    return info.shm_perm.cuid == geteuid() && info.shm_nattch == 0 && info.shm_atime == 0 &&
           kill(info.shm_cpid, 0) != 0 && errno == ESRCH;
}

std::uint64_t check_of(const Locator& locator) noexcept {
    return hash_bytes(reinterpret_cast<const char*>(&locator), offsetof(Locator, check));
}

}  // namespace

std::uint64_t ipc_namespace() noexcept {
    struct stat info {};
    return stat("/proc/self/ns/ipc", &info) == 0 ? info.st_ino : 0;
}

Status make_memory(const Folder& folder, ipc::mapped_region& mapping, int& memory) noexcept {
    memory = shmget(IPC_PRIVATE, sizeof(Segment), static_cast<int>(folder.file_mode));
    if (memory < 0) return Status::kSystem;
    bool made = map(memory, true, mapping);
    // The pages are taken now, not at the first touch in the middle of a run.
    if (made) std::memset(mapping.get_address(), 0, sizeof(Segment));
    shmid_ds info{};
    if (made && folder.group_shared) {
        made = shmctl(memory, IPC_STAT, &info) == 0;
        info.shm_perm.gid = folder.group;
        made = made && shmctl(memory, IPC_SET, &info) == 0;
    }
    return shmctl(memory, IPC_RMID, nullptr) == 0 && made ? Status::kOk : Status::kSystem;
}

Status map_memory(const Folder& folder, const Locator& locator, bool writable,
                  ipc::mapped_region& mapping) noexcept {
    const std::uint64_t here = ipc_namespace();
    const std::uint64_t boot = boot_identity();
    if (boot != 0 && locator.boot != 0 && boot != locator.boot) return Status::kNotFound;
    if (here != 0 && locator.ipc_namespace != 0 && here != locator.ipc_namespace) {
        return Status::kElsewhere;
    }
    shmid_ds info{};
    if (shmctl(locator.memory, IPC_STAT, &info) != 0) {
        return errno == EINVAL || errno == EIDRM ? Status::kNotFound : Status::kElsewhere;
    }
    if (info.shm_segsz != sizeof(Segment)) return Status::kNotFound;
    if (!trusted(folder, info)) return Status::kForeign;
    if (!map(locator.memory, writable, mapping)) {
        if (errno == EINVAL || errno == EIDRM) return Status::kNotFound;
        return errno == ENOMEM ? Status::kSystem : Status::kElsewhere;
    }
    const auto* segment = static_cast<const Segment*>(mapping.get_address());
    if (segment->header.identity == locator.identity) return Status::kOk;
    ipc::mapped_region().swap(mapping);
    return Status::kNotFound;
}

Status find_memory(const Folder& folder, const DeviceUuid& device, ipc::mapped_region& mapping,
                   int& memory) noexcept {
    shmid_ds info{};
    const int last = shmctl(0, kShmInfo, &info);
    for (int index = 0; index <= last; ++index) {
        memory = shmctl(index, kShmStat, &info);
        if (memory < 0 || info.shm_segsz != sizeof(Segment) || !trusted(folder, info)) continue;
        if (info.shm_nattch == 0) {
            if (abandoned(info)) shmctl(memory, IPC_RMID, nullptr);
            continue;
        }
        if (!map(memory, true, mapping)) continue;
        const auto& header = static_cast<const Segment*>(mapping.get_address())->header;
        if (header.version.load(std::memory_order_acquire) == kLayoutVersion &&
            header.magic == kSegmentMagic && header.home == folder.identity &&
            std::memcmp(header.device_uuid, device.bytes, sizeof device.bytes) == 0 &&
            header.end.load(std::memory_order_acquire) == SegmentEnd::kInUse) {
            return Status::kOk;
        }
        ipc::mapped_region().swap(mapping);
    }
    return Status::kNotFound;
}

Locator locator_of(const Segment& segment, int memory) noexcept {
    Locator locator{};
    locator.magic = kLocatorMagic;
    locator.version = kLayoutVersion;
    locator.memory = memory;
    locator.identity = segment.header.identity;
    locator.ipc_namespace = ipc_namespace();
    locator.boot = segment.header.boot;
    std::memcpy(locator.device_uuid, segment.header.device_uuid, sizeof locator.device_uuid);
    locator.check = check_of(locator);
    return locator;
}

Status check_locator(const Locator& locator) noexcept {
    // The checksum first: a version in a locator that was overwritten says nothing.
    if (locator.magic != kLocatorMagic || locator.check != check_of(locator) ||
        locator.version == 0 || locator.identity == 0) {
        return Status::kCorrupt;
    }
    return locator.version == kLayoutVersion ? Status::kOk : Status::kWrongVersion;
}

bool read_locator(int file, Locator& locator) noexcept {
    std::byte bytes[sizeof(Locator) + 1];
    if (pread(file, bytes, sizeof bytes, 0) != sizeof(Locator)) return false;
    std::memcpy(&locator, bytes, sizeof locator);
    return check_locator(locator) == Status::kOk;
}

}  // namespace crossover
