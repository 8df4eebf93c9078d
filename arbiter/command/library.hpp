// SPDX-License-Identifier: Apache-2.0
// Where libcrossover.so is: beside this program, in the build tree as well as installed.
#pragma once

#include <string>

namespace crossover::command {

// Absolute path of a readable library. `asked`: what --library said, or empty. Throws UsageError,
// one line that names where it was looked for.
std::string find_library(const std::string& asked);

}  // namespace crossover::command
