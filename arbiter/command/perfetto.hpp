// SPDX-License-Identifier: Apache-2.0
// A timeline as Chrome trace-event JSON, which ui.perfetto.dev and chrome://tracing open: a process
// for each device, a thread for each lane. Pure.
#pragma once

#include <iosfwd>

#include "timeline.hpp"

namespace crossover::command {

// Writes the whole document. Times are microseconds from the timeline's begin, with ns precision.
void write_perfetto(std::ostream& out, const Timeline& timeline);

}  // namespace crossover::command
