// SPDX-License-Identifier: Apache-2.0
// Starts several programs at once, waits for all of them and leaves none behind. For `crossover
// compare`.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "launch.hpp"

namespace crossover::command {

struct Program {
    std::string name;  // in messages
    std::vector<std::string> command;
    Environment environment;
    std::string output_file;  // standard output and error; made anew
};

struct Outcome {
    std::uint64_t begin_ns = 0;  // CLOCK_MONOTONIC: just before its start
    std::uint64_t end_ns = 0;    // when its end was seen
};

// Runs all programs together, each in its own process group with /dev/null as standard input, and
// calls `poll` about every `poll_ns`. Throws Failure when one cannot be started, ends by a signal
// or with another status than 0 (with the last lines of its output), when `longest_ns` is over, or
// when this process is interrupted; then all of them have been ended. Not thread-safe: it takes
// SIGCHLD and the signals that end a program while it runs.
std::vector<Outcome> run_together(std::vector<Program>& programs, std::uint64_t longest_ns,
                                  std::uint64_t poll_ns, const std::function<void()>& poll);

// "exit status 3", "signal 9 (Killed)".
std::string wait_status_text(int wait_status);

// The last `most` lines of a file, each indented; empty when it cannot be read.
std::string last_lines(const std::string& file, std::size_t most);

// CLOCK_MONOTONIC.
std::uint64_t now_ns();

}  // namespace crossover::command
