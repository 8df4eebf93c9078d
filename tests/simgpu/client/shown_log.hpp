// SPDX-License-Identifier: Apache-2.0
// When this process could first see that an operation was over: one JSON object a line, in
// $SIMGPU_DIR/shown.PID.jsonl if SIMGPU_SHOWN is 1. The truth log has nominal times; this machine's
// processors show them to a program later, and whoever judges what a program's libraries noticed
// has to know by how much.
#pragma once

#include <cstdint>
#include <mutex>
#include <string>

#include "../protocol.hpp"

namespace simgpu {

// Thread-safe. Lines are buffered; a write error ends the log silently.
class ShownLog {
  public:
    // Of the machine in `dir`; does nothing unless the environment asks for it.
    void open(const std::string& dir);

    // `op` counts as complete from `shown_ns` on (CLOCK_MONOTONIC).
    void add(OpId op, std::uint64_t shown_ns) {
        if (fd_ >= 0) append(op, shown_ns);
    }

    // Writes what is buffered.
    void flush();

  private:
    void append(OpId op, std::uint64_t shown_ns);
    void write_out();

    std::mutex mutex_;
    int fd_ = -1;
    std::string buffer_;
};

}  // namespace simgpu
