// SPDX-License-Identifier: Apache-2.0
// Command lines: CLI11 with this program's manners (one line for a mistake, the library's option
// table as options). No option of a particular command.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "command.hpp"
#include "launch.hpp"

namespace crossover::command {

// What stands before the first "--", then what stands between each "--" and the next.
std::vector<std::vector<std::string>> split_at_dashes(Arguments arguments);

// Parses; returns false when --help was asked for and printed. Throws UsageError, one line.
bool parse(CLI::App& app, const std::vector<std::string>& arguments);

// The usage lines of --help, without the word "Usage: ".
void set_usage(CLI::App& app, const std::string& usage);

// A whole number option: one line that names the option and the allowed range for anything else.
CLI::Option* add_number(CLI::App& app, const std::string& flag, std::uint64_t& value,
                        std::uint64_t minimum, std::uint64_t maximum, const std::string& text);

// --mps auto|on|off into `choice`, a text of those.
void add_mps_option(CLI::App& app, std::string& choice);

// Adds an option for every row of crossover/options.def; parse() then fills `settings`, which must
// outlive it. `skip` names the environment variables that the command sets by itself.
void add_table_options(CLI::App& app, Settings& settings,
                       const std::vector<std::string_view>& skip = {});

}  // namespace crossover::command
