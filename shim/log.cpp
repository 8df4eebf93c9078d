// SPDX-License-Identifier: Apache-2.0
// One line by one write(2) to somebody else's standard error: it may be a pipe that nobody reads, a
// closed one, or a file that may not grow. None of these may end or hold the host process.
#include "shim/log.hpp"

#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstdio>

namespace crossover {

namespace {

std::atomic<LogLevel> level_now{LogLevel::kFault};

// While it lives, a write of the calling thread raises neither SIGPIPE nor SIGXFSZ. Both are sent
// to the thread that writes, so what came of it is pending for this thread, and taken back.
class QuietWrite {
  public:
    QuietWrite() noexcept {
        sigemptyset(&ours_);
        sigaddset(&ours_, SIGPIPE);
        sigaddset(&ours_, SIGXFSZ);
        sigset_t pending;
        sigemptyset(&pending);
        sigpending(&pending);
        // What was pending before is somebody else's.
        for (const int signal : {SIGPIPE, SIGXFSZ}) {
            if (sigismember(&pending, signal) == 1) sigdelset(&ours_, signal);
        }
        blocked_ = pthread_sigmask(SIG_BLOCK, &ours_, &before_) == 0;
    }
    ~QuietWrite() {
        if (!blocked_) return;
        const timespec now{};
        while (sigtimedwait(&ours_, nullptr, &now) > 0) {
        }
        pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
    QuietWrite(const QuietWrite&) = delete;
    QuietWrite& operator=(const QuietWrite&) = delete;

    bool ready() const noexcept { return blocked_; }

  private:
    sigset_t ours_;
    sigset_t before_;
    bool blocked_ = false;
};

// A full pipe or a stopped terminal would hold the writer.
bool takes_a_line(int descriptor) noexcept {
    constexpr int kBoundMs = 100;
    pollfd entry{descriptor, POLLOUT, 0};
    return poll(&entry, 1, kBoundMs) == 1 && (entry.revents & POLLOUT) != 0;
}

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
    if (takes_a_line(STDERR_FILENO)) {
        const QuietWrite quiet;
        if (quiet.ready()) {
            [[maybe_unused]] const auto written = ::write(STDERR_FILENO, line, length + 1);
        }
    }
    errno = saved;
}

}  // namespace crossover
