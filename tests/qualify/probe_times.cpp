// SPDX-License-Identifier: Apache-2.0
// Probes of time on one process's device: launches, gaps, events, host functions, copies, and when
// the device was taken away. Every figure is a median. No communication.
#include <algorithm>
#include <atomic>
#include <string>
#include <utility>

#include "probe.hpp"

extern "C" void dp_burn(dp::Burn);  // the kernel's stub, whose address names it

namespace qualify {
namespace {

double us_since(std::int64_t begin) { return static_cast<double>(dp::now_ns() - begin) / 1e3; }

// Device time of what `submit` puts on the stream, ms.
double device_ms(cudaStream_t stream, const std::function<void()>& submit) {
    static const std::pair<cudaEvent_t, cudaEvent_t> events = [] {
        std::pair<cudaEvent_t, cudaEvent_t> made{};
        dp::check(cudaEventCreate(&made.first), "cudaEventCreate");
        dp::check(cudaEventCreate(&made.second), "cudaEventCreate");
        return made;
    }();
    dp::check(cudaEventRecord(events.first, stream), "cudaEventRecord");
    submit();
    dp::check(cudaEventRecord(events.second, stream), "cudaEventRecord");
    dp::check(cudaEventSynchronize(events.second), "cudaEventSynchronize");
    float ms = 0.0F;
    dp::check(cudaEventElapsedTime(&ms, events.first, events.second), "cudaEventElapsedTime");
    return ms;
}

// Asks until it is done; the runtime remembers "not ready" as an error, which is taken back.
void until_done(const std::function<cudaError_t()>& ask) {
    while (ask() == cudaErrorNotReady) {
    }
    static_cast<void>(cudaGetLastError());
}

template <typename Measure>
double median_of(int count, Measure measure) {
    std::vector<double> values;
    for (int i = 0; i < count; ++i) {
        values.push_back(measure());
    }
    return median(std::move(values));
}

void wait_for(cudaStream_t stream) {
    dp::check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

}  // namespace

Json probe_times(const dp::Options& options) {
    select(options);
    const cudaStream_t stream = dp::new_stream();
    const Load load(options, stream);
    Json found;
    found["rounds_per_ms"] = load.rounds_per_ms();
    load.nothing(stream);
    wait_for(stream);

    found["launch_to_done_us"] = median_of(200, [&] {
        const std::int64_t begin = dp::now_ns();
        load.nothing(stream);
        until_done([&] { return cudaStreamQuery(stream); });
        return us_since(begin);
    });
    found["launch_and_synchronize_us"] = median_of(200, [&] {
        const std::int64_t begin = dp::now_ns();
        load.nothing(stream);
        wait_for(stream);
        return us_since(begin);
    });
    found["query_us"] = median_of(200, [&] {
        const std::int64_t begin = dp::now_ns();
        static_cast<void>(cudaStreamQuery(stream));
        return us_since(begin);
    });

    // The same arithmetic in one kernel and in many: what is over is the gaps.
    constexpr int kKernels = 100;
    constexpr double kEachMs = 0.2;
    const double one = median_of(
        5, [&] { return device_ms(stream, [&] { load.run(kEachMs * kKernels, stream); }); });
    const double many = median_of(5, [&] {
        return device_ms(stream, [&] {
            for (int i = 0; i < kKernels; ++i) {
                load.run(kEachMs, stream);
            }
        });
    });
    found["gap_us"] = (many - one) * 1e3 / (kKernels - 1);
    found["empty_kernels_apart_us"] = median_of(5, [&] {
        return device_ms(stream,
                         [&] {
                             for (int i = 0; i < 200; ++i) {
                                 load.nothing(stream);
                             }
                         }) *
               1e3 / 200;
    });

    cudaEvent_t event = dp::new_event();
    found["event_record_to_done_us"] = median_of(200, [&] {
        const std::int64_t begin = dp::now_ns();
        dp::check(cudaEventRecord(event, stream), "cudaEventRecord");
        until_done([&] { return cudaEventQuery(event); });
        return us_since(begin);
    });
    cudaEvent_t blocking = nullptr;
    dp::check(cudaEventCreateWithFlags(&blocking, cudaEventBlockingSync | cudaEventDisableTiming),
              "cudaEventCreate");
    found["blocking_event_us"] = median_of(100, [&] {
        const std::int64_t begin = dp::now_ns();
        dp::check(cudaEventRecord(blocking, stream), "cudaEventRecord");
        dp::check(cudaEventSynchronize(blocking), "cudaEventSynchronize");
        return us_since(begin);
    });
    std::atomic<std::int64_t> ran{0};
    found["host_function_us"] = median_of(100, [&] {
        ran = 0;
        const std::int64_t begin = dp::now_ns();
        dp::check(cudaLaunchHostFunc(
                      stream,
                      [](void* at) { *static_cast<std::atomic<std::int64_t>*>(at) = dp::now_ns(); },
                      &ran),
                  "cudaLaunchHostFunc");
        wait_for(stream);
        return static_cast<double>(ran - begin) / 1e3;
    });
    // From one stream's kernel to the other's, over an event.
    const cudaStream_t other = dp::new_stream();
    const double chained = median_of(20, [&] {
        return device_ms(stream, [&] {
            for (int i = 0; i < 20; ++i) {
                load.nothing(stream);
                dp::order(stream, event, other);
                load.nothing(other);
                dp::order(other, event, stream);
            }
        });
    });
    found["stream_to_stream_us"] = chained * 1e3 / 40;

    constexpr std::size_t kBytes = 16U << 20U;
    char* const host = dp::host_array<char>(kBytes);
    char* const memory = dp::device_array<char>(kBytes);
    for (const auto& [name, to, from] :
         {std::tuple{"to_device_gb_per_s", memory, host}, {"to_host_gb_per_s", host, memory}}) {
        const double ms = median_of(5, [&, to = to, from = from] {
            return device_ms(stream, [&] {
                dp::check(cudaMemcpyAsync(to, from, kBytes, cudaMemcpyDefault, stream),
                          "cudaMemcpyAsync");
            });
        });
        found[name] = kBytes / ms / 1e6;
    }
    return found;
}

// CPU time of the calling thread for a launch, by the ways in which programs launch.
Json probe_launch(const dp::Options& options) {
    select(options);
    const cudaStream_t stream = dp::new_stream();
    const Load load(options, stream);
    cudaFunction_t function = nullptr;
    dp::check(cudaGetFuncBySymbol(&function, reinterpret_cast<const void*>(&dp_burn)),
              "cudaGetFuncBySymbol");
    dp::Burn nothing{dp::device_array<float>(1), 0};
    void* arguments[] = {&nothing};
    const auto launch = driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel");
    const auto launch_ex = driver_function<decltype(&cuLaunchKernelEx)>("cuLaunchKernelEx");
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 256;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    // A graph of one kernel.
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t graph_exec = nullptr;
    dp::check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "begin of capture");
    load.nothing(stream);
    dp::check(cudaStreamEndCapture(stream, &graph), "end of capture");
    dp::check(cudaGraphInstantiate(&graph_exec, graph, 0), "cudaGraphInstantiate");

    const std::pair<const char*, std::function<void()>> ways[] = {
        {"cudaLaunchKernel", [&] { load.nothing(stream); }},
        {"cuLaunchKernel",
         [&] {
             check(launch(function, 1, 1, 1, 256, 1, 1, 0, stream, arguments, nullptr),
                   "cuLaunchKernel");
         }},
        {"cuLaunchKernelEx",
         [&] { check(launch_ex(&config, function, arguments, nullptr), "cuLaunchKernelEx"); }},
        {"cudaGraphLaunch",
         [&] { dp::check(cudaGraphLaunch(graph_exec, stream), "cudaGraphLaunch"); }},
    };
    Json found;
    constexpr int kBatch = 200;  // less than what a stream takes before a launch has to wait
    for (const auto& [name, call] : ways) {
        found["ns"][name] = median_of(options.iterations, [&, call = &call] {
            const std::int64_t begin = dp::now_ns();
            for (int i = 0; i < kBatch; ++i) {
                (*call)();
            }
            const double ns = static_cast<double>(dp::now_ns() - begin) / kBatch;
            wait_for(stream);
            return ns;
        });
    }
    return found;
}

// Short kernels back to back, an event after each: where two events are far apart, somebody else
// had the device. Times are of the device, from its first event, which is recorded at `begin_ns`.
Json probe_slices(const dp::Options& options) {
    select(options);
    const cudaStream_t stream = dp::new_stream();
    const Load load(options, stream);
    constexpr double kKernelMs = 0.2;
    std::vector<cudaEvent_t> events(static_cast<std::size_t>(options.iterations) + 1);
    for (cudaEvent_t& event : events) {
        dp::check(cudaEventCreate(&event), "cudaEventCreate");
    }
    wait_for(stream);
    if (options.start_at_ns > 0) {
        dp::sleep_until(options.start_at_ns);
    }
    Json found;
    found["begin_ns"] = dp::now_ns();
    dp::check(cudaEventRecord(events[0], stream), "cudaEventRecord");
    for (std::size_t i = 1; i < events.size(); ++i) {
        load.run(kKernelMs, stream);
        dp::check(cudaEventRecord(events[i], stream), "cudaEventRecord");
    }
    wait_for(stream);
    found["kernel_ms"] = kKernelMs;
    found["end_ns"] = dp::now_ns();
    for (std::size_t i = 1; i < events.size(); ++i) {
        float ms = 0.0F;
        dp::check(cudaEventElapsedTime(&ms, events[i - 1], events[i]), "cudaEventElapsedTime");
        found["apart_ms"].push_back(ms);
    }
    return found;
}

}  // namespace qualify
