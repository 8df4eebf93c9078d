// SPDX-License-Identifier: Apache-2.0
// Command line of dp_train; see dp_options.hpp. Knows neither CUDA nor NCCL.
#include "dp_options.hpp"

#include <CLI/CLI.hpp>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <initializer_list>
#include <optional>
#include <utility>

namespace dp {
namespace {

[[noreturn]] void refuse(const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
    std::exit(2);
}

// The first of the variables that is set.
std::optional<int> from_environment(std::initializer_list<const char*> names, int low, int high) {
    for (const char* const name : names) {
        const char* const text = std::getenv(name);
        if (!text || !*text) {
            continue;
        }
        char* end = nullptr;
        errno = 0;
        const long value = std::strtol(text, &end, 10);
        if (errno != 0 || *end != '\0' || value < low || value > high) {
            refuse(std::string(name) + " is '" + text + "'; allowed: a whole number from " +
                   std::to_string(low) + " to " + std::to_string(high));
        }
        return static_cast<int>(value);
    }
    return std::nullopt;
}

constexpr int kMaxRanks = 65'536;

void read_launcher(Options& options) {
    options.rank =
        from_environment({"RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID"},
                         0, kMaxRanks - 1)
            .value_or(0);
    options.world_size =
        from_environment({"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_NTASKS"}, 1,
                         kMaxRanks)
            .value_or(1);
    options.local_rank = from_environment({"LOCAL_RANK", "OMPI_COMM_WORLD_LOCAL_RANK",
                                           "MPI_LOCALRANKID", "SLURM_LOCALID"},
                                          0, kMaxRanks - 1)
                             .value_or(-1);
    if (const char* const address = std::getenv("MASTER_ADDR")) {
        options.master_address = address;
    }
    options.master_port = from_environment({"MASTER_PORT"}, 1, 65'535).value_or(0);
    // Under torchrun's agent that port is the agent's own store.
    const char* const agent = std::getenv("TORCHELASTIC_USE_AGENT_STORE");
    if (agent && std::string(agent) == "True" && options.master_port > 0) {
        ++options.master_port;
    }
    // Open MPI names the job, the same for all of its ranks; they are on one node unless told
    // otherwise.
    const char* const job = std::getenv("PMIX_NAMESPACE");
    if (job && options.master_port == 0) {
        const char* const folder = std::getenv("TMPDIR");
        std::string name = job;
        for (char& c : name) {
            c = c == '/' ? '_' : c;
        }
        options.id_file = std::string(folder && *folder ? folder : "/tmp") + "/" +
                          program_invocation_short_name + "-" + name + ".id";
    }
}

}  // namespace

Options parse_options(int argc, char** argv, const std::function<void(CLI::App&)>& add) {
    Options options;
    read_launcher(options);
    CLI::App app(
        "Data-parallel training of a small network, one process a rank.\nRank, world size and "
        "local rank come "
        "from the launcher (torchrun, Open MPI, PMI, Slurm) or the options.");
    constexpr double kAnyMs = 1e6;
    const auto whole = [&](const char* name, int& value, const char* text, int low, int high) {
        app.add_option(name, value, text)->check(CLI::Range(low, high))->capture_default_str();
    };
    const auto real = [&](const char* name, double& value, const char* text, double low,
                          double high) {
        app.add_option(name, value, text)->check(CLI::Range(low, high))->capture_default_str();
    };
    whole("--rank", options.rank, "rank of this process", 0, kMaxRanks - 1);
    whole("--world-size", options.world_size, "number of processes", 1, kMaxRanks);
    whole("--local-rank", options.local_rank,
          "rank on this node; selects the device (default: the rank)", 0, kMaxRanks - 1);
    whole("--device", options.device, "device ordinal (default: the local rank)", 0, 1023);
    whole("--iterations", options.iterations, "measured iterations", 1, 100'000'000);
    whole("--warmup", options.warmup, "iterations before them", 0, 1'000'000);
    whole("--batch", options.batch, "samples a rank and iteration", 1, 65'536);
    whole("--hidden", options.hidden, "width of the hidden layers", 1, 16'384);
    whole("--layers", options.layers, "layers of the network", 1, 1'000);
    real("--compute-ms", options.compute_ms, "extra device time an iteration, ms", 0.0, kAnyMs);
    real("--burn-per-ms", options.burn_per_ms,
         "rounds of arithmetic a ms of device time (0: calibrate)", 0.0, 1e12);
    real("--burn-kernel-ms", options.burn_kernel_ms, "longest kernel of the extra device time, ms",
         0.01, kAnyMs);
    real("--comm-mb", options.comm_mb, "gradients padded to this size, 10^6 bytes", 0.0, 65'536.0);
    whole("--buckets", options.buckets, "gradient buckets, at most one a layer", 1, 1'000);
    app.add_flag("--overlap", options.overlap,
                 "reduce each bucket as soon as its layers' backward pass is done");
    whole("--sync-every", options.sync_every,
          "read the loss every N iterations (0: only at the end)", 0, 100'000'000);
    whole("--log-every", options.log_every,
          "rank 0 prints the loss every N iterations (0: only at the end)", 0, 100'000'000);
    real("--learning-rate", options.learning_rate, "step size", 0.0, 100.0);
    app.add_option("--seed", options.seed, "seed of weights and data")->capture_default_str();
    app.add_option("--start-at-ns", options.start_at_ns,
                   "first iteration not before this CLOCK_MONOTONIC time, ns")
        ->check(CLI::NonNegativeNumber);
    real("--timeout-s", options.timeout_s, "longest wait for the other ranks at the start, s", 0.1,
         86'400.0);
    app.add_option("--json", options.json, "rank 0 writes its measurements to this file");
    app.add_option(
        "--id-file", options.id_file,
        "ranks meet through this file, new and shared (default: MASTER_ADDR and MASTER_PORT)");
    if (add) {
        add(app);
    }
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp& help) {
        std::exit(app.exit(help));
    } catch (const CLI::ParseError& error) {
        refuse(error.what());
    }
    if (options.rank >= options.world_size) {
        refuse("rank " + std::to_string(options.rank) + " of " +
               std::to_string(options.world_size) + "; allowed: 0 to " +
               std::to_string(options.world_size - 1));
    }
    if (options.buckets > options.layers) {
        refuse("--buckets " + std::to_string(options.buckets) +
               "; allowed: 1 to the number of layers, " + std::to_string(options.layers));
    }
    if (options.log_every > 0 &&
        (options.sync_every == 0 || options.log_every % options.sync_every != 0)) {
        refuse("--log-every " + std::to_string(options.log_every) +
               "; allowed: multiples of --sync-every");
    }
    if (options.local_rank < 0) {
        options.local_rank = options.rank;
    }
    if (options.device < 0) {
        options.device = options.local_rank;
    }
    if (options.world_size > 1 && options.id_file.empty() &&
        (options.master_address.empty() || options.master_port == 0)) {
        refuse("no meeting point: set MASTER_ADDR and MASTER_PORT, or give --id-file");
    }
    return options;
}

}  // namespace dp
