// SPDX-License-Identifier: Apache-2.0
// The truth log: what each stream really did and when, one JSON object a line, to judge Crossover's
// inference.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <string>

#include "engine.hpp"

namespace simgpu {

// Not thread-safe. Lines are buffered; a write error is reported once on stderr and ends the log.
class TruthLog {
  public:
    TruthLog() = default;
    ~TruthLog();
    TruthLog(const TruthLog&) = delete;
    TruthLog& operator=(const TruthLog&) = delete;

    // Creates or empties `path`; false with errno set if that fails.
    bool open(const std::string& path);

    // Adds a line. Times are CLOCK_MONOTONIC ns.
    void add(const TruthRecord& record, pid_t pid);

    bool pending() const { return !buffer_.empty(); }

    // Writes what is buffered.
    void flush();

  private:
    int fd_ = -1;
    std::string buffer_;
};

}  // namespace simgpu
