// SPDX-License-Identifier: Apache-2.0
// When this process could first see that an operation was over: one JSON object a line, in
// $SIMGPU_DIR/shown.PID.jsonl if SIMGPU_SHOWN is 1. The truth log has nominal times; this machine's
// processors show them to a program later, and whoever judges what a program's libraries noticed
// has to know by how much.
#pragma once

#include <cstdint>
#include <deque>
#include <mutex>
#include <string>
#include <utility>

#include "../protocol.hpp"

namespace simgpu {

// Thread-safe. Kept in memory until the process ends in good order, as a write could delay what is
// to be measured; of one that is killed there is no log.
class ShownLog {
  public:
    // Of the machine in `dir`; does nothing unless the environment asks for it.
    void open(const std::string& dir);

    // `op` counted as complete from `shown_ns` on (CLOCK_MONOTONIC).
    void add(OpId op, std::uint64_t shown_ns) {
        if (path_.empty()) return;
        const std::lock_guard lock(mutex_);
        shown_.emplace_back(op, shown_ns);
    }

    // Writes the file, once; false with errno set if that fails.
    bool write();

  private:
    std::string path_;
    std::mutex mutex_;
    std::deque<std::pair<OpId, std::uint64_t>> shown_;
};

}  // namespace simgpu
