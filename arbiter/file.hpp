// SPDX-License-Identifier: Apache-2.0
// Small helpers of the segment's file handling, for segment*.cpp and folder.cpp only.
#pragma once

#include <sys/stat.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

#include "arbiter/segment.hpp"

namespace crossover {

class UniqueDescriptor {
  public:
    explicit UniqueDescriptor(int descriptor) noexcept : descriptor_(descriptor) {}
    ~UniqueDescriptor() {
        if (descriptor_ >= 0) close(descriptor_);
    }
    UniqueDescriptor(const UniqueDescriptor&) = delete;
    UniqueDescriptor& operator=(const UniqueDescriptor&) = delete;
    int get() const noexcept { return descriptor_; }

  private:
    int descriptor_;
};

// Hash of what the kernel calls this run of the machine; 0 where it does not tell.
std::uint64_t boot_identity() noexcept;

// Removes half-made segments that this user's killed processes left in the folder, older than a
// minute.
void remove_stale_temporaries(const char* folder) noexcept;

// Of an errno that a file operation left.
Status status_of(int error) noexcept;

// Owner, type and mode of an opened segment file.
Status check_file(const Folder& folder, const struct stat& file) noexcept;

// What can be known before mapping: no byte behind the end of the file may ever be touched.
// `locator` has its content when the file is a sound one (identity not 0).
Status check_head(int descriptor, const struct stat& file, Locator& locator) noexcept;

// Takes the space of the file's content now.
Status allocate(int descriptor, std::size_t bytes) noexcept;

// Makes fresh zero memory a segment. `identity` and `home`: 0 for a file.
Status fill(Segment& segment, const DeviceUuid& device, std::uint64_t identity,
            std::uint64_t home) noexcept;

// Gives a complete file its name unless the name is taken (EEXIST). 0 or an errno.
int publish(const char* temporary, const char* path) noexcept;

}  // namespace crossover
