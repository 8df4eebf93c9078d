// SPDX-License-Identifier: Apache-2.0
// Predicts how long a communication window will be from earlier windows of the same signature.
// Pure: no clock, no GPU. Not thread-safe: WindowInference guards it.
#pragma once

#include <cstdint>
#include <optional>

#include "shim/inference/signature_table.hpp"

namespace crossover {

class WindowHistory {
  public:
    // Takes note of one window of `length_ns` (0: the collective was hidden by compute entirely).
    void learn(std::uint64_t signature, std::uint64_t length_ns) noexcept;
    // The expected length in ns, or nothing when this signature was never seen.
    std::optional<std::uint64_t> predict(std::uint64_t signature) const noexcept;
    // By how much the lengths differ from that, on average; 0: they do not, or nothing is known.
    std::uint64_t deviation(std::uint64_t signature) const noexcept;
    // Whether enough of them were seen for a short prediction to be relied on: passing a long
    // window costs another job all of it, waiting for a short one costs little.
    bool sure(std::uint64_t signature) const noexcept;

  private:
    static constexpr std::uint32_t kSureFrom = 3;
    struct Lengths {
        std::uint64_t mean_ns : 56 = 0;
        std::uint64_t seen : 8 = 0;  // at most kSureFrom
        std::uint64_t deviation_ns = 0;
    };
    SignatureTable<Lengths, 2048> lengths_;
};

// Mixes a further value into a signature.
constexpr std::uint64_t mix_signature(std::uint64_t signature, std::uint64_t value) noexcept {
    signature ^= value + 0x9E3779B97F4A7C15ULL + (signature << 6) + (signature >> 2);
    signature *= 0xFF51AFD7ED558CCDULL;
    return signature ^ (signature >> 33);
}

}  // namespace crossover
