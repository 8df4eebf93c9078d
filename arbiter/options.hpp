// SPDX-License-Identifier: Apache-2.0
// Reads the options of options.def from an environment. Used by the library and by the tools, so
// that both give the same line for the same mistake. Does not allocate.
#pragma once

#include <cstddef>

#include "crossover/options.hpp"

namespace crossover {

// Looks a variable up; returns nullptr when unset. getenv fits.
using EnvironmentLookup = char* (*)(const char* name);

// Fills `options` from the environment; unset or empty variables keep the default. Returns false on
// the first bad value, with one line in `error` that names the variable, its value and what is
// allowed, without a newline.
bool parse_environment(EnvironmentLookup lookup, Options& options, char* error,
                       std::size_t error_bytes) noexcept;

}  // namespace crossover
