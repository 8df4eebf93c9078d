// SPDX-License-Identifier: Apache-2.0
// JSON file of dp_train; see dp_report.hpp.
#include "dp_report.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <nlohmann/json.hpp>

namespace dp {

void write_json(const Options& options, const Measurements& measurements) {
    nlohmann::ordered_json out;
    out["program"] = program_invocation_short_name;
    out["rank"] = options.rank;
    out["world_size"] = options.world_size;
    out["iterations"] = options.iterations;
    out["warmup"] = options.warmup;
    out["batch"] = options.batch;
    out["hidden"] = options.hidden;
    out["layers"] = options.layers;
    out["compute_ms"] = options.compute_ms;
    out["comm_mb"] = options.comm_mb;
    out["buckets"] = options.buckets;
    out["overlap"] = options.overlap;
    out["sync_every"] = options.sync_every;
    out["seed"] = options.seed;
    out["burn_per_ms"] = measurements.burn_per_ms;
    out["gradient_bytes"] = measurements.gradient_bytes;
    out["start_ns"] = measurements.start_ns;
    out["measured_ns"] = measurements.measured_ns;
    out["end_ns"] = measurements.end_ns;
    out["mean_iteration_ms"] = measurements.mean_iteration_ms;
    out["iteration_ms"] = measurements.iteration_ms;
    std::vector<std::string> losses;
    for (const float loss : measurements.losses) {
        char text[32];
        std::snprintf(text, sizeof(text), "%.17g", static_cast<double>(loss));
        losses.emplace_back(text);
    }
    out["losses"] = losses;  // as text, so that no reader rounds them
    char hash[32];
    std::snprintf(hash, sizeof(hash), "%016llx",
                  static_cast<unsigned long long>(measurements.parameters_hash));
    out["parameters_hash"] = hash;
    std::ofstream file(options.json);
    file << out.dump(1) << "\n";
    file.close();
    if (!file) {
        std::fprintf(stderr, "%s: cannot write --json '%s'\n", program_invocation_short_name,
                     options.json.c_str());
        std::exit(1);
    }
}

}  // namespace dp
