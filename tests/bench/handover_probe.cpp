// SPDX-License-Identifier: Apache-2.0
// The part of the hand-over benchmark that needs the arbiter alone: options, a table, JSON. What is
// measured stands in handover_parts.hpp; whole programs are handover.py's business.
#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "handover_parts.hpp"
#include "handover_processes.hpp"

namespace {

using namespace crossover::bench;
using Json = nlohmann::ordered_json;

// What a hand-over may cost beside a bare wake of a sleeping process.
constexpr double kAimP50 = 1.5;
constexpr double kAimP99 = 2.0;

// Nearest rank.
double quantile_us(std::vector<std::uint64_t> values, double part) {
    const auto rank =
        static_cast<std::size_t>(std::ceil(part * static_cast<double>(values.size())));
    const std::size_t at = std::min(values.size(), std::max<std::size_t>(rank, 1)) - 1;
    std::nth_element(values.begin(), values.begin() + static_cast<std::ptrdiff_t>(at),
                     values.end());
    return static_cast<double>(values[at]) / 1e3;
}

Json summary(const std::vector<std::uint64_t>& values) {
    return {{"p50", quantile_us(values, 0.5)},
            {"p90", quantile_us(values, 0.9)},
            {"p99", quantile_us(values, 0.99)},
            {"max", quantile_us(values, 1.0)}};
}

void print_row(const char* what, const Json& row) {
    fmt::print("  {:<44} {:>9.1f} {:>9.1f} {:>9.1f} {:>9.1f}\n", what, row["p50"].get<double>(),
               row["p90"].get<double>(), row["p99"].get<double>(), row["max"].get<double>());
}

// Ratios of the medians of neighbouring blocks: how far noise moves the ratio of the whole.
Json block_ratios(const LatencyFigures& figures, std::size_t block) {
    std::vector<double> ratios;
    for (std::size_t first = 0; first + block <= figures.handover_ns.size(); first += block) {
        const auto median = [&](const std::vector<std::uint64_t>& all) {
            const auto begin = all.begin() + static_cast<std::ptrdiff_t>(first);
            return quantile_us({begin, begin + static_cast<std::ptrdiff_t>(block)}, 0.5);
        };
        ratios.push_back(median(figures.handover_ns) / median(figures.floor_ns));
    }
    std::sort(ratios.begin(), ratios.end());
    return {{"blocks", ratios.size()},
            {"low", ratios[ratios.size() / 10]},
            {"median", ratios[ratios.size() / 2]},
            {"high", ratios[ratios.size() - 1 - ratios.size() / 10]}};
}

Json latency(const LatencyPlan& plan) {
    const LatencyFigures figures = measure_latency(plan);
    const Json handover = summary(figures.handover_ns);
    const Json floor = summary(figures.floor_ns);
    const double p50 = handover["p50"].get<double>() / floor["p50"].get<double>();
    const double p99 = handover["p99"].get<double>() / floor["p99"].get<double>();
    const Json blocks = block_ratios(figures, plan.block + plan.block % 2);
    fmt::print("{} hand-overs and as many bare wakes, by turns in blocks of {}; us\n",
               figures.handover_ns.size(), plan.block + plan.block % 2);
    fmt::print("  {:<44} {:>9} {:>9} {:>9} {:>9}\n", "", "p50", "p90", "p99", "max");
    print_row("hand-over: release() to acquire() returned", handover);
    print_row("floor: a bare futex wake", floor);
    print_row("  of the hand-over, in release()", summary(figures.release_ns));
    print_row("  of the floor, in FUTEX_WAKE", summary(figures.wake_ns));
    fmt::print(
        "  ratio {:.2f} at p50 (aim {:.1f}), {:.2f} at p99 (aim {:.1f}); block by block "
        "{:.2f}, 10 % below {:.2f}, 10 % above {:.2f}; slept for {:.2f} ms or longer\n\n",
        p50, kAimP50, p99, kAimP99, blocks["median"].get<double>(), blocks["low"].get<double>(),
        blocks["high"].get<double>(), static_cast<double>(figures.shortest_sleep_ns) / 1e6);
    return {{"handovers", figures.handover_ns.size()},
            {"wakes", figures.floor_ns.size()},
            {"block", plan.block + plan.block % 2},
            {"shortest_sleep_us", static_cast<double>(figures.shortest_sleep_ns) / 1e3},
            {"handover_us", handover},
            {"floor_us", floor},
            {"release_us", summary(figures.release_ns)},
            {"wake_us", summary(figures.wake_ns)},
            {"ratio", {{"p50", p50}, {"p99", p99}}},
            {"aim", {{"p50", kAimP50}, {"p99", kAimP99}}},
            {"block_ratio_p50", blocks}};
}

Json turns(const std::vector<TurnsPlan>& plans) {
    Json rows = Json::array();
    fmt::print(
        "turns a second, each given back at once\n  {:>7} {:>7} {:>4} {:>12} {:>12} {:>12} "
        "{:>12} {:>12} {:>12} {:>5}\n",
        "devices", "clients", "jobs", "turns/s", "enters/s", "job least", "job most",
        "client least", "client most", "cut");
    for (const TurnsPlan& plan : plans) {
        const TurnsFigures figures = measure_turns(plan);
        const double seconds = static_cast<double>(figures.length_ns) / 1e9;
        const double rate = static_cast<double>(figures.turns) / seconds;
        const double enters = static_cast<double>(figures.acquisitions) / seconds;
        fmt::print("  {:>7} {:>7} {:>4} {:>12.0f} {:>12.0f} {:>12} {:>12} {:>12} {:>12} {:>5}\n",
                   plan.devices, plan.clients, figures.jobs, rate, enters, figures.job_least,
                   figures.job_most, figures.client_least, figures.client_most,
                   figures.cut_by_lease);
        std::fflush(stdout);
        rows.push_back({{"devices", plan.devices},
                        {"clients", plan.clients},
                        {"attachments", plan.clients * plan.devices},
                        {"jobs", figures.jobs},
                        {"seconds", seconds},
                        {"turns", figures.turns},
                        {"turns_per_s", rate},
                        {"acquisitions", figures.acquisitions},
                        {"job_turns_least", figures.job_least},
                        {"job_turns_most", figures.job_most},
                        {"client_acquisitions_least", figures.client_least},
                        {"client_acquisitions_most", figures.client_most},
                        {"cut_by_lease", figures.cut_by_lease}});
    }
    fmt::print(
        "  clients: processes, each attached once to every device; job and client: per device\n\n");
    return rows;
}

Json idle(const std::vector<IdlePlan>& plans) {
    Json rows = Json::array();
    for (const IdlePlan& plan : plans) {
        const IdleFigures figures = measure_idle(plan);
        const double seconds = static_cast<double>(figures.length_ns) / 1e9;
        fmt::print(
            "{} attached clients of {} jobs, idle for {:.1f} s: {} wake-ups (voluntary context "
            "switches of all their threads){}\n",
            plan.clients, figures.jobs, seconds, figures.voluntary,
            figures.settled ? "" : "; they had not settled before");
        std::fflush(stdout);
        rows.push_back({{"clients", plan.clients},
                        {"jobs", figures.jobs},
                        {"seconds", seconds},
                        {"voluntary_switches", figures.voluntary},
                        {"involuntary_switches", figures.involuntary},
                        {"settled", figures.settled}});
    }
    return rows;
}

int run(int argc, char** argv) {
    CLI::App app{"Hand-over of a turn between processes, turns a second, and idle clients",
                 "handover"};
    std::string json_file;
    std::vector<std::string> parts{"latency", "turns", "idle"};
    LatencyPlan plan;
    double asleep_us = 1000, seconds = 2, idle_seconds = 10;
    std::vector<std::uint32_t> clients{1, 2, 4, 8, 16, 32, 64}, idle_clients{2, 64};
    std::uint32_t devices = 16, jobs = 8;
    app.add_option("--json", json_file, "write the figures to this file");
    app.add_option("--parts", parts, "what to measure, with commas")
        ->delimiter(',')
        ->check(CLI::IsMember({"latency", "turns", "idle"}))
        ->capture_default_str();
    app.add_option("--handovers", plan.handovers, "hand-overs to time, and as many bare wakes")
        ->check(CLI::Range(2, 1'000'000))
        ->capture_default_str();
    app.add_option("--block", plan.block, "of one kind before the other kind's next block")
        ->check(CLI::Range(2, 100'000))
        ->capture_default_str();
    app.add_option("--asleep-us", asleep_us, "least sleep before a wake-up")
        ->check(CLI::Range(10.0, 1e6))
        ->capture_default_str();
    app.add_option("--seconds", seconds, "length of each measurement of turns")
        ->check(CLI::Range(0.05, 600.0))
        ->capture_default_str();
    app.add_option("--clients", clients, "numbers of clients that take turns, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 128))
        ->capture_default_str();
    app.add_option("--jobs", jobs, "jobs at most")->check(CLI::Range(1, 32))->capture_default_str();
    app.add_option("--devices", devices, "of one more measurement with the most clients; 0: none")
        ->check(CLI::Range(0, 64))
        ->capture_default_str();
    app.add_option("--idle-seconds", idle_seconds, "length of each measurement of idle clients")
        ->check(CLI::Range(0.05, 600.0))
        ->capture_default_str();
    app.add_option("--idle-clients", idle_clients, "numbers of idle clients, with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 128))
        ->capture_default_str();
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        std::fputs(app.help().c_str(), stdout);
        return 0;
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "handover: %s\n", error.what());
        return 2;
    }
    const auto wanted = [&](const char* part) {
        return std::find(parts.begin(), parts.end(), part) != parts.end();
    };
    double load = -1;
    getloadavg(&load, 1);
    Json json = {{"cores", sysconf(_SC_NPROCESSORS_ONLN)}, {"load", load}};
    fmt::print("{} cores, load {:.2f} over the last minute; nothing is pinned\n\n",
               sysconf(_SC_NPROCESSORS_ONLN), load);
    if (wanted("latency")) {
        plan.asleep_ns = static_cast<std::uint64_t>(asleep_us * 1e3);
        json["latency"] = latency(plan);
    }
    if (wanted("turns")) {
        std::vector<TurnsPlan> plans;
        const auto length = static_cast<std::uint64_t>(seconds * 1e9);
        for (const std::uint32_t count : clients) plans.push_back({count, 1, jobs, length});
        if (devices != 0) {
            plans.push_back(
                {*std::max_element(clients.begin(), clients.end()), devices, jobs, length});
        }
        json["turns"] = turns(plans);
    }
    if (wanted("idle")) {
        std::vector<IdlePlan> plans;
        for (const std::uint32_t count : idle_clients) {
            plans.push_back({count, jobs, static_cast<std::uint64_t>(idle_seconds * 1e9)});
        }
        json["idle"] = idle(plans);
    }
    if (!json_file.empty()) {
        std::ofstream file(json_file);
        file << json.dump(2) << '\n';
        if (!file.flush()) fail("--json " + json_file + ": cannot be written");
    }
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "handover: %s\n", error.what());
        return 1;
    }
}
