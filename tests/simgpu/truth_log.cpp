// SPDX-License-Identifier: Apache-2.0
// Writing of the truth log.
#include "truth_log.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <iterator>

namespace simgpu {
namespace {

constexpr std::size_t kFlushBytes = 65'536;

const char* name_of(OpKind kind) {
    switch (kind) {
        case OpKind::kCopy:
            return "copy";
        case OpKind::kCollective:
            return "communicate";
        default:
            return "compute";
    }
}

}  // namespace

TruthLog::~TruthLog() {
    flush();
    if (fd_ >= 0) close(fd_);
}

bool TruthLog::open(const std::string& path) {
    fd_ = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_APPEND | O_CLOEXEC, 0644);
    return fd_ >= 0;
}

void TruthLog::add(const TruthRecord& record, pid_t pid) {
    if (fd_ < 0) return;
    const auto out = std::back_inserter(buffer_);
    fmt::format_to(
        out,
        R"({{"device":{},"pid":{},"stream":{},"op":{},"kind":"{}","submit_ns":{},"start_ns":{},"end_ns":{})",
        record.device, pid, record.stream, record.op, name_of(record.kind), record.submit_ns,
        record.start_ns, record.end_ns);
    if (record.kind == OpKind::kCollective) {
        fmt::format_to(out, R"(,"comm":{},"transfer_start_ns":)", record.comm);
        if (record.transfer_start_ns == 0) {
            fmt::format_to(out, "null");
        } else {
            fmt::format_to(out, "{}", record.transfer_start_ns);
        }
    }
    buffer_ += "}\n";
    if (buffer_.size() >= kFlushBytes) flush();
}

void TruthLog::flush() {
    std::size_t done = 0;
    while (fd_ >= 0 && done < buffer_.size()) {
        const ssize_t wrote = write(fd_, buffer_.data() + done, buffer_.size() - done);
        if (wrote > 0) {
            done += static_cast<std::size_t>(wrote);
        } else if (errno != EINTR) {
            std::fprintf(stderr, "simgpu-server: truth.jsonl: %s; the log ends here\n",
                         std::strerror(errno));
            close(fd_);
            fd_ = -1;
        }
    }
    buffer_.clear();
}

}  // namespace simgpu
