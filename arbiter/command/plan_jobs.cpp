// SPDX-License-Identifier: Apache-2.0
// Job descriptions: see plan_jobs.hpp. Everything that is read is checked here and nowhere else.
#include "plan_jobs.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <initializer_list>
#include <nlohmann/json.hpp>
#include <string_view>

#include "command.hpp"

namespace crossover::command {
namespace {

namespace fs = std::filesystem;
using nlohmann::json;

constexpr std::size_t kMostPlannedJobs = 1000;
constexpr std::size_t kMostSteps = 1000;
constexpr std::size_t kMostRanks = 1000;

json read_json(const std::string& path) {
    std::ifstream file(path);
    if (!file) {
        throw UsageError(fmt::format("'{}' cannot be read", path));
    }
    try {
        return json::parse(file);
    } catch (const json::parse_error& error) {
        throw UsageError(fmt::format("'{}' is no JSON (at byte {})", path, error.byte));
    }
}

// One job's description, with the words for its mistakes.
class Description {
  public:
    Description(const json& object, std::string where) : object_(object), where_(std::move(where)) {
        if (!object_.is_object()) {
            fail("is no object");
        }
    }

    void allow_only(std::initializer_list<std::string_view> keys) const {
        for (const auto& item : object_.items()) {
            if (std::find(keys.begin(), keys.end(), item.key()) == keys.end()) {
                fail(fmt::format("has '{}'; allowed: {}", item.key(), fmt::join(keys, ", ")));
            }
        }
    }

    std::string text(const char* key) const {
        const auto found = object_.find(key);
        if (found == object_.end() || !found->is_string() || found->get<std::string>().empty()) {
            fail(fmt::format("needs \"{}\", a text", key));
        }
        return found->get<std::string>();
    }

    // `above_minimum`: the minimum itself is not allowed.
    double number(const char* key, double fallback, double minimum, double maximum,
                  bool above_minimum = false) const {
        const auto found = object_.find(key);
        if (found == object_.end()) {
            if (!std::isfinite(fallback)) {
                fail(fmt::format("needs \"{}\"", key));
            }
            return fallback;
        }
        const double value = found->is_number() ? found->get<double>() : NAN;
        if (!(above_minimum ? value > minimum : value >= minimum) || !(value <= maximum)) {
            fail(fmt::format("\"{}\" is {}; allowed: a number {} {} to {}", key, found->dump(),
                             above_minimum ? "above" : "from", minimum, maximum));
        }
        return value;
    }

    // A number above 0 that all ranks have, or a list of one from 0 for each.
    PerRank numbers(const char* key, double maximum) const {
        const auto found = object_.find(key);
        if (found == object_.end() || !found->is_array()) {
            return {number(key, NAN, 0, maximum, true)};
        }
        PerRank values;
        for (const json& entry : *found) {
            values.push_back(entry.is_number() ? entry.get<double>() : NAN);
        }
        const auto fits = [&](double value) { return value >= 0 && value <= maximum; };
        if (values.empty() || values.size() > kMostRanks ||
            !std::all_of(values.begin(), values.end(), fits)) {
            fail(fmt::format("\"{}\" is {}; allowed in a list: 1 to {} numbers from 0 to {}", key,
                             found->dump(), kMostRanks, maximum));
        }
        return values;
    }

    std::uint32_t whole(const char* key, std::uint32_t fallback, std::uint32_t minimum,
                        std::uint32_t maximum) const {
        const auto found = object_.find(key);
        if (found == object_.end()) {
            return fallback;
        }
        const bool fits = found->is_number_unsigned() && found->get<std::uint64_t>() >= minimum &&
                          found->get<std::uint64_t>() <= maximum;
        if (!fits) {
            fail(fmt::format("\"{}\" is {}; allowed: a whole number from {} to {}", key,
                             found->dump(), minimum, maximum));
        }
        return found->get<std::uint32_t>();
    }

    bool yes_or_no(const char* key, bool fallback) const {
        const auto found = object_.find(key);
        if (found == object_.end()) {
            return fallback;
        }
        if (!found->is_boolean()) {
            fail(fmt::format("\"{}\" is {}; allowed: true, false", key, found->dump()));
        }
        return found->get<bool>();
    }

    // The list's entries, each to be read as a description of its own.
    std::vector<Description> list(const char* key, std::size_t most) const {
        const json& found = object_.at(key);
        if (!found.is_array() || found.empty() || found.size() > most) {
            fail(fmt::format("needs \"{}\", a list of 1 to {}", key, most));
        }
        std::vector<Description> entries;
        for (std::size_t index = 0; index < found.size(); ++index) {
            entries.emplace_back(found[index], fmt::format("{} \"{}\" {}", where_, key, index + 1));
        }
        return entries;
    }

    bool has(const char* key) const { return object_.contains(key); }

    [[noreturn]] void fail(const std::string& what) const {
        throw UsageError(fmt::format("{} {}", where_, what));
    }

  private:
    const json& object_;
    std::string where_;
};

constexpr double kLongestMs = 3.6e6;

std::size_t ranks_of(const std::vector<PlannedStep>& steps) {
    std::size_t ranks = 1;
    for (const PlannedStep& step : steps) {
        ranks = std::max(ranks, step.compute_ms.size());
    }
    return ranks;
}

// What each rank computes in an iteration.
PerRank rank_compute_ms(const std::vector<PlannedStep>& steps) {
    PerRank sums(ranks_of(steps), 0.0);
    for (std::size_t rank = 0; rank < sums.size(); ++rank) {
        for (const PlannedStep& step : steps) {
            sums[rank] += of_rank(step.compute_ms, rank);
        }
    }
    return sums;
}

PlannedJob described_job(const Description& description) {
    description.allow_only({"name", "compute_ms", "communicate_ms", "buckets", "first_bucket",
                            "jitter", "weight", "count"});
    PlannedJob job;
    job.name = description.text("name");
    job.compute_ms = description.number("compute_ms", NAN, 0, kLongestMs, true);
    job.communicate_ms = description.number("communicate_ms", 0, 0, kLongestMs);
    job.buckets = description.whole("buckets", 1, 1, 1000);
    job.first_bucket = description.number("first_bucket", job.buckets > 1 ? 0.5 : 1, 0, 1);
    job.jitter = description.number("jitter", 0, 0, 1);
    job.weight = description.whole("weight", 0, 0, 1000);
    return job;
}

PlannedJob stepped_job(const Description& description) {
    description.allow_only({"name", "steps", "jitter", "weight", "count"});
    PlannedJob job;
    job.name = description.text("name");
    for (const Description& entry : description.list("steps", kMostSteps)) {
        entry.allow_only({"compute_ms", "communicate_ms", "wait"});
        PlannedStep step;
        step.compute_ms = entry.numbers("compute_ms", kLongestMs);
        step.communicate_ms = entry.number("communicate_ms", 0, 0, kLongestMs);
        step.waits = entry.yes_or_no("wait", true);
        const std::size_t before = job.steps.empty() ? 1 : ranks_of(job.steps);
        if (before > 1 && step.compute_ms.size() > 1 && before != step.compute_ms.size()) {
            entry.fail(fmt::format("\"compute_ms\" is a list of {}; allowed, as before: {}",
                                   step.compute_ms.size(), before));
        }
        job.communicate_ms += step.communicate_ms;
        job.steps.push_back(std::move(step));
    }
    const PerRank compute_ms = rank_compute_ms(job.steps);
    if (*std::min_element(compute_ms.begin(), compute_ms.end()) <= 0) {
        description.fail("has \"steps\" in which a rank computes nothing");
    }
    job.compute_ms = *std::max_element(compute_ms.begin(), compute_ms.end());
    job.jitter = description.number("jitter", 0, 0, 1);
    job.weight = description.whole("weight", 0, 0, 1000);
    return job;
}

PlannedJob measured_job(const Description& description, const fs::path& folder) {
    description.allow_only({"name", "measured", "job", "iterations", "jitter", "weight", "count"});
    const std::string path = (folder / description.text("measured")).lexically_normal().string();
    const std::string wanted = description.text("job");
    const double iterations = description.whole("iterations", 1, 1, 1'000'000'000);
    const json comparison = read_json(path);
    const auto jobs = comparison.find("jobs");
    if (jobs == comparison.end() || !jobs->is_array()) {
        description.fail(fmt::format("names '{}', which is no result of compare --json", path));
    }
    for (const json& measured : *jobs) {
        if (!measured.is_object() || measured.value("name", "") != wanted) {
            continue;
        }
        const auto alone = measured.find("alone");
        if (alone == measured.end() || !alone->is_object()) {
            break;
        }
        const Description figures(*alone, fmt::format("'{}': job {}, \"alone\":", path, wanted));
        PlannedJob job;
        job.name = description.text("name");
        const double most = iterations * kLongestMs / 1e3;
        const auto per_iteration_ms = [&](const char* key, bool positive) {
            return figures.number(key, NAN, 0, most, positive) * 1e3 / iterations;
        };
        job.compute_ms = per_iteration_ms("compute_seconds", true);
        job.communicate_ms = per_iteration_ms("communicate_seconds", false);
        const double exposed =
            std::min(per_iteration_ms("exposed_seconds", false), job.communicate_ms);
        const double hidden = job.communicate_ms - exposed;
        if (hidden > 0 && exposed > 0) {
            // Equal buckets, the last of which is what remains after compute.
            const double buckets =
                std::clamp(std::round(job.communicate_ms / exposed), 2.0, 1000.0);
            job.buckets = static_cast<std::uint32_t>(buckets);
            job.first_bucket = std::clamp(1 - hidden / job.compute_ms, 0.0, 1.0);
        }
        job.jitter = description.number("jitter", 0, 0, 1);
        job.weight = description.whole("weight", 0, 0, 1000);
        return job;
    }
    description.fail(fmt::format("names job '{}', which '{}' has no figures of", wanted, path));
}

}  // namespace

std::vector<PlannedStep> course_of(const PlannedJob& job) {
    std::vector<PlannedStep> course = job.steps;
    if (course.empty()) {
        const std::uint32_t buckets = job.communicate_ms > 0 ? job.buckets : 1;
        double before = 0;
        for (std::uint32_t bucket = 0; bucket < buckets; ++bucket) {
            const double place =
                bucket + 1 == buckets
                    ? 1
                    : job.first_bucket + (1 - job.first_bucket) * bucket / (buckets - 1);
            course.push_back(
                {{(place - before) * job.compute_ms}, job.communicate_ms / buckets, false, {0}});
            before = place;
        }
    }
    course.back().waits = true;
    std::vector<double> now(ranks_of(course), 0.0);
    double link_end = 0;
    for (PlannedStep& step : course) {
        for (std::size_t rank = 0; rank < now.size(); ++rank) {
            now[rank] += of_rank(step.compute_ms, rank);
        }
        if (step.communicate_ms > 0) {
            link_end =
                std::max(*std::max_element(now.begin(), now.end()), link_end) + step.communicate_ms;
        }
        step.window_ms.clear();
        for (double& at : now) {
            step.window_ms.push_back(step.waits ? std::max(0.0, link_end - at) : 0);
            at += step.window_ms.back();
        }
    }
    return course;
}

double exposed_ms(const PlannedJob& job) {
    const std::vector<PlannedStep> course = course_of(job);
    const PerRank compute_ms = rank_compute_ms(course);
    const auto longest = static_cast<std::size_t>(
        std::max_element(compute_ms.begin(), compute_ms.end()) - compute_ms.begin());
    double sum = 0;
    for (const PlannedStep& step : course) {
        sum += of_rank(step.window_ms, longest);
    }
    return sum;
}

std::vector<PlannedJob> read_planned_jobs(const std::string& path) {
    const json file = read_json(path);
    const auto list = file.is_object() ? file.find("jobs") : file.end();
    if (!file.is_object() || list == file.end() || !list->is_array() || list->empty()) {
        throw UsageError(fmt::format("'{}' needs \"jobs\", a list of at least one job", path));
    }
    std::vector<PlannedJob> jobs;
    for (std::size_t index = 0; index < list->size(); ++index) {
        const Description description((*list)[index], fmt::format("'{}': job {}", path, index + 1));
        const PlannedJob job = description.has("measured")
                                   ? measured_job(description, fs::path(path).parent_path())
                               : description.has("steps") ? stepped_job(description)
                                                          : described_job(description);
        const std::uint32_t count = description.whole("count", 1, 1, kMostPlannedJobs);
        for (std::uint32_t copy = 0; copy < count; ++copy) {
            jobs.push_back(job);
            if (count > 1) {
                jobs.back().name += fmt::format("-{}", copy + 1);
            }
        }
        if (jobs.size() > kMostPlannedJobs) {
            throw UsageError(
                fmt::format("'{}' has more jobs than allowed: {}", path, kMostPlannedJobs));
        }
    }
    for (std::size_t i = 0; i < jobs.size(); ++i) {
        for (std::size_t j = 0; j < i; ++j) {
            if (jobs[i].name == jobs[j].name) {
                throw UsageError(fmt::format("'{}' has two jobs named '{}'", path, jobs[i].name));
            }
        }
    }
    return jobs;
}

}  // namespace crossover::command
