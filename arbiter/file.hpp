// SPDX-License-Identifier: Apache-2.0
// Small helpers of the segment's file handling, for segment.cpp and folder.cpp only.
#pragma once

#include <unistd.h>

#include <cstdint>

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

}  // namespace crossover
