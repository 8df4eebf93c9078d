// SPDX-License-Identifier: Apache-2.0
// The segment's file and memory: which folder, whose, made, opened, mapped, listed, removed. Knows
// nothing of turns. Trusts no folder, file or memory before it has looked at owner, mode, type,
// size and version.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arbiter/client.hpp"
#include "crossover/layout.hpp"
#include "crossover/status.hpp"

namespace crossover {

// "GPU-xxxxxxxx-xxxx-xxxx-xxxx-xxxxxxxxxxxx" and the closing zero.
inline constexpr std::size_t kUuidTextBytes = 41;
void format_uuid(const DeviceUuid& device, char (&text)[kUuidTextBytes]) noexcept;
// With or without the prefix. False, and `device` unchanged, for anything else.
bool parse_uuid(const char* text, DeviceUuid& device) noexcept;

struct Folder {
    char path[256] = {};
    bool group_shared = false;  // the folder's group may write in it, so segments are its members'
    uid_t owner = 0;
    gid_t group = 0;
    mode_t file_mode = 0600;     // follows the folder's group access
    std::uint64_t identity = 0;  // hash of device and inode
    // Segments lie in files even where System V shared memory could be had.
    bool in_files = false;
};

// The folder of the segments. `configured` (CROSSOVER_DIR; absolute path, or empty) as it stands,
// else /dev/shm/crossover-<uid>, or below XDG_RUNTIME_DIR or /tmp where there is no /dev/shm. With
// `create` a missing one is made, for this user only (one level, whatever the umask).
//   kForeign   not a folder, a symbolic link, open to others, or the private one is not this user's
//   kNotFound  missing, and not to be created
//   kAccess, kNoSpace, kSystem  the system refused; `folder.path` says what was tried in every case
// Nobody else may write in a private folder. A configured one may be its group's; and everybody's
// only when it is sticky like /tmp, and then only files of this user are trusted in it.
Status choose_folder(const char* configured, bool create, Folder& folder) noexcept;

// A mapped segment. Moves; unmaps in the end, unless leak() was called.
class MappedSegment {
  public:
    MappedSegment() noexcept;
    ~MappedSegment();
    MappedSegment(MappedSegment&& other) noexcept;
    MappedSegment& operator=(MappedSegment&& other) noexcept;

    explicit operator bool() const noexcept { return region_ != nullptr; }
    Segment* get() const noexcept;         // nullptr when nothing is mapped or it is read-only
    const Segment* view() const noexcept;  // nullptr when nothing is mapped
    const char* path() const noexcept { return path_; }
    // Keeps the mapping until the process ends.
    void leak() noexcept;
    void reset() noexcept;
    // The memory is a file's, which somebody may cut short.
    bool cuttable() const noexcept { return identity_ == 0; }
    // Whether the memory is all there. Asks the kernel where it is cuttable.
    bool whole() const noexcept;
    // The file was cut short: puts empty memory in its place, at the same address, so that threads
    // which still look there read zeros. Any thread.
    void blank() const noexcept;
    // Whether the file's name still leads to this segment.
    bool is_named() const noexcept;
    // Whether it was removed or replaced. False where that cannot be told: the folder is out of
    // reach (after chroot, or without the rights it was opened with).
    bool lost_name() const noexcept;
    // Puts a new locator under the name where it leads nowhere. False when this segment is to be
    // left: the name leads to another one by now, or this one is a file or has ended. True also
    // where nobody could join at all (no space, no rights, not a file): there is none to meet.
    bool restore_name(const Folder& folder) const noexcept;
    // Whether the file, just opened for reading, is or leads to this segment.
    bool is(int file) const noexcept;

  private:
    friend struct SegmentOpener;
    struct Region;
    std::unique_ptr<Region> region_;
    bool writable_ = false;
    std::uint64_t identity_ = 0;  // of memory behind a locator
    dev_t device_ = 0;            // of the file it was opened by
    ino_t inode_ = 0;
    int memory_ = -1;
    char path_[320] = {};
};

// Whether a mapped file still is as long as it was mapped. Until that is known, no byte of it may
// be touched.
bool whole(const Segment& segment) noexcept;

// Opens the device's segment, or makes it: complete and under its final name at once, its space
// allocated, so that a full disk is kNoSpace now and not SIGBUS later. Memory of this folder and
// device that is in use, but whose name is gone or leads nowhere, is found and named again. Tries
// until `deadline_ns` while others make and remove it (kNotReady). The caller checks Header::end
// under the lock.
//   kCorrupt  a file of ours whose size or head is not a segment's. `segment` is that file, for
//             remove_name(), and is mapped where it is long enough, for give_up()
//   kForeign  owner, mode or type is not trusted: left as it is
// A locator that leads into another IPC namespace is replaced by a file, which both can map.
Status open_or_create(const Folder& folder, const DeviceUuid& device, std::uint64_t deadline_ns,
                      MappedSegment& segment) noexcept;

// For tools: reads only, changes nothing, makes nothing. `path` as given by list_segments().
Status open_read_only(const Folder& folder, const char* path, MappedSegment& segment) noexcept;

// Removes the segment's name if it still leads to this segment (kOk also if not). Whoever removes
// a name holds an flock of that very file meanwhile, so that nobody removes what another has made
// in its place. kNotReady: somebody else is at it.
Status remove_name(const MappedSegment& segment) noexcept;

struct SegmentFile {
    std::string path;
    DeviceUuid device;
};
// Segments of this layout in the folder, by name. For tools: allocates.
std::vector<SegmentFile> list_segments(const Folder& folder);

}  // namespace crossover
