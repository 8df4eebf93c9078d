// SPDX-License-Identifier: Apache-2.0
// Opening, making and naming, of segments that are memory behind a locator and of such that are
// files. Folder choice stands in folder.cpp, System V memory in segment_memory.cpp. Boost's
// exceptions end here.
#include "arbiter/segment.hpp"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <boost/interprocess/mapped_region.hpp>
#include <cstring>
#include <new>

#include "arbiter/file.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/hash.hpp"
#include "arbiter/segment_memory.hpp"

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
constexpr int kLookFlags = O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK;

void pause_briefly() noexcept {
    const timespec step{0, 1'000'000};
    nanosleep(&step, nullptr);
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
        Locator locator{};
        const Status status = check_head(file.get(), info, locator);
        if (locator.identity != 0) return open_memory(locator, writable, info);
        const bool replaceable = status == Status::kCorrupt;
        if (status != Status::kOk && !replaceable) return status;
        std::unique_ptr<MappedSegment::Region> region;
        if (static_cast<std::uint64_t>(info.st_size) >= sizeof(Segment) &&
            (writable || !replaceable)) {
            region = map_file(file.get(), writable);
            if (region == nullptr) return Status::kSystem;
        }
        take(std::move(region), writable, info);
        return status;
    }

    // Unless kOk, only the file that leads nowhere is taken, so that its name can be removed.
    Status open_memory(const Locator& locator, bool writable,
                       const struct stat& info) const noexcept {
        std::unique_ptr<MappedSegment::Region> region(new (std::nothrow) MappedSegment::Region);
        if (region == nullptr) return Status::kSystem;
        const Status status = map_memory(folder, locator, writable, region->mapping);
        if (status != Status::kOk) region.reset();
        take(std::move(region), writable, info);
        if (status == Status::kOk) take_memory(locator.memory);
        return status;
    }

    void take_memory(int memory) const noexcept {
        out.memory_ = memory;
        out.identity_ = out.view()->header.identity;
    }

    // kOk: made, mapped and named. kNotReady: somebody else was first.
    Status create(bool in_file) const noexcept {
        if (!in_file) {
            const Status status = create_in_memory();
            if (status != Status::kSystem) return status;
        }
        return with_temporary([this](int file, const struct stat& info, const char* temporary) {
            return build(file, info, temporary);
        });
    }

    // kSystem: there is no such memory to be had.
    Status create_in_memory() const noexcept {
        std::unique_ptr<MappedSegment::Region> region(new (std::nothrow) MappedSegment::Region);
        if (region == nullptr) return Status::kSystem;
        int memory = -1;
        if (find_memory(folder, device, region->mapping, memory) != Status::kOk) {
            const Status made = make_memory(folder, region->mapping, memory);
            if (made != Status::kOk) return made;
            auto* segment = new (region->mapping.get_address()) Segment;
            const Status filled = fill(*segment, device, new_identity(), folder.identity);
            if (filled != Status::kOk) return filled;
        }
        const auto* segment = static_cast<const Segment*>(region->mapping.get_address());
        struct stat info {};
        const Status status = name_memory(locator_of(*segment, memory), info);
        if (status != Status::kOk) return status;
        take(std::move(region), true, info);
        take_memory(memory);
        return Status::kOk;
    }

    Status name_memory(const Locator& locator, struct stat& made) const noexcept {
        return with_temporary([&](int file, const struct stat& info, const char* temporary) {
            made = info;
            if (const Status status = allocate(file, sizeof locator); status != Status::kOk) {
                return status;
            }
            if (pwrite(file, &locator, sizeof locator, 0) != sizeof locator) {
                return status_of(errno);
            }
            return named(temporary);
        });
    }

    static std::uint64_t new_identity() noexcept {
        static std::atomic<std::uint64_t> counter{0};
        const std::uint64_t parts[] = {monotonic_ns(), static_cast<std::uint64_t>(getpid()),
                                       ipc_namespace(), counter.fetch_add(1)};
        return hash_bytes(reinterpret_cast<const char*>(parts), sizeof parts);
    }

    Status named(const char* temporary) const noexcept {
        const int error = publish(temporary, out.path_);
        return error == 0 ? Status::kOk : error == EEXIST ? Status::kNotReady : status_of(error);
    }

    // `make` fills the new file and names it.
    template <class Make>
    Status with_temporary(Make&& make) const noexcept {
        static std::atomic<std::uint32_t> counter{0};
        char temporary[sizeof out.path_ + 64];
        snprintf(temporary, sizeof temporary, "%s.%ld.%llu.%u.tmp", out.path_,
                 static_cast<long>(getpid()), static_cast<unsigned long long>(monotonic_ns()),
                 counter.fetch_add(1, std::memory_order_relaxed));
        const UniqueDescriptor file(
            open(temporary, O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
        if (file.get() < 0) return status_of(errno);
        struct stat info {};
        Status status = prepare(file.get(), info);
        if (status == Status::kOk) status = make(file.get(), info, temporary);
        if (status != Status::kOk) unlink(temporary);
        return status;
    }

    Status prepare(int file, struct stat& info) const noexcept {
        if (fstat(file, &info) != 0) return status_of(errno);
        if (folder.group_shared && info.st_gid != folder.group &&
            fchown(file, static_cast<uid_t>(-1), folder.group) != 0) {
            return status_of(errno);
        }
        return fchmod(file, folder.file_mode) == 0 ? Status::kOk : status_of(errno);
    }

    Status build(int file, const struct stat& info, const char* temporary) const noexcept {
        if (const Status status = allocate(file, sizeof(Segment)); status != Status::kOk) {
            return status;
        }
        std::unique_ptr<MappedSegment::Region> region = map_file(file, true);
        if (region == nullptr) return Status::kSystem;
        auto* segment = new (region->mapping.get_address()) Segment;
        if (const Status status = fill(*segment, device, 0, 0); status != Status::kOk) {
            return status;
        }
        if (const Status status = named(temporary); status != Status::kOk) return status;
        take(std::move(region), true, info);
        return Status::kOk;
    }

    void take(std::unique_ptr<MappedSegment::Region> region, bool writable,
              const struct stat& info) const noexcept {
        out.region_ = std::move(region);
        out.writable_ = writable;
        out.identity_ = 0;
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
        bool in_file = folder.in_files;
        for (;;) {
            out.inode_ = 0;
            Status status = open_existing(true);
            if (status == Status::kOk && !replaced_after_restart()) return status;
            if (status == Status::kNotFound || status == Status::kElsewhere) {
                in_file = in_file || status == Status::kElsewhere;
                if (out.inode_ != 0) status = remove_name(out);
                if (status == Status::kOk) status = Status::kNotFound;
            }
            if (status == Status::kNotFound) {
                remove_stale_temporaries(folder.path);
                status = create(in_file);
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

bool MappedSegment::whole() const noexcept { return !cuttable() || crossover::whole(*view()); }

bool MappedSegment::is(int file) const noexcept {
    Locator locator{};
    if (identity_ != 0) return read_locator(file, locator) && locator.identity == identity_;
    struct stat info {};
    return fstat(file, &info) == 0 && info.st_dev == device_ && info.st_ino == inode_;
}

bool MappedSegment::lost_name() const noexcept {
    const UniqueDescriptor file(open(path_, kLookFlags));
    if (file.get() >= 0) {
        struct stat info {};
        return fstat(file.get(), &info) == 0 && info.st_dev == device_ && !is(file.get());
    }
    if (errno != ENOENT) return false;
    struct stat info {};
    char folder[sizeof path_];
    std::memcpy(folder, path_, sizeof folder);
    char* const slash = std::strrchr(folder, '/');
    if (slash == nullptr) return false;
    *slash = '\0';
    return lstat(folder, &info) == 0 && info.st_dev == device_;
}

bool MappedSegment::is_named() const noexcept {
    const UniqueDescriptor file(open(path_, kLookFlags));
    return file.get() >= 0 && is(file.get());
}

bool MappedSegment::restore_name(const Folder& folder) const noexcept {
    if (identity_ == 0 || !writable_) return false;
    const Header& header = get()->header;
    DeviceUuid device;
    std::memcpy(device.bytes, header.device_uuid, sizeof device.bytes);
    for (int tries = 0; tries < kRemovalTries; ++tries) {
        if (header.end.load(std::memory_order_acquire) != SegmentEnd::kInUse) return false;
        MappedSegment found;
        const SegmentOpener opener{folder, device, found};
        if (!opener.set_path(path_)) return true;
        const Status there = opener.open_existing(false);
        if (there == Status::kOk) return found.identity_ == identity_;
        if (there == Status::kElsewhere) return false;
        // Where nobody else can join either, this one is as good as any.
        if (there != Status::kNotFound && there != Status::kCorrupt) return true;
        if (found.inode_ != 0 && remove_name(found) != Status::kOk) return true;
        struct stat made {};
        if (opener.name_memory(locator_of(*get(), memory_), made) != Status::kNotReady) return true;
    }
    return true;
}

bool whole(const Segment& segment) noexcept {
    // A cut takes the pages away one after the other, from the first one cut to the last. So the
    // last page shows every cut, but some 10 us late, or more where the cutter is interrupted;
    // what is used most, the slots and all before them, is therefore asked for itself.
    const auto* last = reinterpret_cast<const std::byte*>(&segment + 1) - sizeof(std::uint32_t);
    return futex_reachable(segment.header.version) &&
           futex_reachable(segment.clients[kMaxClients - 1].grant) &&
           futex_reachable(*reinterpret_cast<const std::atomic<std::uint32_t>*>(last));
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
        const UniqueDescriptor file(open(segment.path(), kLookFlags));
        if (file.get() < 0) {
            if (errno == ENOENT) return Status::kOk;
            return status_of(errno);
        }
        if (!segment.is(file.get())) return Status::kOk;
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
