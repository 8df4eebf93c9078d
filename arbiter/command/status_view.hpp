// SPDX-License-Identifier: Apache-2.0
// What `crossover status` prints, as pure functions of snapshots.
#pragma once

#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "snapshot.hpp"

namespace crossover::command {

// A table for each device, or "no jobs"; below it a line for each client that waits past its bound.
// Segments that their clients have left for good are not shown.
std::string status_text_of(const std::vector<DeviceSnapshot>& devices);

// {"devices":[{"uuid","round","turn_count","expired_count","reaped_count","turn":{"job","since_ms",
// "lease_left_ms"}|null,"jobs":[...],"clients":[...]}]}; times in ms. A job's "weight" is null
// where none was given, its "share" of the time that turns took null before the first; a client's
// "stall" is null or {"waits_ms","site","turn_of","turn_ms"}, the latter three null where not
// known.
nlohmann::ordered_json status_json_of(const std::vector<DeviceSnapshot>& devices);

// ns of the holder's lease that are left; 0 when it has run out. Only where the turn is held and
// contested.
std::uint64_t lease_left_ns(const DeviceSnapshot& device, const JobSnapshot& holder) noexcept;

}  // namespace crossover::command
