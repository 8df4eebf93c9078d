// SPDX-License-Identifier: Apache-2.0
// Opening, making and mapping. Folder choice stands in folder.cpp. Boost's exceptions end here.
#include "arbiter/segment.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <cstring>
#include <new>

#include "arbiter/file.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/segment_lock.hpp"

namespace crossover {

namespace ipc = boost::interprocess;

struct MappedSegment::Region {
    ipc::mapped_region mapping;
    Region* next_kept = nullptr;
};

namespace {

// Boost's own file_mapping opens by path; what is mapped here must be the very file that was
// checked.
struct Mappable {
    int descriptor;
    ipc::mapping_handle_t get_mapping_handle() const {
        return ipc::ipcdetail::mapping_handle_from_file_handle(descriptor);
    }
};

constexpr int kRemovalTries = 20;  // a millisecond apart

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

void pause_briefly() noexcept {
    const timespec step{0, 1'000'000};
    nanosleep(&step, nullptr);
}

// Owner, type and mode of an opened segment file.
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

// What can be known before mapping: no byte behind the end of the file may ever be touched.
Status check_head(int descriptor, const struct stat& file) noexcept {
    alignas(Header) std::byte bytes[sizeof(Header)];
    const ssize_t got = pread(descriptor, bytes, sizeof bytes, 0);
    if (got < 0) return status_of(errno);
    if (static_cast<std::size_t>(got) != sizeof bytes) return Status::kCorrupt;
    std::uint64_t magic = 0;
    std::uint32_t version = 0;
    std::memcpy(&magic, bytes + offsetof(Header, magic), sizeof magic);
    std::memcpy(&version, bytes + offsetof(Header, version), sizeof version);
    // A file gets its name when it is complete, so none is still being made.
    if (magic != kSegmentMagic || version == 0) return Status::kCorrupt;
    if (version != kLayoutVersion) return Status::kWrongVersion;
    return static_cast<std::uint64_t>(file.st_size) == sizeof(Segment) ? Status::kOk
                                                                       : Status::kCorrupt;
}

Status allocate(int descriptor) noexcept {
    // Beyond its size limit the process would be killed by SIGXFSZ.
    rlimit limit{};
    if (getrlimit(RLIMIT_FSIZE, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY &&
        limit.rlim_cur < sizeof(Segment)) {
        return Status::kNoSpace;
    }
    int error = EINTR;
    for (int tries = 0; error == EINTR && tries < 100; ++tries) {
        error = posix_fallocate(descriptor, 0, sizeof(Segment));
    }
    return error == 0 ? Status::kOk : status_of(error);
}

Status fill(Segment& segment, const DeviceUuid& device) noexcept {
    segment.header.magic = kSegmentMagic;
    segment.header.total_bytes = sizeof(Segment);
    std::memcpy(segment.header.device_uuid, device.bytes, sizeof device.bytes);
    segment.header.boot = boot_identity();
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

// Gives the complete file its name unless the name is taken (EEXIST).
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

}  // namespace

struct SegmentOpener {
    const Folder& folder;
    const DeviceUuid& device;
    MappedSegment& out;

    static std::unique_ptr<MappedSegment::Region> map_file(int descriptor, bool writable) noexcept {
        try {
            auto region = std::make_unique<MappedSegment::Region>();
            region->mapping =
                ipc::mapped_region(Mappable{descriptor},
                                   writable ? ipc::read_write : ipc::read_only, 0, sizeof(Segment));
            return region;
        } catch (...) {
            return nullptr;
        }
    }

    bool set_path(const char* path) const noexcept {
        out.reset();
        const std::size_t length = std::strlen(path);
        if (length >= sizeof out.path_) return false;
        std::memcpy(out.path_, path, length + 1);
        return true;
    }

    Status open_existing(bool writable) const noexcept {
        const UniqueDescriptor file(
            open(out.path_, (writable ? O_RDWR : O_RDONLY) | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        if (file.get() < 0) return status_of(errno);
        struct stat info {};
        if (fstat(file.get(), &info) != 0) return status_of(errno);
        if (const Status status = check_file(folder, info); status != Status::kOk) return status;
        const Status status = check_head(file.get(), info);
        const bool replaceable = status == Status::kCorrupt && writable;
        if (status != Status::kOk && !replaceable) return status;
        std::unique_ptr<MappedSegment::Region> region;
        if (static_cast<std::uint64_t>(info.st_size) >= sizeof(Segment)) {
            region = map_file(file.get(), writable);
            if (region == nullptr) return Status::kSystem;
        }
        take(std::move(region), writable, info);
        return status;
    }

    // kOk: made, mapped and named. kNotReady: somebody else was first.
    Status create() const noexcept {
        static std::atomic<std::uint32_t> counter{0};
        char temporary[sizeof out.path_ + 64];
        snprintf(temporary, sizeof temporary, "%s.%ld.%llu.%u.tmp", out.path_,
                 static_cast<long>(getpid()), static_cast<unsigned long long>(monotonic_ns()),
                 counter.fetch_add(1, std::memory_order_relaxed));
        const UniqueDescriptor file(
            open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (file.get() < 0) return status_of(errno);
        const Status status = build(file.get(), temporary);
        if (status != Status::kOk) unlink(temporary);
        return status;
    }

    Status build(int file, const char* temporary) const noexcept {
        struct stat info {};
        if (fstat(file, &info) != 0) return status_of(errno);
        if (folder.group_shared && info.st_gid != folder.group &&
            fchown(file, static_cast<uid_t>(-1), folder.group) != 0) {
            return status_of(errno);
        }
        if (fchmod(file, folder.file_mode) != 0) return status_of(errno);
        if (const Status status = allocate(file); status != Status::kOk) return status;
        std::unique_ptr<MappedSegment::Region> region = map_file(file, true);
        if (region == nullptr) return Status::kSystem;
        auto* segment = new (region->mapping.get_address()) Segment;
        if (const Status status = fill(*segment, device); status != Status::kOk) return status;
        if (const int error = publish(temporary, out.path_); error != 0) {
            return error == EEXIST ? Status::kNotReady : status_of(error);
        }
        take(std::move(region), true, info);
        return Status::kOk;
    }

    void take(std::unique_ptr<MappedSegment::Region> region, bool writable,
              const struct stat& info) const noexcept {
        out.region_ = std::move(region);
        out.writable_ = writable;
        out.device_ = info.st_dev;
        out.inode_ = info.st_ino;
    }

    // A file that outlived a restart of the machine: its locks may be held by nobody. Who has it
    // open already sees the mark.
    bool replaced_after_restart() const noexcept {
        Header& header = out.get()->header;
        const std::uint64_t boot = boot_identity();
        if (boot == 0 || header.boot == 0 || header.boot == boot) return false;
        SegmentEnd in_use = SegmentEnd::kInUse;
        header.end.compare_exchange_strong(in_use, SegmentEnd::kLeft);
        remove_name(out);
        out.reset();
        return true;
    }

    Status open_or_create(std::uint64_t deadline_ns) const noexcept {
        for (;;) {
            Status status = open_existing(true);
            if (status == Status::kOk && !replaced_after_restart()) return status;
            if (status == Status::kNotFound) {
                remove_stale_temporaries(folder.path);
                status = create();
                if (status == Status::kOk) return status;
                // kNotReady: the name has been taken meanwhile.
            }
            if (status != Status::kNotReady && status != Status::kOk) return status;
            if (monotonic_ns() >= deadline_ns) return Status::kNotReady;
            pause_briefly();
        }
    }
};

MappedSegment::MappedSegment() noexcept = default;
MappedSegment::~MappedSegment() = default;
MappedSegment::MappedSegment(MappedSegment&& other) noexcept = default;
MappedSegment& MappedSegment::operator=(MappedSegment&& other) noexcept = default;

Segment* MappedSegment::get() const noexcept {
    return region_ != nullptr && writable_ ? static_cast<Segment*>(region_->mapping.get_address())
                                           : nullptr;
}

const Segment* MappedSegment::view() const noexcept {
    return region_ != nullptr ? static_cast<const Segment*>(region_->mapping.get_address())
                              : nullptr;
}

void MappedSegment::leak() noexcept {
    // Reachable, so that it is kept rather than lost.
    static std::atomic<Region*> kept{nullptr};
    Region* region = region_.release();
    if (region == nullptr) return;
    region->next_kept = kept.load(std::memory_order_relaxed);
    while (!kept.compare_exchange_weak(region->next_kept, region)) {
    }
}

void MappedSegment::reset() noexcept { region_.reset(); }

void MappedSegment::blank() const noexcept {
    if (region_ == nullptr) return;
    mmap(region_->mapping.get_address(), region_->mapping.get_size(),
         PROT_READ | (writable_ ? PROT_WRITE : 0), MAP_FIXED | MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
}

bool MappedSegment::is(const struct stat& file) const noexcept {
    return file.st_dev == device_ && file.st_ino == inode_;
}

bool MappedSegment::lost_name() const noexcept {
    struct stat info {};
    if (lstat(path_, &info) == 0) return info.st_dev == device_ && info.st_ino != inode_;
    if (errno != ENOENT) return false;
    char folder[sizeof path_];
    std::memcpy(folder, path_, sizeof folder);
    char* const slash = std::strrchr(folder, '/');
    if (slash == nullptr) return false;
    *slash = '\0';
    return lstat(folder, &info) == 0 && info.st_dev == device_;
}

bool MappedSegment::is_named() const noexcept {
    struct stat info {};
    return lstat(path_, &info) == 0 && is(info);
}

Status open_or_create(const Folder& folder, const DeviceUuid& device, std::uint64_t deadline_ns,
                      MappedSegment& segment) noexcept {
    char uuid[kUuidTextBytes];
    format_uuid(device, uuid);
    char path[sizeof folder.path + kUuidTextBytes + 16];
    snprintf(path, sizeof path, "%s/%s.v%u", folder.path, uuid, kLayoutVersion);
    const SegmentOpener opener{folder, device, segment};
    return opener.set_path(path) ? opener.open_or_create(deadline_ns) : Status::kSystem;
}

Status open_read_only(const Folder& folder, const char* path, MappedSegment& segment) noexcept {
    const SegmentOpener opener{folder, {}, segment};
    return opener.set_path(path) ? opener.open_existing(false) : Status::kSystem;
}

Status remove_name(const MappedSegment& segment) noexcept {
    for (int tries = 0; tries < kRemovalTries; ++tries) {
        if (!segment.is_named()) return Status::kOk;
        const UniqueDescriptor file(
            open(segment.path(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
        if (file.get() < 0) {
            if (errno == ENOENT) return Status::kOk;
            return status_of(errno);
        }
        struct stat info {};
        if (fstat(file.get(), &info) != 0) return status_of(errno);
        if (!segment.is(info)) return Status::kOk;
        // Where the file system has no such locks, the moment between look and removal is the risk.
        if (flock(file.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
            pause_briefly();
            continue;
        }
        if (!segment.is_named()) return Status::kOk;
        return unlink(segment.path()) == 0 || errno == ENOENT ? Status::kOk : status_of(errno);
    }
    return Status::kNotReady;
}

}  // namespace crossover
