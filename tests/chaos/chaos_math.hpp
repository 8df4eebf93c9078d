// SPDX-License-Identifier: Apache-2.0
// The arithmetic of chaos_job, for the program and its kernels; tests/bench/chaos_jobs.py computes
// the same beforehand. Nothing else here.
#pragma once

#include <cstdint>

namespace chaos {

// A bijection of 64-bit words that spreads every bit.
constexpr std::uint64_t mix(std::uint64_t value) {
    value = (value ^ (value >> 31)) * 0x9E3779B97F4A7C15ULL;
    return value ^ (value >> 29);
}

constexpr std::uint64_t first_value(std::uint64_t seed, int rank) {
    return mix(seed * 0x2545F4914F6CDD1DULL + static_cast<std::uint64_t>(rank));
}

}  // namespace chaos
