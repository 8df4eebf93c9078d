// SPDX-License-Identifier: Apache-2.0
// One 64-bit hash, the same on every machine: names and ids to keys. Not for secrets.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossover {

// FNV-1a over the bytes and a finaliser that spreads short, similar inputs over all bits. Never 0.
constexpr std::uint64_t hash_bytes(const char* bytes, std::size_t size,
                                   std::uint64_t seed = 0xcbf29ce484222325) noexcept {
    std::uint64_t hash = seed;
    for (std::size_t i = 0; i < size; ++i) {
        hash ^= static_cast<std::uint8_t>(bytes[i]);
        hash *= 0x100000001b3;
    }
    hash ^= hash >> 33;
    hash *= 0xff51afd7ed558ccd;
    hash ^= hash >> 33;
    hash *= 0xc4ceb9fe1a85ec53;
    hash ^= hash >> 33;
    return hash == 0 ? 1 : hash;
}

}  // namespace crossover
