// SPDX-License-Identifier: Apache-2.0
// The virtual GPU's truth log as a timeline, so that what the library inferred can be set beside
// what really ran. Pure: reads a stream of text.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <map>
#include <string>

#include "timeline.hpp"

namespace crossover::command {

using JobOfPid = std::map<std::uint64_t, std::string>;

// Adds "NAME=pid,pid" to `jobs`. Throws UsageError for anything else, or for a pid named twice.
void add_job_pids(const std::string& text, JobOfPid& jobs);

// Lines of {"device","pid","kind":"compute"|"copy"|"communicate","start_ns","end_ns",...}. A pid
// without a name is a job "pid N". Copies are left out: they overlap with both. The window is what
// of a job's communication its compute does not hide. Throws Failure with the number of a line that
// cannot be read; an unfinished last line is what a program that is still running leaves, and is
// passed over.
Timeline read_truth(std::istream& in, const JobOfPid& jobs);

}  // namespace crossover::command
