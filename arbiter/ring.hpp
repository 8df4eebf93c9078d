// SPDX-License-Identifier: Apache-2.0
// The segment's ring of recent events: one writer function for all processes, without a lock, and a
// reader for the tools. Formatting of traces does not belong here.
#pragma once

#include <cstdint>
#include <vector>

#include "crossover/events.hpp"
#include "crossover/layout.hpp"

namespace crossover {

struct EventRecord {
    std::uint64_t place = 0;  // running number since the segment was made
    std::uint64_t time_ns = 0;
    std::uint64_t value = 0;  // events.def says which
    EventKind kind = EventKind::kNone;
    std::uint32_t client = 0;  // index of the client slot + 1, or 0
    std::uint16_t job = 0;     // index of the job slot + 1, or 0
    std::uint64_t job_key = 0;
};

// Appends, overwriting the oldest. Any thread of any process, wait-free; `place` is ignored. A
// writer stopped in here while the whole ring passes by may spoil one later record.
void append_event(Segment& segment, const EventRecord& event) noexcept;

struct EventBatch {
    std::vector<EventRecord> events;  // by place
    std::uint64_t next = 0;           // where to go on reading
    std::uint64_t lost = 0;           // places from `from` on that were overwritten or half written
};

// Copies the consistent records from place `from` on, at most kRingEvents. Works on read-only
// mappings and on any content. May throw std::bad_alloc: for tools, not for the library.
EventBatch read_events(const Segment& segment, std::uint64_t from);

}  // namespace crossover
