// SPDX-License-Identifier: Apache-2.0
// Which jobs should share devices: the pairs with the greatest sum of gains. Pure.
#pragma once

#include <cstddef>
#include <utility>
#include <vector>

namespace crossover::command {

// `gain[i][j]`, i < j: what the two jobs gain together; a pair without gain is never chosen. Each
// job is in at most one pair; first < second, in ascending order. A maximum weight matching.
std::vector<std::pair<std::size_t, std::size_t>> best_pairs(
    const std::vector<std::vector<double>>& gain);

}  // namespace crossover::command
