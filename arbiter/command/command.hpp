// SPDX-License-Identifier: Apache-2.0
// The table of commands and how a command fails. One file a command; what a command computes stands
// in pure files beside it. Nothing of this program is ever loaded into a job.
#pragma once

#include <span>
#include <stdexcept>
#include <string>

namespace crossover::command {

using Arguments = std::span<const std::string>;  // without the program's and the command's name

struct Command {
    const char* name;
    const char* summary;              // one line of `crossover --help`
    int (*run)(Arguments arguments);  // returns the exit status; may throw Failure
};

// Every command, in the order of --help.
std::span<const Command> commands() noexcept;

// Of commands() and those that the program starts by itself, which --help does not list.
const Command* find_command(const std::string& name) noexcept;

// The whole program: finds the command, tells its failure in one line, returns the exit status.
int run_program(Arguments arguments);

int run_command(Arguments arguments);      // run.cpp
int compare_command(Arguments arguments);  // compare.cpp
int status_command(Arguments arguments);   // status.cpp
int trace_command(Arguments arguments);    // trace.cpp
int plan_command(Arguments arguments);     // plan.cpp
int keep_command(Arguments arguments);     // mps_keeper.cpp

inline constexpr int kExitFailure = 1;
inline constexpr int kExitUsage = 2;
inline constexpr int kExitNotExecutable = 126;
inline constexpr int kExitNotFound = 127;

// Ends the command with one line on standard error, "crossover NAME: message", and a status.
class Failure : public std::runtime_error {
  public:
    explicit Failure(const std::string& message, int exit_status = kExitFailure)
        : std::runtime_error(message), exit_status_(exit_status) {}
    int exit_status() const noexcept { return exit_status_; }

  private:
    int exit_status_;
};

// A mistake of whoever typed the command: an option, an environment variable, a file's name.
class UsageError : public Failure {
  public:
    explicit UsageError(const std::string& message) : Failure(message, kExitUsage) {}
};

}  // namespace crossover::command
