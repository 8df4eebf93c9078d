// SPDX-License-Identifier: Apache-2.0
// Which folder holds the segments, whether it can be trusted, and what lies in it.
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "arbiter/file.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/hash.hpp"
#include "arbiter/segment.hpp"

namespace crossover {
namespace {

constexpr char kHex[] = "0123456789abcdef";
constexpr std::size_t kUuidDigits = 32;

int hex_value(char digit) noexcept {
    if (digit >= '0' && digit <= '9') return digit - '0';
    if (digit >= 'a' && digit <= 'f') return digit - 'a' + 10;
    if (digit >= 'A' && digit <= 'F') return digit - 'A' + 10;
    return -1;
}

bool dash_before(std::size_t digit) noexcept {
    return digit == 8 || digit == 12 || digit == 16 || digit == 20;
}

bool is_folder(const char* path) noexcept {
    struct stat info {};
    return path != nullptr && path[0] == '/' && stat(path, &info) == 0 && S_ISDIR(info.st_mode);
}

bool set_path(Folder& folder, const char* text) noexcept {
    const std::size_t length = std::strlen(text);
    if (length >= sizeof folder.path) return false;
    std::memcpy(folder.path, text, length + 1);
    return true;
}

Status private_path(Folder& folder) noexcept {
    const char* parent = "/tmp";
    if (is_folder("/dev/shm")) {
        parent = "/dev/shm";
    } else if (const char* runtime = getenv("XDG_RUNTIME_DIR"); is_folder(runtime)) {
        parent = runtime;
    }
    const int length = snprintf(folder.path, sizeof folder.path, "%s/crossover-%lu", parent,
                                static_cast<unsigned long>(geteuid()));
    return length > 0 && static_cast<std::size_t>(length) < sizeof folder.path ? Status::kOk
                                                                               : Status::kSystem;
}

}  // namespace

void format_uuid(const DeviceUuid& device, char (&text)[kUuidTextBytes]) noexcept {
    char* out = text;
    for (const char c : {'G', 'P', 'U', '-'}) *out++ = c;
    for (std::size_t digit = 0; digit < kUuidDigits; ++digit) {
        if (dash_before(digit)) *out++ = '-';
        const unsigned byte = device.bytes[digit / 2];
        *out++ = kHex[digit % 2 == 0 ? byte >> 4 : byte & 15];
    }
    *out = '\0';
}

bool parse_uuid(const char* text, DeviceUuid& device) noexcept {
    if (std::strncmp(text, "GPU-", 4) == 0) text += 4;
    DeviceUuid parsed;
    for (std::size_t digit = 0; digit < kUuidDigits; ++digit) {
        if (dash_before(digit) && *text++ != '-') return false;
        const int value = hex_value(*text);
        if (value < 0) return false;
        ++text;
        std::uint8_t& byte = parsed.bytes[digit / 2];
        byte = static_cast<std::uint8_t>(byte << 4 | value);
    }
    if (*text != '\0') return false;
    device = parsed;
    return true;
}

Status choose_folder(const char* configured, bool create, Folder& folder) noexcept {
    folder = Folder{};
    const bool is_private = configured == nullptr || configured[0] == '\0';
    if (is_private) {
        if (const Status status = private_path(folder); status != Status::kOk) return status;
    } else if (configured[0] != '/' || !set_path(folder, configured)) {
        return Status::kSystem;
    }
    if (create) {
        if (mkdir(folder.path, 0700) == 0) {
            // The umask may have taken bits away.
            if (chmod(folder.path, 0700) != 0) return status_of(errno);
        } else if (errno != EEXIST) {
            return status_of(errno);
        }
    }
    const UniqueDescriptor opened(open(folder.path, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
    if (opened.get() < 0) return status_of(errno);
    struct stat info {};
    if (fstat(opened.get(), &info) != 0) return status_of(errno);
    folder.owner = info.st_uid;
    folder.group = info.st_gid;
    const std::uint64_t parts[] = {info.st_dev, info.st_ino};
    folder.identity = hash_bytes(reinterpret_cast<const char*>(parts), sizeof parts);
    const bool others_write = (info.st_mode & S_IWOTH) != 0;
    const bool group_writes = (info.st_mode & S_IWGRP) != 0;
    if (is_private) {
        return info.st_uid != geteuid() || others_write || group_writes ? Status::kForeign
                                                                        : Status::kOk;
    }
    if (others_write && (info.st_mode & S_ISVTX) == 0) return Status::kForeign;
    folder.group_shared = group_writes && !others_write;
    if (folder.group_shared) {
        folder.file_mode = 0660;
    } else if (!others_write && (info.st_mode & S_IRGRP) != 0) {
        folder.file_mode = 0640;
    }
    return Status::kOk;
}

std::vector<SegmentFile> list_segments(const Folder& folder) {
    std::vector<SegmentFile> files;
    DIR* directory = opendir(folder.path);
    if (directory == nullptr) return files;
    char suffix[16];
    snprintf(suffix, sizeof suffix, ".v%u", kLayoutVersion);
    while (const dirent* entry = readdir(directory)) {
        const std::string name = entry->d_name;
        const std::size_t uuid_length = kUuidTextBytes - 1;
        SegmentFile file;
        if (name.size() <= uuid_length ||
            name.compare(uuid_length, std::string::npos, suffix) != 0 ||
            !parse_uuid(name.substr(0, uuid_length).c_str(), file.device)) {
            continue;
        }
        file.path = std::string(folder.path) + "/" + name;
        files.push_back(std::move(file));
    }
    closedir(directory);
    std::sort(files.begin(), files.end(),
              [](const SegmentFile& a, const SegmentFile& b) { return a.path < b.path; });
    return files;
}

std::uint64_t boot_identity() noexcept {
    const UniqueDescriptor file(open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
    char text[64];
    const ssize_t got = file.get() < 0 ? -1 : read(file.get(), text, sizeof text);
    return got <= 0 ? 0 : hash_bytes(text, static_cast<std::size_t>(got));
}

namespace {

// When a temporary was made, by CLOCK_MONOTONIC: its name ends in ".PID.NS.COUNT.tmp". 0: no such
// name.
std::uint64_t made_at_ns(const char* name) noexcept {
    const char* end = name + std::strlen(name);
    int dots = 0;
    while (end > name && dots < 3) dots += *--end == '.' ? 1 : 0;
    return dots == 3 ? std::strtoull(end + 1, nullptr, 10) : 0;
}

}  // namespace

void remove_stale_temporaries(const char* folder) noexcept {
    constexpr std::uint64_t kOldNs = 60'000'000'000;
    DIR* directory = opendir(folder);
    if (directory == nullptr) return;
    const int at = dirfd(directory);
    while (const dirent* entry = readdir(directory)) {
        const std::size_t length = std::strlen(entry->d_name);
        if (length < 4 || std::strcmp(entry->d_name + length - 4, ".tmp") != 0 ||
            std::strncmp(entry->d_name, "GPU-", 4) != 0) {
            continue;
        }
        const std::uint64_t made_ns = made_at_ns(entry->d_name);
        const std::uint64_t now_ns = monotonic_ns();  // read later than any name that was seen
        const bool old = made_ns > now_ns || now_ns - made_ns > kOldNs;
        struct stat info {};
        if (old && fstatat(at, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) == 0 &&
            S_ISREG(info.st_mode) && info.st_uid == geteuid()) {
            unlinkat(at, entry->d_name, 0);
        }
    }
    closedir(directory);
}

}  // namespace crossover
