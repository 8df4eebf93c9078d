// SPDX-License-Identifier: Apache-2.0
// The program `patterns`: one rank of a training run that submits its work as the chosen pattern
// does. Command line and report are dp_train's. No pattern here.
#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "../dp_loop.hpp"
#include "pattern.hpp"

namespace patterns {

void refuse(const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
    std::exit(2);
}

}  // namespace patterns

namespace {

using patterns::Pattern;
using patterns::Settings;

struct Row {
    const char* name;
    const char* text;
    std::unique_ptr<Pattern> (*make)(const Settings&);
};

constexpr Row kRows[] = {
#define PATTERN(name, text) {#name, text, patterns::make_##name},
#include "patterns.def"
#undef PATTERN
};

void list() {
    for (const Row& row : kRows) {
        std::printf("%-24s %s\n", row.name, row.text);
    }
}

void add_options(CLI::App& app, Settings& settings, std::string& name) {
    // Read before the others, which need not be there then.
    static bool listed = false;
    app.add_flag("--list", listed, "name the patterns, one a line, and end");
    const auto whole = [&](const char* option, int& value, const char* text, int low, int high) {
        app.add_option(option, value, text)->check(CLI::Range(low, high))->capture_default_str();
    };
    const auto real = [&](const char* option, double& value, const char* text, double low,
                          double high) {
        app.add_option(option, value, text)->check(CLI::Range(low, high))->capture_default_str();
    };
    std::vector<std::string> names;
    for (const Row& row : kRows) {
        names.emplace_back(row.name);
    }
    app.add_option("--pattern", name, "how the work is submitted")
        ->required()
        ->check(CLI::IsMember(names));
    whole("--micro-batches", settings.micro_batches, "of an iteration: pipeline, ddp_no_sync", 1,
          1'000);
    whole("--eval-every", settings.eval_every,
          "iterations between evaluations (0: none): eval_and_checkpoint", 0, 1'000'000);
    whole("--eval-batches", settings.eval_batches, "batches of an evaluation", 1, 1'000'000);
    whole("--checkpoint-every", settings.checkpoint_every,
          "iterations between checkpoints (0: none): eval_and_checkpoint", 0, 1'000'000);
    whole("--stall-every", settings.stall_every,
          "iterations between stalls of the input (0: none): eval_and_checkpoint", 0, 1'000'000);
    real("--stall-ms", settings.stall_ms, "length of such a stall, ms", 0.0, 1e6);
    real("--cycle-ms", settings.cycle_ms, "time between two negotiations, ms: horovod_*", 0.0, 1e4);
    real("--fusion-mb", settings.fusion_mb,
         "most that is fused into one sum, 10^6 bytes: horovod_*", 0.001, 1e4);
    real("--cpu-link-gbps", settings.cpu_link_gbps,
         "pace of the exchange on the CPU, 10^9 bit/s (0: the sockets'): gloo_cpu", 0.0, 1e4);
    whole("--local-devices", settings.local_devices, "devices of one_process_two_devices", 2, 64);
}

}  // namespace

int main(int argc, char** argv) {
    for (int i = 1; i < argc; ++i) {
        if (std::strcmp(argv[i], "--list") == 0) {
            list();
            return 0;
        }
    }
    Settings settings;
    std::string name;
    settings.options =
        dp::parse_options(argc, argv, [&](CLI::App& app) { add_options(app, settings, name); });
    std::unique_ptr<Pattern> pattern;
    for (const Row& row : kRows) {
        if (name == row.name) {
            pattern = row.make(settings);
        }
    }
    const dp::Options& options = settings.options;
    dp::Loop loop;
    loop.compute = pattern->compute();
    loop.history = pattern->history();
    loop.iteration = [&](int number) { pattern->iteration(number); };
    loop.barrier = [&] { pattern->barrier(); };
    dp::Measurements result = dp::run(options, loop);
    result.parameters_hash = pattern->parameters_hash();
    result.burn_per_ms = pattern->burn_per_ms();
    result.gradient_bytes = pattern->communicated_bytes();
    pattern.reset();
    dp::report(options, result);
    return 0;
}
