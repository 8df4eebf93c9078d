// SPDX-License-Identifier: Apache-2.0
// `crossover plan`: what jobs would gain by sharing devices, and which of them should.
#include <fmt/format.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <exception>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <thread>

#include "arguments.hpp"
#include "command.hpp"
#include "crossover/layout.hpp"
#include "plan_jobs.hpp"
#include "plan_pairs.hpp"
#include "plan_simulation.hpp"

namespace crossover::command {
namespace {

using nlohmann::ordered_json;

constexpr const char* kDescription =
    "Predicts, by a simulation that takes its turns with the library's own code, how much faster "
    "jobs\n"
    "get on by sharing devices than one after the other. FILE describes the jobs:\n"
    "  {\"jobs\": [{\"name\": \"a\", \"compute_ms\": 40, \"communicate_ms\": 20},\n"
    "            {\"name\": \"b\", \"compute_ms\": 60, \"communicate_ms\": 30, \"buckets\": 4, "
    "\"first_bucket\": 0.5,\n"
    "             \"jitter\": 0.03, \"weight\": 2, \"count\": 3},\n"
    "            {\"name\": \"c\", \"steps\": [{\"compute_ms\": 9, \"communicate_ms\": 2, "
    "\"wait\": "
    "false},\n"
    "                                   {\"compute_ms\": [8, 6], \"communicate_ms\": 1}]},\n"
    "            {\"name\": \"d\", \"measured\": \"compare.json\", \"job\": \"A\", \"iterations\": "
    "200}]}\n"
    "per iteration of a rank, alone: compute_ms, communicate_ms in `buckets` equal collectives, "
    "the first\n"
    "submitted once compute is `first_bucket` through, the last at its end; or `steps` of compute, "
    "each\n"
    "ended by a collective that what follows waits for unless told not to, with a list where ranks "
    "compute\n"
    "unlike; or what compare --json measured.\n"
    "Speed: sum over the jobs of (iteration time alone / together): 1 gains nothing, 2 is two for "
    "one.";

struct PlanOptions {
    std::string file;
    std::string json;
    std::uint64_t nodes = 1;
    std::uint64_t devices = 2;
    std::uint64_t iterations = 60;
    std::uint64_t seed = 1;
    std::uint64_t handover_us = 300;
    std::uint64_t late_us = 2000;
    std::uint64_t min_window_us = 300;
    bool together = false;
    bool separate_links = false;
};

struct Group {
    std::vector<std::size_t> jobs;
    std::uint32_t devices = 0;
    std::vector<double> alone_ms;
    std::vector<double> together_ms;
    std::vector<double> uncoordinated_ms;
    double bound_ms = 0;
    double device_busy = 0;

    double speed() const { return combined_speed(alone_ms, together_ms); }
    double uncoordinated_speed() const { return combined_speed(alone_ms, uncoordinated_ms); }
};

// Runs `task(i)` for every i below `count` on the machine's cores.
void in_parallel(std::size_t count, const std::function<void(std::size_t)>& task) {
    std::atomic<std::size_t> next{0};
    std::exception_ptr failure;
    std::atomic<bool> failed{false};
    const auto work = [&] {
        for (std::size_t i = next++; i < count && !failed; i = next++) {
            try {
                task(i);
            } catch (...) {
                if (!failed.exchange(true)) failure = std::current_exception();
            }
        }
    };
    {
        std::vector<std::jthread> threads;
        const std::size_t cores = std::max(1U, std::thread::hardware_concurrency());
        for (std::size_t i = 1; i < std::min(cores, count); ++i) {
            threads.emplace_back(work);
        }
        work();
    }
    if (failure) {
        std::rethrow_exception(failure);
    }
}

class Plan {
  public:
    explicit Plan(PlanOptions options) : options_(std::move(options)) {
        jobs_ = read_planned_jobs(options_.file);
        if (options_.together && jobs_.size() > kMaxJobs) {
            throw UsageError(fmt::format("'{}' has {} jobs; allowed with --together: 1 to {}",
                                         options_.file, jobs_.size(), kMaxJobs));
        }
    }

    void run() {
        if (options_.together) {
            Group all;
            for (std::size_t job = 0; job < jobs_.size(); ++job) {
                all.jobs.push_back(job);
            }
            groups_.push_back(std::move(all));
        } else {
            choose_pairs();
        }
        // The nodes are divided evenly; a job's ranks are on all devices of its group.
        const std::uint64_t nodes = std::max<std::uint64_t>(1, options_.nodes / groups_.size());
        in_parallel(groups_.size(), [&](std::size_t index) {
            predict(groups_[index], static_cast<std::uint32_t>(nodes * options_.devices), true);
        });
    }

    std::string text() const {
        std::string out =
            fmt::format("{:<44} {:>7} {:>21} {:>10} {:>9} {:>7} {:>7}\n", "jobs", "devices",
                        "iteration alone, ms", "together", "bound", "speed", "MPS");
        for (const Group& group : groups_) {
            out += row(group);
        }
        double speed = 0, uncoordinated = 0, busy = 0, devices = 0;
        for (const Group& group : groups_) {
            speed += group.speed() * group.devices;
            uncoordinated += group.uncoordinated_speed() * group.devices;
            busy += group.device_busy * group.devices;
            devices += group.devices;
        }
        out += fmt::format(
            "\n{} jobs in {} groups on {} devices: speed {:.3f} (uncoordinated MPS at its ideal "
            "{:.3f}), devices compute {:.1f} % of the time\n",
            jobs_.size(), groups_.size(), static_cast<std::uint64_t>(devices), speed / devices,
            uncoordinated / devices, 100 * busy / devices);
        return out;
    }

    ordered_json to_json() const {
        ordered_json groups = ordered_json::array();
        for (const Group& group : groups_) {
            ordered_json jobs = ordered_json::array();
            for (std::size_t i = 0; i < group.jobs.size(); ++i) {
                jobs.push_back({{"name", jobs_[group.jobs[i]].name},
                                {"alone_ms", group.alone_ms[i]},
                                {"together_ms", group.together_ms[i]},
                                {"uncoordinated_ms", group.uncoordinated_ms[i]}});
            }
            groups.push_back({{"jobs", jobs},
                              {"devices", group.devices},
                              {"bound_ms", group.bound_ms},
                              {"speed", group.speed()},
                              {"uncoordinated_speed", group.uncoordinated_speed()},
                              {"device_busy", group.device_busy}});
        }
        return {{"seed", options_.seed}, {"groups", groups}};
    }

  private:
    PlanSetting setting(std::uint32_t devices) const {
        PlanSetting setting;
        setting.devices = devices;
        setting.separate_links = options_.separate_links;
        setting.iterations = static_cast<std::uint32_t>(options_.iterations);
        setting.seed = options_.seed;
        setting.handover_ns = options_.handover_us * 1000;
        setting.late_ns = options_.late_us * 1000;
        setting.min_window_ns = options_.min_window_us * 1000;
        return setting;
    }

    void predict(Group& group, std::uint32_t devices, bool uncoordinated) const {
        const PlanSetting at = setting(devices);
        std::vector<PlannedJob> jobs;
        group.alone_ms.clear();
        for (const std::size_t job : group.jobs) {
            jobs.push_back(jobs_[job]);
            const std::span<const PlannedJob> one(&jobs_[job], 1);
            group.alone_ms.push_back(simulate(one, at, PlanMode::kUncoordinated).period_ms[0]);
        }
        PlanResult together = simulate(jobs, at, PlanMode::kCrossover);
        group.devices = devices;
        group.together_ms = std::move(together.period_ms);
        group.device_busy = together.device_busy;
        group.bound_ms = plan_bound_ms(jobs, options_.separate_links);
        if (uncoordinated) {
            group.uncoordinated_ms = simulate(jobs, at, PlanMode::kUncoordinated).period_ms;
        }
    }

    // Every pair is tried on one node; the pairs that gain most are taken, the other jobs stay
    // alone.
    void choose_pairs() {
        std::vector<std::vector<double>> gain(jobs_.size(), std::vector<double>(jobs_.size()));
        std::vector<std::pair<std::size_t, std::size_t>> tries;
        for (std::size_t i = 0; i < jobs_.size(); ++i) {
            for (std::size_t j = i + 1; j < jobs_.size(); ++j) {
                tries.emplace_back(i, j);
            }
        }
        in_parallel(tries.size(), [&](std::size_t index) {
            const auto [i, j] = tries[index];
            Group pair;
            pair.jobs = {i, j};
            predict(pair, static_cast<std::uint32_t>(std::min<std::uint64_t>(options_.devices, 2)),
                    false);
            gain[i][j] = pair.speed() - 1;
        });
        std::vector<bool> taken(jobs_.size());
        for (const auto& [i, j] : best_pairs(gain)) {
            groups_.emplace_back().jobs = {i, j};
            taken[i] = taken[j] = true;
        }
        std::stable_sort(groups_.begin(), groups_.end(), [&](const Group& a, const Group& b) {
            return gain[a.jobs[0]][a.jobs[1]] > gain[b.jobs[0]][b.jobs[1]];
        });
        for (std::size_t job = 0; job < jobs_.size(); ++job) {
            if (!taken[job]) {
                groups_.emplace_back().jobs = {job};
            }
        }
    }

    std::string row(const Group& group) const {
        std::vector<std::string> names, alone, together;
        for (std::size_t i = 0; i < group.jobs.size(); ++i) {
            names.push_back(jobs_[group.jobs[i]].name);
            alone.push_back(fmt::format("{:.1f}", group.alone_ms[i]));
            together.push_back(fmt::format("{:.1f}", group.together_ms[i]));
        }
        return fmt::format("{:<44} {:>7} {:>21} {:>10} {:>9.1f} {:>7.3f} {:>7.3f}\n",
                           fmt::format("{}", fmt::join(names, " + ")), group.devices,
                           fmt::format("{}", fmt::join(alone, " ")),
                           fmt::format("{}", fmt::join(together, " ")), group.bound_ms,
                           group.speed(), group.uncoordinated_speed());
    }

    PlanOptions options_;
    std::vector<PlannedJob> jobs_;
    std::vector<Group> groups_;
};

}  // namespace

int plan_command(Arguments arguments) {
    CLI::App app(kDescription, "crossover plan");
    set_usage(app, "crossover plan [options] FILE");
    PlanOptions options;
    app.add_option("file", options.file, "file of jobs")->required()->type_name("FILE");
    app.add_flag("--together", options.together,
                 "all jobs of the file on the same devices, instead of the best pairs");
    add_number(app, "--nodes", options.nodes, 1, 10'000,
               "nodes, divided evenly among the pairs; default 1");
    add_number(app, "--devices", options.devices, 1, 16, "devices of a node; default 2");
    app.add_flag("--separate-links", options.separate_links,
                 "jobs communicate over different links; default: they share one");
    add_number(app, "--iterations", options.iterations, 10, 100'000,
               "iterations of each job at least; default 60");
    add_number(app, "--seed", options.seed, 0, UINT64_MAX / 2,
               "of what is drawn: jitter, lateness; default 1");
    add_number(app, "--handover-us", options.handover_us, 0, 1'000'000,
               "from one job's last compute to the next one's first; default 300");
    add_number(app, "--late-us", options.late_us, 0, 1'000'000,
               "from the end of an iteration until a rank asks for a turn, at most; default 2000");
    add_number(app, "--min-window-us", options.min_window_us, 0, 1'000'000,
               "CROSSOVER_MIN_WINDOW_US of the jobs; default 300");
    app.add_option("--json", options.json, "file for all figures as JSON")->type_name("FILE");
    if (!parse(app, {arguments.begin(), arguments.end()})) {
        return 0;
    }
    const std::string json_path = options.json;
    Plan plan(std::move(options));
    std::ofstream json;
    if (!json_path.empty()) {
        json.open(json_path, std::ios::trunc);
        if (!json) {
            throw UsageError(fmt::format("--json '{}' cannot be written", json_path));
        }
    }
    plan.run();
    fmt::print("{}", plan.text());
    if (json.is_open()) {
        json << plan.to_json().dump(2) << "\n";
        json.flush();
        if (!json) {
            throw Failure(fmt::format("{} cannot be written", json_path));
        }
    }
    return 0;
}

}  // namespace crossover::command
