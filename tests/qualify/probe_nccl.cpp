// SPDX-License-Identifier: Apache-2.0
// Probes of NCCL between ranks: how long an all-reduce takes by its size, what its waiting kernel
// takes from a computation beside it, and whether an abort ends one that never gets its peer.
#include <cmath>

#include "probe.hpp"
#include "tests/workloads/dp_nccl.hpp"

namespace qualify {
namespace {

constexpr double kPeerLateMs = 400.0;

void sleep_ms(double ms) { dp::sleep_until(dp::now_ns() + static_cast<std::int64_t>(ms * 1e6)); }

void wait_for(cudaStream_t stream) {
    dp::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace

Json probe_nccl(const dp::Options& options) {
    select(options);
    const cudaStream_t compute = dp::new_stream();
    const cudaStream_t communication = dp::new_stream();
    const Load load(options, compute);
    const ncclComm_t communicator = dp::connect(options);
    constexpr std::size_t kMost = 16U << 20U;
    auto* const data = dp::device_array<float>(kMost / sizeof(float));
    const auto reduce = [&](std::size_t bytes) {
        dp::check(ncclAllReduce(data, data, bytes / sizeof(float), ncclFloat, ncclSum, communicator,
                                communication),
                  "ncclAllReduce");
    };
    Json found;
    int version = 0;
    dp::check(ncclGetVersion(&version), "ncclGetVersion");
    found["nccl_version"] = version;
    found["multiprocessors"] = load.multiprocessors();
    for (const std::size_t bytes : {std::size_t{4}, std::size_t{1} << 16U, std::size_t{1} << 20U,
                                    std::size_t{4} << 20U, kMost}) {
        std::vector<double> times;
        for (int run = 0; run < 6; ++run) {
            const std::int64_t begin = dp::now_ns();
            reduce(bytes);
            wait_for(communication);
            if (run > 0) {  // the first sets up what it needs
                times.push_back(static_cast<double>(dp::now_ns() - begin) / 1e6);
            }
        }
        found["all_reduce"].push_back({{"bytes", bytes}, {"ms", median(times)}});
    }

    // Rank 0 computes while its all-reduce waits for rank 1, which is late.
    const auto computed_ms = [&] {
        const std::int64_t begin = dp::now_ns();
        for (int i = 0; i < 20; ++i) {
            load.run(2.0, compute, 8 * load.multiprocessors());
        }
        wait_for(compute);
        return static_cast<double>(dp::now_ns() - begin) / 1e6;
    };
    std::vector<double> alone;
    std::vector<double> beside;
    for (int run = 0; run < 3; ++run) {
        if (options.rank == 0) {
            alone.push_back(computed_ms());
        }
        reduce(4);
        wait_for(communication);
        if (options.rank == 0) {
            reduce(4);
            sleep_ms(20.0);
            const std::int64_t begin = dp::now_ns();
            const double ms = computed_ms();
            // Only then was the peer late all the time.
            if (static_cast<double>(dp::now_ns() - begin) / 1e6 < kPeerLateMs - 50.0) {
                beside.push_back(ms);
            }
        } else {
            sleep_ms(kPeerLateMs);
            reduce(4);
        }
        wait_for(communication);
    }
    if (options.rank == 0) {
        found["compute_alone_ms"] = median(alone);
        found["compute_beside_waiting_ms"] = median(beside);
        found["beside_samples"] = beside.size();
    }
    dp::check(ncclCommDestroy(communicator), "ncclCommDestroy");
    return found;
}

Json probe_abort(const dp::Options& options) {
    select(options);
    const cudaStream_t compute = dp::new_stream();
    const cudaStream_t communication = dp::new_stream();
    const Load load(options, compute);
    const ncclComm_t communicator = dp::connect(options);
    auto* const data = dp::device_array<float>(1024);
    Json found;
    if (options.rank == 0) {
        dp::check(ncclAllReduce(data, data, 1024, ncclFloat, ncclSum, communicator, communication),
                  "ncclAllReduce");
        // Compute that stands behind the collective, as a training step would.
        dp::order(communication, dp::new_event(), compute);
        load.run(1.0, compute);
        sleep_ms(200.0);
        found["waited"] = cudaStreamQuery(communication) == cudaErrorNotReady;
        static_cast<void>(cudaGetLastError());  // the runtime remembers it as an error
        const std::int64_t begin = dp::now_ns();
        dp::check(ncclCommAbort(communicator), "ncclCommAbort");
        found["abort_ms"] = static_cast<double>(dp::now_ns() - begin) / 1e6;
        wait_for(compute);
        load.run(1.0, compute);
        wait_for(compute);
        found["computes_after"] = true;
    } else {
        sleep_ms(600.0);
        dp::check(ncclCommAbort(communicator), "ncclCommAbort");
    }
    return found;
}

}  // namespace qualify
