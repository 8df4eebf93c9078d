// SPDX-License-Identifier: Apache-2.0
#include "shim/log.hpp"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace crossover {

namespace {
std::atomic<LogLevel> level_now{LogLevel::kFault};
}  // namespace

void set_log_level(LogLevel level) noexcept { level_now.store(level, std::memory_order_relaxed); }

void log_line(LogLevel level, const char* format, ...) noexcept {
    if (level > level_now.load(std::memory_order_relaxed)) {
        return;
    }
    const int saved = errno;
    char line[512];
    const int prefix = std::snprintf(line, sizeof line, "crossover: ");
    std::va_list arguments;
    va_start(arguments, format);
    const int body = std::vsnprintf(
        line + prefix, sizeof line - static_cast<std::size_t>(prefix) - 1, format, arguments);
    va_end(arguments);
    const std::size_t length =
        std::min(sizeof line - 1,
                 static_cast<std::size_t>(prefix) + static_cast<std::size_t>(std::max(body, 0)));
    line[length] = '\n';
    [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, length + 1);
    errno = saved;
}

}  // namespace crossover
