// SPDX-License-Identifier: Apache-2.0
// What the C++ library that is linked in asks of a newer C library than the oldest one we are to be
// loaded beside (2.34): given here. Nothing else.
#include <sys/random.h>
#include <time.h>

#include <cstdint>

// glibc 2.36; for std::random_device, which nothing of ours uses but the archive refers to.
extern "C" [[gnu::visibility("hidden")]] std::uint32_t arc4random() {
    std::uint32_t value = 0;
    if (::getrandom(&value, sizeof value, GRND_NONBLOCK) == static_cast<ssize_t>(sizeof value)) {
        return value;
    }
    timespec now{};
    ::clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint32_t>(now.tv_nsec) * 2654435761U;
}
