// SPDX-License-Identifier: Apache-2.0
// The kinds of events.def as an enumeration with names.
#pragma once

#include <cstdint>

namespace crossover {

enum class EventKind : std::uint16_t {
    kNone = 0,
#define CX_EVENT(identifier, number, name, value) identifier = (number),
#include "crossover/events.def"
#undef CX_EVENT
};

// The kind's name in traces, or "unknown".
constexpr const char* event_name(EventKind kind) noexcept {
    switch (kind) {
        case EventKind::kNone:
            return "none";
#define CX_EVENT(identifier, number, name, value) \
    case EventKind::identifier:                   \
        return name;
#include "crossover/events.def"
#undef CX_EVENT
    }
    return "unknown";
}

}  // namespace crossover
