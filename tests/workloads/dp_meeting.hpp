// SPDX-License-Identifier: Apache-2.0
// How the ranks agree on one secret before they can communicate: rank 0 hands it out over TCP or
// through a file. Knows neither CUDA nor NCCL.
#pragma once

#include <cstddef>

#include "dp_options.hpp"

namespace dp {

// Fills `data` (`bytes` of it, already filled on rank 0) with rank 0's bytes on every rank. On
// failure or after options.timeout_s prints one line and exits with 1.
void share_from_rank_zero(const Options& options, void* data, std::size_t bytes);

// To be called on rank 0 once all ranks have the secret: removes the file.
void forget_meeting(const Options& options);

}  // namespace dp
