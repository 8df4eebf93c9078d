// SPDX-License-Identifier: Apache-2.0
// The table of commands and what is the same for all of them: help, version, how a failure is told.
#include <fmt/format.h>

#include <array>
#include <cstdio>
#include <exception>

#include "command.hpp"

namespace crossover::command {

std::span<const Command> commands() noexcept {
    static constexpr std::array<Command, 5> kCommands{{
        {"run", "start a program with the library preloaded (crossover-run)", run_command},
        {"compare", "run programs alone, side by side and in crossover order; a table",
         compare_command},
        {"status", "who shares which GPU, in which phase, whose turn it is", status_command},
        {"trace", "record the turns; a Perfetto trace and an HTML timeline", trace_command},
        {"plan", "predict what jobs gain together, and which should share GPUs", plan_command},
    }};
    return kCommands;
}

const Command* find_command(const std::string& name) noexcept {
    static constexpr Command kKeep{"mps-keep", "ends an MPS daemon behind its users", keep_command};
    for (const Command& command : commands()) {
        if (name == command.name) return &command;
    }
    return name == kKeep.name ? &kKeep : nullptr;
}

namespace {

void print_help() {
    fmt::print(
        "crossover: training jobs that share GPUs take turns: while one communicates, another "
        "computes.\n\n"
        "Usage: crossover COMMAND [options]\n\n"
        "Commands:\n");
    for (const Command& command : commands()) {
        fmt::print("  {:<10}{}\n", command.name, command.summary);
    }
    fmt::print(
        "\n"
        "  crossover COMMAND --help   options of a command\n"
        "  crossover --version        version of this program\n");
}

int dispatch(Arguments arguments, std::string& who) {
    if (arguments.empty()) {
        throw UsageError("no command; `crossover --help` lists them");
    }
    const std::string& name = arguments.front();
    if (name == "--help" || name == "-h" || name == "help") {
        print_help();
        return 0;
    }
    if (name == "--version") {
        fmt::print("crossover {}\n", CX_VERSION);
        return 0;
    }
    if (const Command* command = find_command(name)) {
        who += " " + name;
        return command->run(arguments.subspan(1));
    }
    throw UsageError(fmt::format("'{}' is not a command; `crossover --help` lists them", name));
}

}  // namespace

int run_program(Arguments arguments) {
    std::string who = "crossover";
    int status = kExitFailure;
    try {
        status = dispatch(arguments, who);
    } catch (const Failure& failure) {
        std::fprintf(stderr, "%s: %s\n", who.c_str(), failure.what());
        status = failure.exit_status();
    } catch (const std::exception& failure) {
        std::fprintf(stderr, "%s: %s\n", who.c_str(), failure.what());
    }
    // A table that could not be written (full disk, closed pipe) is no success.
    if (std::fflush(stdout) != 0 && status == 0) {
        std::fprintf(stderr, "%s: cannot write to standard output\n", who.c_str());
        status = kExitFailure;
    }
    return status;
}

}  // namespace crossover::command
