// SPDX-License-Identifier: Apache-2.0
// Options of simgpu-server. Every limit of EngineSettings is enforced here and nowhere else.
#include "config.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <map>

namespace simgpu {
namespace {

constexpr double kNsPerUs = 1000.0;

std::uint64_t to_ns(double us) { return static_cast<std::uint64_t>(std::llround(us * kNsPerUs)); }
double to_us(std::uint64_t ns) { return static_cast<double>(ns) / kNsPerUs; }

// A finite number in [low, high]. CLI::Range lets NaN through.
CLI::Validator number(double low, double high) {
    return {[low, high](std::string& input) {
                double value = NAN;
                if (CLI::detail::lexical_cast(input, value) && value >= low && value <= high)
                    return std::string();
                return fmt::format("{} is not a number from {} to {}", input, low, high);
            },
            fmt::format("{} to {}", low, high)};
}

CLI::Validator one_of(const std::string& a, const std::string& b) {
    return {[a, b](std::string& input) {
                if (input == a || input == b) return std::string();
                return fmt::format("{} is not one of {}, {}", input, a, b);
            },
            a + "|" + b};
}

}  // namespace

ParseResult parse_options(int argc, const char* const* argv, ServerConfig& config,
                          std::string& text) {
    EngineSettings& engine = config.engine;
    double slice_us = to_us(engine.slice_ns);
    double switch_us = to_us(engine.context_switch_ns);
    double launch_us = to_us(engine.launch_ns);
    double gap_us = to_us(engine.gap_ns);
    double latency_us = to_us(engine.latency_ns);
    double node_latency_us = to_us(engine.node_latency_ns);
    double max_lead_us = to_us(config.max_lead_ns);
    std::string sharing = "mps";
    std::string timeslice_comm = "continue";
    bool no_truth_log = false;

    CLI::App app{"Device server of the virtual GPU: keeps the time of one virtual machine",
                 "simgpu-server"};
    app.option_defaults()->always_capture_default();
    app.add_option("--dir", config.dir, "folder of the machine: socket, truth log, data")
        ->envname(kEnvDir)
        ->required()
        ->check(CLI::ExistingDirectory);
    app.add_option("--devices", engine.devices, "devices of the machine")->check(number(1, 64));
    app.add_option("--mig", engine.instances,
                   "split each device into so many MIG instances; 0: do not")
        ->check(number(0, 7));
    app.add_option("--sharing", sharing, "how processes share a device")
        ->check(one_of("mps", "timeslice"));
    app.add_option("--slice-us", slice_us, "length of a time slice")->check(number(1, 1e6));
    app.add_option("--context-switch-us", switch_us, "cost of a change of slices")
        ->check(number(0, 1e5));
    app.add_option("--launch-us", launch_us, "from submission to the earliest start")
        ->check(number(0, 1e5));
    app.add_option("--gap-us", gap_us, "between operations of a stream")->check(number(0, 1e5));
    app.add_option("--copy-engines", engine.copy_engines, "copy engines of a device")
        ->check(number(1, 16));
    app.add_option("--link-gbps", engine.link_gbps, "bandwidth of a link, 10^9 bit/s")
        ->check(number(1e-3, 1e5));
    app.add_option("--latency-us", latency_us, "latency of a rendezvous")->check(number(0, 1e6));
    app.add_flag("--shared-link", engine.shared_link, "all communicators share one link");
    app.add_option("--nodes", engine.nodes,
                   "the devices are those of so many machines, in equal ranges")
        ->check(number(1, 64));
    app.add_option("--node-link-gbps", engine.node_link_gbps,
                   "bandwidth of a link between machines, 10^9 bit/s; 0: as --link-gbps")
        ->check(number(0, 1e5));
    app.add_option("--node-latency-us", node_latency_us, "latency of a rendezvous between machines")
        ->check(number(0, 1e6));
    app.add_option("--timeslice-comm", timeslice_comm, "transfers of a process without a slice")
        ->check(one_of("continue", "stall"));
    app.add_option("--max-lead-us", max_lead_us,
                   "most by which notices are sent early, against late wake-ups")
        ->check(number(0, 10'000));
    app.add_option("--ready-fd", config.ready_fd,
                   "file descriptor that gets a byte once the server accepts")
        ->check(number(0, 1e6));
    app.add_option("--parent", config.parent, "end when this process, the starter, ends")
        ->check(number(1, 1e9));
    app.add_flag("--no-truth-log", no_truth_log, "write no truth.jsonl");
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        text = app.help();
        return ParseResult::kHelp;
    } catch (const CLI::ParseError& error) {
        text = error.what();
        return ParseResult::kBad;
    }
    if (engine.devices % engine.nodes != 0) {
        text = fmt::format("--nodes: {} does not divide the {} devices (--devices)", engine.nodes,
                           engine.devices);
        return ParseResult::kBad;
    }
    engine.devices *= std::max(1, engine.instances);
    engine.sharing = sharing == "mps" ? Sharing::kMps : Sharing::kTimeslice;
    engine.timeslice_comm =
        timeslice_comm == "stall" ? TimesliceComm::kStall : TimesliceComm::kContinue;
    engine.slice_ns = to_ns(slice_us);
    engine.context_switch_ns = to_ns(switch_us);
    engine.launch_ns = to_ns(launch_us);
    engine.gap_ns = to_ns(gap_us);
    engine.latency_ns = to_ns(latency_us);
    engine.node_latency_ns = to_ns(node_latency_us);
    config.max_lead_ns = to_ns(max_lead_us);
    config.truth_log = !no_truth_log;
    return ParseResult::kRun;
}

std::string settings_text(const EngineSettings& settings) {
    const bool mps = settings.sharing == Sharing::kMps;
    const std::string parts[] = {
        fmt::format("devices={}", settings.devices / std::max(1, settings.instances)),
        fmt::format("sharing={}", mps ? "mps" : "timeslice"),
        settings.instances > 0 ? fmt::format("mig={}", settings.instances) : std::string(),
        fmt::format("slice_us={:g}", to_us(settings.slice_ns)),
        fmt::format("link_gbps={:g}", settings.link_gbps),
        fmt::format("latency_us={:g}", to_us(settings.latency_ns)),
        fmt::format("shared_link={}", settings.shared_link ? 1 : 0),
    };
    // Whole words only, the first two always fit.
    std::string text;
    for (const std::string& part : parts) {
        if (part.empty()) continue;
        if (text.size() + 1 + part.size() >= sizeof(Notice::text)) break;
        if (!text.empty()) text += ' ';
        text += part;
    }
    return text;
}

}  // namespace simgpu
