// SPDX-License-Identifier: Apache-2.0
// Shared files of a communicator; see exchange.hpp. Nothing here waits.
#include "exchange.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <utility>

namespace simgpu::nccl {
namespace {

struct Header {
    std::uint64_t number;
    std::uint64_t signature;
    std::uint64_t bytes;
};
constexpr std::size_t kHeaderBytes = 64;  // keeps the data aligned to a cache line
static_assert(sizeof(Header) <= kHeaderBytes);

constexpr mode_t kMode = 0600;

class File {
  public:
    File(const std::string& path, int flags)
        : descriptor_(open(path.c_str(), flags | O_CLOEXEC, kMode)) {}
    ~File() {
        if (descriptor_ >= 0) {
            close(descriptor_);
        }
    }
    File(const File&) = delete;
    File& operator=(const File&) = delete;

    bool valid() const { return descriptor_ >= 0; }
    int descriptor() const { return descriptor_; }
    std::size_t size() const {
        struct stat status {};
        return fstat(descriptor_, &status) == 0 ? static_cast<std::size_t>(status.st_size) : 0;
    }

  private:
    int descriptor_;
};

template <typename Transfer>
bool transfer_all(std::size_t bytes, Transfer transfer) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t step = transfer(done, bytes - done);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(step);
    }
    return true;
}

std::size_t round_up(std::size_t bytes) {
    std::size_t size = 64 * 1024;
    while (size < bytes) {
        size *= 2;
    }
    return size;
}

}  // namespace

Exchange::Exchange(std::string folder, std::uint64_t key, int rank, int ranks)
    : rank_(rank), mappings_(static_cast<std::size_t>(ranks) * kSlots) {
    char name[32];
    std::snprintf(name, sizeof(name), "/nccl-%016llx", static_cast<unsigned long long>(key));
    prefix_ = std::move(folder) + name;
}

Exchange::~Exchange() {
    for (const Mapping& mapping : mappings_) {
        if (mapping.address) {
            munmap(mapping.address, mapping.bytes);
        }
    }
    // A slower rank may still open what a faster one wrote last, so the last to leave removes
    // everything.
    const int ranks = static_cast<int>(mappings_.size()) / kSlots;
    if (count_departure() < ranks) {
        return;
    }
    for (int rank = 0; rank < ranks; ++rank) {
        for (std::uint64_t number = 0; number < kSlots; ++number) {
            unlink(buffer_path(rank, number).c_str());
        }
    }
    unlink(departures_path().c_str());
}

std::string Exchange::buffer_path(int rank, std::uint64_t number) const {
    return prefix_ + "-" + std::to_string(rank) + "." + std::to_string(number % kSlots);
}

std::string Exchange::departures_path() const { return prefix_ + ".left"; }

int Exchange::count_departure() const {
    // One byte a rank, appended: atomic, and its offset tells how many there are.
    const File file(departures_path(), O_WRONLY | O_CREAT | O_APPEND);
    if (!file.valid() || write(file.descriptor(), "x", 1) != 1) {
        return 0;
    }
    return static_cast<int>(lseek(file.descriptor(), 0, SEEK_CUR));
}

std::string Exchange::message_path(int from, int to, std::uint64_t sequence) const {
    return prefix_ + "-" + std::to_string(from) + "-" + std::to_string(to) + "." +
           std::to_string(sequence);
}

Exchange::Mapping& Exchange::slot(int rank, std::uint64_t number) {
    return mappings_[static_cast<std::size_t>(rank) * kSlots + number % kSlots];
}

void* Exchange::own(std::uint64_t number, std::size_t bytes, std::uint64_t signature) {
    Mapping& mapping = slot(rank_, number);
    const std::size_t needed = kHeaderBytes + bytes;
    if (mapping.bytes < needed) {
        const std::size_t size = round_up(needed);
        const File file(buffer_path(rank_, number), O_RDWR | O_CREAT);
        // Allocated, not merely sized: a full file system must be an error here, not a signal at
        // the first write.
        const int error =
            file.valid() ? posix_fallocate(file.descriptor(), 0, static_cast<off_t>(size)) : errno;
        if (error != 0) {
            errno = error;
            return nullptr;
        }
        void* const address = mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_POPULATE,
                                   file.descriptor(), 0);
        if (address == MAP_FAILED) {
            return nullptr;
        }
        if (mapping.address) {
            munmap(mapping.address, mapping.bytes);
        }
        mapping = Mapping{static_cast<unsigned char*>(address), size};
    }
    const Header header{number, signature, bytes};
    std::memcpy(mapping.address, &header, sizeof(header));
    return mapping.address + kHeaderBytes;
}

const void* Exchange::peer(int rank, std::uint64_t number, std::size_t bytes,
                           std::uint64_t signature) {
    Mapping& mapping = slot(rank, number);
    const std::size_t needed = kHeaderBytes + bytes;
    if (mapping.bytes < needed) {
        const File file(buffer_path(rank, number), O_RDWR);
        const std::size_t size = file.valid() ? file.size() : 0;
        if (size < needed) {
            return nullptr;
        }
        void* const address =
            mmap(nullptr, size, PROT_READ, MAP_SHARED | MAP_POPULATE, file.descriptor(), 0);
        if (address == MAP_FAILED) {
            return nullptr;
        }
        if (mapping.address) {
            munmap(mapping.address, mapping.bytes);
        }
        mapping = Mapping{static_cast<unsigned char*>(address), size};
    }
    Header header{};
    std::memcpy(&header, mapping.address, sizeof(header));
    if (header.number != number || header.signature != signature || header.bytes != bytes) {
        return nullptr;
    }
    return mapping.address + kHeaderBytes;
}

bool Exchange::send(int to, std::uint64_t sequence, const void* data, std::size_t bytes) {
    const File file(message_path(rank_, to, sequence), O_WRONLY | O_CREAT | O_TRUNC);
    const char* const from = static_cast<const char*>(data);
    return file.valid() && transfer_all(bytes, [&](std::size_t done, std::size_t left) {
               return write(file.descriptor(), from + done, left);
           });
}

bool Exchange::receive(int from, std::uint64_t sequence, void* data, std::size_t bytes) {
    const std::string path = message_path(from, rank_, sequence);
    const File file(path, O_RDONLY);
    if (!file.valid()) {
        return false;
    }
    unlink(path.c_str());
    char* const to = static_cast<char*>(data);
    return file.size() == bytes && transfer_all(bytes, [&](std::size_t done, std::size_t left) {
               return read(file.descriptor(), to + done, left);
           });
}

}  // namespace simgpu::nccl
