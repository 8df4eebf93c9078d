// SPDX-License-Identifier: Apache-2.0
// The library's lines on standard error: formatted on the stack, one write(2), no allocation, no
// lock. What each level means stands in options.def (CROSSOVER_LOG).
#pragma once

#include "crossover/options.hpp"

namespace crossover {

void set_log_level(LogLevel level) noexcept;
// printf-like; prefixes "crossover: " and appends the newline. Keeps errno.
[[gnu::format(printf, 2, 3)]] void log_line(LogLevel level, const char* format, ...) noexcept;

}  // namespace crossover
