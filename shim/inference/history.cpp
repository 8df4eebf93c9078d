// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/history.hpp"

#include <algorithm>

namespace crossover {

void WindowHistory::learn(std::uint64_t signature, std::uint64_t length_ns) noexcept {
    Lengths& known = lengths_.use(signature);
    if (known.seen == 0) {
        known = {.mean_ns = length_ns, .seen = 1, .deviation_ns = 0};
        return;
    }
    known.seen = std::min(known.seen + 1U, kSureFrom);
    // A quarter of the new value: follows a change within a few iterations, shrugs at one odd
    // window.
    const std::uint64_t mean_ns = known.mean_ns;
    const std::uint64_t off_ns = std::max(mean_ns, length_ns) - std::min(mean_ns, length_ns);
    known.deviation_ns = known.deviation_ns - known.deviation_ns / 4 + off_ns / 4;
    known.mean_ns = mean_ns - mean_ns / 4 + length_ns / 4;
}

std::uint64_t WindowHistory::deviation(std::uint64_t signature) const noexcept {
    const Lengths* const known = lengths_.find(signature);
    return known == nullptr ? 0 : known->deviation_ns;
}

std::optional<std::uint64_t> WindowHistory::predict(std::uint64_t signature) const noexcept {
    const Lengths* const known = lengths_.find(signature);
    return known == nullptr ? std::nullopt : std::optional<std::uint64_t>(known->mean_ns);
}

bool WindowHistory::sure(std::uint64_t signature) const noexcept {
    const Lengths* const known = lengths_.find(signature);
    return known != nullptr && known->seen >= kSureFrom;
}

}  // namespace crossover
