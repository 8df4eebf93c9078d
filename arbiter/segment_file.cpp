// SPDX-License-Identifier: Apache-2.0
// What is looked at in a segment's file before it is trusted, and how a new one gets its content
// and its name. See file.hpp.
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/resource.h>
#include <sys/syscall.h>

#include <cstddef>
#include <cstring>

#include "arbiter/file.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/segment_lock.hpp"
#include "arbiter/segment_memory.hpp"

namespace crossover {

Status status_of(int error) noexcept {
    switch (error) {
        case ENOENT:
            return Status::kNotFound;
        case ELOOP:
        case ENOTDIR:
        case EISDIR:
        case ENXIO:
            return Status::kForeign;
        case ENOSPC:
        case EDQUOT:
        case EFBIG:
            return Status::kNoSpace;
        case EACCES:
        case EPERM:
        case EROFS:
            return Status::kAccess;
        default:
            return Status::kSystem;
    }
}

Status check_file(const Folder& folder, const struct stat& file) noexcept {
    if (!S_ISREG(file.st_mode)) return Status::kForeign;
    if ((file.st_mode & S_IWOTH) != 0) return Status::kForeign;
    if (folder.group_shared) {
        return file.st_uid == geteuid() || file.st_gid == folder.group ? Status::kOk
                                                                       : Status::kForeign;
    }
    if (file.st_uid != geteuid()) return Status::kForeign;
    return (file.st_mode & S_IWGRP) != 0 ? Status::kForeign : Status::kOk;
}

Status check_head(int descriptor, const struct stat& file, Locator& locator) noexcept {
    static_assert(sizeof(Header) == sizeof(Locator));
    alignas(Header) std::byte bytes[sizeof(Header)];
    const ssize_t got = pread(descriptor, bytes, sizeof bytes, 0);
    if (got < 0) return status_of(errno);
    if (static_cast<std::size_t>(got) != sizeof bytes) return Status::kCorrupt;
    std::uint64_t magic = 0;
    std::uint32_t version = 0;
    std::memcpy(&magic, bytes + offsetof(Header, magic), sizeof magic);
    if (magic == kLocatorMagic) {
        std::memcpy(&locator, bytes, sizeof locator);
        const Status status = check_locator(locator);
        if (status == Status::kOk && file.st_size == sizeof(Locator)) return status;
        locator = Locator{};
        return status == Status::kOk ? Status::kCorrupt : status;
    }
    std::memcpy(&version, bytes + offsetof(Header, version), sizeof version);
    // A file gets its name when it is complete, so none is still being made.
    if (magic != kSegmentMagic || version == 0) return Status::kCorrupt;
    if (version != kLayoutVersion) return Status::kWrongVersion;
    return static_cast<std::uint64_t>(file.st_size) == sizeof(Segment) ? Status::kOk
                                                                       : Status::kCorrupt;
}

Status allocate(int descriptor, std::size_t bytes) noexcept {
    // Beyond its size limit the process would be killed by SIGXFSZ.
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < bytes) {
        return Status::kNoSpace;
    }
    int error = EINTR;
    for (int tries = 0; error == EINTR && tries < 100; ++tries) {
        error = posix_fallocate(descriptor, 0, static_cast<off_t>(bytes));
    }
    return error == 0 ? Status::kOk : status_of(error);
}

Status fill(Segment& segment, const DeviceUuid& device, std::uint64_t identity,
            std::uint64_t home) noexcept {
    segment.header.magic = kSegmentMagic;
    segment.header.total_bytes = sizeof(Segment);
    std::memcpy(segment.header.device_uuid, device.bytes, sizeof device.bytes);
    segment.header.boot = boot_identity();
    segment.header.identity = identity;
    segment.header.home = home;
    segment.arbitration.round = 1;
    // Turns are numbered from the clock on, so that none has the number of one in a segment that
    // this one replaces.
    segment.arbitration.turn.word.store(monotonic_ns() / 1000 << 16, std::memory_order_relaxed);
    if (!make_lock(segment.arbitration.lock)) return Status::kSystem;
    for (ClientSlot& client : segment.clients) {
        if (!make_lock(client.life)) return Status::kSystem;
    }
    segment.header.version.store(kLayoutVersion, std::memory_order_release);
    return Status::kOk;
}

int publish(const char* temporary, const char* path) noexcept {
#ifdef SYS_renameat2
    if (syscall(SYS_renameat2, AT_FDCWD, temporary, AT_FDCWD, path, 1U /* RENAME_NOREPLACE */) ==
        0) {
        return 0;
    }
    if (errno != EINVAL && errno != ENOSYS) return errno;
#endif
    if (link(temporary, path) != 0) return errno;
    unlink(temporary);
    return 0;
}

}  // namespace crossover
