// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/history.hpp"

#include <algorithm>

namespace crossover {

void WindowHistory::learn(std::uint64_t signature, std::uint64_t length_ns) noexcept {
    Entry& entry = entries_[signature % kEntries];
    if (entry.signature != signature) {
        entry = {.signature = signature, .mean_ns = length_ns, .seen = 1, .deviation_ns = 0};
        return;
    }
    entry.seen = std::min(entry.seen + 1U, kSureFrom);
    // A quarter of the new value: follows a change within a few iterations, shrugs at one odd
    // window.
    const std::uint64_t mean_ns = entry.mean_ns;
    const std::uint64_t off_ns = std::max(mean_ns, length_ns) - std::min(mean_ns, length_ns);
    entry.deviation_ns = entry.deviation_ns - entry.deviation_ns / 4 + off_ns / 4;
    entry.mean_ns = mean_ns - mean_ns / 4 + length_ns / 4;
}

std::uint64_t WindowHistory::deviation(std::uint64_t signature) const noexcept {
    const Entry& entry = entries_[signature % kEntries];
    return entry.signature == signature ? entry.deviation_ns : 0;
}

std::optional<std::uint64_t> WindowHistory::predict(std::uint64_t signature) const noexcept {
    const Entry& entry = entries_[signature % kEntries];
    if (entry.signature != signature) {
        return std::nullopt;
    }
    return entry.mean_ns;
}

bool WindowHistory::sure(std::uint64_t signature) const noexcept {
    const Entry& entry = entries_[signature % kEntries];
    return entry.signature == signature && entry.seen >= kSureFrom;
}

}  // namespace crossover
