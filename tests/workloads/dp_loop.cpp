// SPDX-License-Identifier: Apache-2.0
// The loop; see dp_loop.hpp. Knows no model and no communication.
#include "dp_loop.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "dp_device.hpp"

namespace dp {

void select_device(const Options& options) {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (options.device >= devices) {
        std::fprintf(stderr, "%s: device %d; allowed: 0 to %d\n", program_invocation_short_name,
                     options.device, devices - 1);
        std::exit(2);
    }
    check(cudaSetDevice(options.device), "cudaSetDevice");
}

Measurements run(const Options& options, const Loop& loop) {
    const int total = options.warmup + options.iterations;
    std::vector<cudaEvent_t> ends(options.iterations + 1);
    for (cudaEvent_t& event : ends) {
        check(cudaEventCreate(&event), "cudaEventCreate");
    }
    float* const host_loss = host_array<float>(1);
    // All ranks leave the set-up together.
    check(cudaStreamSynchronize(loop.compute), "cudaStreamSynchronize");
    loop.barrier();
    Measurements result;
    if (options.start_at_ns > 0) {
        sleep_until(options.start_at_ns);
    }
    result.start_ns = now_ns();
    for (int number = 0; number < total; ++number) {
        if (number == options.warmup) {
            check(cudaStreamSynchronize(loop.compute), "cudaStreamSynchronize");
            check(cudaEventRecord(ends[0], loop.compute), "cudaEventRecord");
            result.measured_ns = now_ns();
        }
        loop.iteration(number);
        if (number >= options.warmup) {
            check(cudaEventRecord(ends[number - options.warmup + 1], loop.compute),
                  "cudaEventRecord");
        }
        if (options.sync_every > 0 && (number + 1) % options.sync_every == 0) {
            check(cudaMemcpyAsync(host_loss, loop.history + number, sizeof(float),
                                  cudaMemcpyDeviceToHost, loop.compute),
                  "cudaMemcpyAsync");
            check(cudaStreamSynchronize(loop.compute), "cudaStreamSynchronize");
            if (options.log_every > 0 && options.rank == 0 &&
                (number + 1) % options.log_every == 0) {
                std::printf("iteration %d loss %.17g\n", number + 1,
                            static_cast<double>(*host_loss));
                std::fflush(stdout);
            }
        }
    }
    check(cudaStreamSynchronize(loop.compute), "cudaStreamSynchronize");
    result.end_ns = now_ns();
    result.mean_iteration_ms =
        static_cast<double>(result.end_ns - result.measured_ns) / 1e6 / options.iterations;
    for (int i = 0; i < options.iterations; ++i) {
        float ms = 0.0F;
        check(cudaEventElapsedTime(&ms, ends[i], ends[i + 1]), "cudaEventElapsedTime");
        result.iteration_ms.push_back(ms);
    }
    result.losses.resize(total);
    check(cudaMemcpy(result.losses.data(), loop.history, total * sizeof(float),
                     cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    return result;
}

void report(const Options& options, const Measurements& measurements) {
    std::printf("rank %d loss %.17g parameters %016llx iteration %.6f ms\n", options.rank,
                static_cast<double>(measurements.losses.back()),
                static_cast<unsigned long long>(measurements.parameters_hash),
                measurements.mean_iteration_ms);
    if (options.rank == 0 && !options.json.empty()) {
        write_json(options, measurements);
    }
}

}  // namespace dp
