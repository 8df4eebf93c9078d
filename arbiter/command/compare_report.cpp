// SPDX-License-Identifier: Apache-2.0
// Table and JSON of a comparison: see compare_report.hpp.
#include "compare_report.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>

namespace crossover::command {
namespace {

using nlohmann::ordered_json;

double seconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e9; }

std::uint64_t serial_ns(const Comparison& comparison) {
    std::uint64_t sum = 0;
    for (const ComparedJob& job : comparison.jobs) {
        sum += median_ns(job.alone_ns);
    }
    return sum;
}

// Sums of the jobs' times, round by round.
std::vector<std::uint64_t> serial_rounds(const Comparison& comparison) {
    std::vector<std::uint64_t> sums;
    for (const ComparedJob& job : comparison.jobs) {
        sums.resize(std::max(sums.size(), job.alone_ns.size()));
        for (std::size_t round = 0; round < job.alone_ns.size(); ++round) {
            sums[round] += job.alone_ns[round];
        }
    }
    return sums;
}

struct Mode {
    const char* name;
    std::vector<std::uint64_t> rounds;
    std::uint64_t time_ns;
};

std::vector<Mode> modes_of(const Comparison& comparison) {
    return {{"serial", serial_rounds(comparison), serial_ns(comparison)},
            {"uncoordinated", comparison.uncoordinated_ns, median_ns(comparison.uncoordinated_ns)},
            {"crossover", comparison.crossover_ns, median_ns(comparison.crossover_ns)}};
}

std::string ratio(std::uint64_t of, std::uint64_t by) {
    return of == 0 || by == 0
               ? "-"
               : fmt::format("{:.3f}", static_cast<double>(of) / static_cast<double>(by));
}

ordered_json ratio_json(std::uint64_t of, std::uint64_t by) {
    return of == 0 || by == 0 ? ordered_json()
                              : ordered_json(static_cast<double>(of) / static_cast<double>(by));
}

std::string spread(const std::vector<std::uint64_t>& rounds) {
    if (rounds.size() < 2) {
        return "";
    }
    const auto [least, most] = std::minmax_element(rounds.begin(), rounds.end());
    return fmt::format("{:.3f}-{:.3f}", seconds(*least), seconds(*most));
}

ordered_json seconds_json(const std::vector<std::uint64_t>& rounds) {
    ordered_json list = ordered_json::array();
    for (const std::uint64_t round : rounds) {
        list.push_back(seconds(round));
    }
    return list;
}

std::uint64_t median_of(const std::vector<JobSample>& samples, std::uint64_t JobTotals::*field) {
    std::vector<std::uint64_t> values;
    for (const JobSample& sample : samples) {
        values.push_back(sample.totals.*field);
    }
    return median_ns(std::move(values));
}

double mean_ms(std::uint64_t sum_ns, std::uint64_t count) {
    return count == 0 ? 0 : seconds(sum_ns) * 1e3 / static_cast<double>(count);
}

}  // namespace

std::uint64_t median_ns(std::vector<std::uint64_t> values) {
    if (values.empty()) {
        return 0;
    }
    std::sort(values.begin(), values.end());
    const std::size_t middle = values.size() / 2;
    return values.size() % 2 == 1 ? values[middle]
                                  : values[middle - 1] + (values[middle] - values[middle - 1]) / 2;
}

JobSample typical(const std::vector<JobSample>& samples) {
    JobSample result;
    if (samples.empty() || std::any_of(samples.begin(), samples.end(), [](const JobSample& sample) {
            return sample.clients == 0;
        })) {
        return result;
    }
    result = samples.back();
    result.totals = {
        median_of(samples, &JobTotals::start_ns), median_of(samples, &JobTotals::compute_ns),
        median_of(samples, &JobTotals::communicate_ns), median_of(samples, &JobTotals::exposed_ns)};
    return result;
}

std::uint64_t measured_bound_ns(const Comparison& comparison) {
    std::vector<JobTotals> totals;
    for (const ComparedJob& job : comparison.jobs) {
        const JobSample sample = typical(job.alone);
        if (sample.clients == 0) {
            return 0;
        }
        totals.push_back(sample.totals);
    }
    return bound_ns(totals, comparison.separate_links);
}

std::string compare_text(const Comparison& comparison) {
    const std::uint64_t serial = serial_ns(comparison);
    const std::uint64_t bound = measured_bound_ns(comparison);
    std::string text = fmt::format("{:<16} {:>10} {:>10} {:>11}  {}\n", "mode", "time s",
                                   "speed-up", "efficiency", "rounds s");
    for (const Mode& mode : modes_of(comparison)) {
        text += fmt::format("{:<16} {:>10.3f} {:>10} {:>11}  {}\n", mode.name,
                            seconds(mode.time_ns), ratio(serial, mode.time_ns),
                            ratio(bound, mode.time_ns), spread(mode.rounds));
    }
    if (bound != 0) {
        text += fmt::format("{:<16} {:>10.3f} {:>10} {:>11}\n", "bound T*", seconds(bound),
                            ratio(serial, bound), "1.000");
    }
    text += fmt::format("\n{:<6} {:>9} {:>9} {:>9} {:>9} {:>9} {:>9} | {:>9} {:>7} {:>9} {:>9}\n",
                        "alone:", "wall s", "start S", "C s", "M s", "E s", "processes",
                        "crossover", "turns", "turn ms", "wait ms");
    for (const ComparedJob& job : comparison.jobs) {
        const JobSample alone = typical(job.alone);
        const JobSample shared = typical(job.crossover);
        if (alone.clients == 0) {
            text += fmt::format("{:<6} {:>9.3f} {:>9} {:>9} {:>9} {:>9} {:>9}", job.name,
                                seconds(median_ns(job.alone_ns)), "-", "-", "-", "-", 0);
        } else {
            text +=
                fmt::format("{:<6} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9.3f} {:>9}", job.name,
                            seconds(median_ns(job.alone_ns)), seconds(alone.totals.start_ns),
                            seconds(alone.totals.compute_ns), seconds(alone.totals.communicate_ns),
                            seconds(alone.totals.exposed_ns), alone.clients);
        }
        text += fmt::format(" | {:>9.3f} {:>7} {:>9.2f} {:>9.2f}\n",
                            seconds(median_ns(job.crossover_ns)), shared.turns,
                            mean_ms(shared.held_ns, shared.turns),
                            mean_ms(shared.waited_ns, shared.turns));
    }
    return text;
}

ordered_json compare_json(const Comparison& comparison) {
    const std::uint64_t serial = serial_ns(comparison);
    const std::uint64_t bound = measured_bound_ns(comparison);
    ordered_json modes = ordered_json::array();
    for (const Mode& mode : modes_of(comparison)) {
        modes.push_back({{"mode", mode.name},
                         {"seconds", seconds(mode.time_ns)},
                         {"rounds_seconds", seconds_json(mode.rounds)},
                         {"speed_up", ratio_json(serial, mode.time_ns)},
                         {"efficiency", ratio_json(bound, mode.time_ns)}});
    }
    ordered_json jobs = ordered_json::array();
    for (const ComparedJob& job : comparison.jobs) {
        const JobSample alone = typical(job.alone);
        const JobSample shared = typical(job.crossover);
        ordered_json measured;
        if (alone.clients != 0) {
            measured = {{"start_seconds", seconds(alone.totals.start_ns)},
                        {"compute_seconds", seconds(alone.totals.compute_ns)},
                        {"communicate_seconds", seconds(alone.totals.communicate_ns)},
                        {"exposed_seconds", seconds(alone.totals.exposed_ns)},
                        {"clients", alone.clients},
                        {"devices", alone.devices}};
        }
        jobs.push_back({{"name", job.name},
                        {"command", job.command},
                        {"alone_seconds", seconds_json(job.alone_ns)},
                        {"alone", measured},
                        {"crossover_seconds", seconds_json(job.crossover_ns)},
                        {"crossover",
                         {{"clients", shared.clients},
                          {"crossings", shared.crossings},
                          {"turns", shared.turns},
                          {"held_seconds", seconds(shared.held_ns)},
                          {"waited_seconds", seconds(shared.waited_ns)}}}});
    }
    return {{"separate_links", comparison.separate_links},
            {"bound_seconds", bound == 0 ? ordered_json() : ordered_json(seconds(bound))},
            {"modes", modes},
            {"jobs", jobs}};
}

std::vector<std::string> compare_doubts(const Comparison& comparison) {
    std::vector<std::string> doubts;
    std::set<std::string> devices;
    bool shares = comparison.jobs.size() < 2;
    bool all_seen = true;
    for (const ComparedJob& job : comparison.jobs) {
        const JobSample alone = typical(job.alone);
        if (alone.clients == 0) {
            all_seen = false;
            doubts.push_back(
                fmt::format("job {} used no device while the library watched: no bound; see its "
                            "output, and CROSSOVER_LOG=info",
                            job.name));
            continue;
        }
        if (alone.totals.communicate_ns == 0) {
            doubts.push_back(
                fmt::format("job {} never communicated: there is nothing to cross over", job.name));
        }
        for (const std::string& device : alone.devices) {
            shares |= !devices.insert(device).second;
        }
        if (typical(job.crossover).turns == 0) {
            doubts.push_back(fmt::format("job {} took no turn beside the others", job.name));
        }
    }
    if (all_seen && !shares) {
        doubts.push_back("the jobs share no device: the bound, which supposes it, does not hold");
    }
    return doubts;
}

}  // namespace crossover::command
