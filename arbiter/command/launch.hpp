// SPDX-License-Identifier: Apache-2.0
// What a program is started with: LD_PRELOAD, CROSSOVER_* and the job's name, as pure functions of
// an environment. Starts nothing and reads nothing of the process.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace crossover::command {

// Values of the library's options that were given on the command line: environment name and value,
// checked.
using Settings = std::vector<std::pair<std::string, std::string>>;

// "NAME=value" entries in their order; what does not look like one is kept as it is.
class Environment {
  public:
    Environment() = default;
    explicit Environment(std::vector<std::string> entries) : entries_(std::move(entries)) {}
    static Environment of_process();

    // The first entry of that name, as getenv sees it.
    std::optional<std::string> get(std::string_view name) const;
    // Replaces every entry of that name by one.
    void set(const std::string& name, const std::string& value);
    void remove(std::string_view name);
    const std::vector<std::string>& entries() const noexcept { return entries_; }
    // For execve and posix_spawn; points into this object, ends with nullptr.
    std::vector<char*> pointers();

  private:
    std::vector<std::string> entries_;
};

// `existing` LD_PRELOAD with `library` (a path) added once: in the place of another
// libcrossover.so, else first, but behind sanitizer runtimes that stand first, since those refuse
// to start otherwise. Throws UsageError when the path holds a blank or a colon, which LD_PRELOAD
// cannot express.
std::string compose_preload(std::string_view existing, const std::string& library);

// A job's name from the command's base name and `suffix`, within the limit of CROSSOVER_JOB and
// free of characters that tables and shells stumble over.
std::string job_name(const std::string& command, std::string_view suffix);

// Six hexadecimal digits that no other launch is likely to have.
std::string random_suffix();

// Whether a launcher's identity is present, so that the ranks name their job by themselves.
bool has_identity(const Environment& environment);

// The whole: settings over the environment's CROSSOVER_* variables, preload, and a job name of
// `command` where nothing names the job. Throws UsageError for a bad CROSSOVER_* variable.
Environment launch_environment(Environment base, const Settings& settings,
                               const std::string& library, const std::string& command,
                               std::string_view suffix);

}  // namespace crossover::command
