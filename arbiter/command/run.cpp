// SPDX-License-Identifier: Apache-2.0
// `crossover run`: becomes the program, with the library preloaded. After exec nothing of this is
// left, so exit status, signals and descriptors are the program's own.
#include <errno.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "arguments.hpp"
#include "command.hpp"
#include "launch.hpp"
#include "library.hpp"
#include "mps_daemon.hpp"
#include "run_launcher.hpp"

namespace crossover::command {
namespace {

constexpr const char* kDescription =
    "Starts COMMAND with libcrossover.so preloaded into it and into all that it starts, then "
    "becomes it:\n"
    "exit status and signals are the command's. An option stands over its environment variable.\n"
    "Started on several nodes, give the same --job NAME on each of them.";

}  // namespace

int run_command(Arguments arguments) {
    const auto groups = split_at_dashes(arguments);
    CLI::App app(kDescription, "crossover run");
    set_usage(app, "crossover-run [options] -- command...");
    Settings settings;
    add_table_options(app, settings);
    std::string library;
    app.add_option("--library", library,
                   "the libcrossover.so to preload; default: the one beside this program")
        ->type_name("FILE");
    std::string mps;
    add_mps_option(app, mps);
    if (!parse(app, groups.front())) {
        return 0;
    }
    // A later "--" belongs to the command.
    std::vector<std::string> command;
    for (std::size_t place = groups.front().size() + 1; place < arguments.size(); ++place) {
        command.push_back(arguments[place]);
    }
    if (command.empty() || command.front().empty()) {
        throw UsageError("no command; usage: crossover-run [options] -- command...");
    }
    Environment environment =
        launch_environment(Environment::of_process(), settings, find_library(library),
                           command.front(), random_suffix());
    const auto say = [](const std::string& line) {
        if (!line.empty()) std::fprintf(stderr, "crossover run: %s\n", line.c_str());
    };
    std::string line;
    const MpsUse use = join_mps(environment, *parse_mps_choice(mps), line);
    say(line);
    const Forwarding forwarding =
        forward_to_ranks(command, environment, launcher_of(command, environment));
    command = forwarding.command;
    environment = forwarding.environment;
    say(forwarding.fault);
    if (use.active() && forwarding.several_hosts) {
        say("MPS is for the ranks on this host; for those on others let the launcher start "
            "crossover-run: LAUNCHER... crossover-run [options] -- command...");
    }
    std::vector<char*> words;
    for (std::string& word : command) {
        words.push_back(word.data());
    }
    words.push_back(nullptr);
    const std::vector<char*> entries = environment.pointers();
    use.inherit();
    ::execvpe(words.front(), words.data(), entries.data());
    const int error = errno;
    throw Failure(fmt::format("{}: {}", command.front(),
                              error == ENOENT ? "command not found" : std::strerror(error)),
                  error == ENOENT ? kExitNotFound : kExitNotExecutable);
}

}  // namespace crossover::command
