// SPDX-License-Identifier: Apache-2.0
// Command line of the probes, and what they share; see probe.hpp. `qualify_probe --probe NAME`
// prints one JSON object on rank 0. No probe's own work belongs here.
#include <dlfcn.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <map>
#include <string>

#include "probe.hpp"
#include "tests/workloads/dp_loop.hpp"

namespace qualify {

void check(CUresult result, const char* what) {
    if (result != CUDA_SUCCESS) {
        std::fprintf(stderr, "qualify_probe: %s: CUresult %d\n", what, static_cast<int>(result));
        std::exit(1);
    }
}

void* driver_symbol(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_NOW);
    if (driver == nullptr) {
        std::fprintf(stderr, "qualify_probe: %s\n", dlerror());
        std::exit(1);
    }
    return dlsym(driver, name);
}

double median(std::vector<double> values) {
    if (values.empty()) {
        return 0.0;
    }
    std::sort(values.begin(), values.end());
    return values[values.size() / 2];
}

void select(const dp::Options& options) {
    dp::select_device(options);
    dp::check(cudaFree(nullptr), "the first call");
}

Load::Load(const dp::Options& options, cudaStream_t stream) {
    int device = 0;
    dp::check(cudaGetDevice(&device), "cudaGetDevice");
    dp::check(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, device),
              "cudaDeviceGetAttribute");
    sink_ = dp::device_array<float>(1);
    dp::Options own = options;
    own.rank = 0;  // every process for itself
    own.compute_ms = 1.0;
    dp::Burner burner(own);
    burner.calibrate([](double value) { return value; }, stream);
    per_ms_ = burner.per_ms();
}

void Load::run(double ms, cudaStream_t stream, int blocks) const {
    dp::launch_burn(blocks > 0 ? blocks : 4 * multiprocessors_,
                    dp::Burn{sink_, static_cast<unsigned long long>(ms * per_ms_)}, stream);
}

void Load::nothing(cudaStream_t stream) const { dp::launch_burn(1, dp::Burn{sink_, 0}, stream); }

}  // namespace qualify

int main(int argc, char** argv) {
    const std::map<std::string, qualify::Probe> probes{
        {"loader", qualify::probe_loader}, {"memory_operations", qualify::probe_memory_operations},
        {"lock", qualify::probe_lock},     {"times", qualify::probe_times},
        {"launch", qualify::probe_launch}, {"slices", qualify::probe_slices},
        {"nccl", qualify::probe_nccl},     {"abort", qualify::probe_abort},
    };
    std::string name;
    const dp::Options options = dp::parse_options(argc, argv, [&](CLI::App& app) {
        std::vector<std::string> names;
        for (const auto& [each, probe] : probes) {
            names.push_back(each);
        }
        app.add_option("--probe", name, "what to measure")->required()->check(CLI::IsMember(names));
    });
    const qualify::Json found = probes.at(name)(options);
    if (options.rank == 0) {
        std::printf("%s\n", found.dump().c_str());
    }
    // A probe may leave work that nobody will ever finish.
    std::fflush(stdout);
    std::_Exit(0);
}
