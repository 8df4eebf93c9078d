// SPDX-License-Identifier: Apache-2.0
#include "shown_log.hpp"

#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>

namespace simgpu {
namespace {

constexpr std::size_t kFlushBytes = 16'384;

}  // namespace

void ShownLog::open(const std::string& dir) {
    const char* const asked = std::getenv("SIMGPU_SHOWN");
    if (asked == nullptr || std::strcmp(asked, "1") != 0) return;
    const std::string path = dir + "/shown." + std::to_string(::getpid()) + ".jsonl";
    buffer_.reserve(2 * kFlushBytes);
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
}

void ShownLog::append(OpId op, std::uint64_t shown_ns) {
    const std::lock_guard lock(mutex_);
    buffer_ += "{\"op\":" + std::to_string(op) + ",\"shown_ns\":" + std::to_string(shown_ns) + "}\n";
    if (buffer_.size() >= kFlushBytes) write_out();
}

void ShownLog::flush() {
    const std::lock_guard lock(mutex_);
    write_out();
}

void ShownLog::write_out() {
    std::size_t done = 0;
    while (fd_ >= 0 && done < buffer_.size()) {
        const ssize_t wrote = ::write(fd_, buffer_.data() + done, buffer_.size() - done);
        if (wrote > 0) {
            done += static_cast<std::size_t>(wrote);
        } else if (errno != EINTR) {
            break;
        }
    }
    buffer_.clear();
}

}  // namespace simgpu
