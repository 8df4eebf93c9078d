// SPDX-License-Identifier: Apache-2.0
// The virtual GPU's truth log: see truth.hpp.
#include "truth.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <charconv>
#include <istream>
#include <limits>
#include <nlohmann/json.hpp>

#include "command.hpp"

namespace crossover::command {
namespace {

struct Raw {
    Intervals compute;
    Intervals communicate;
};
using Devices = std::map<std::int64_t, std::map<std::string, Raw>>;

void add_line(const std::string& line, const JobOfPid& jobs, Devices& devices) {
    const nlohmann::json json = nlohmann::json::parse(line);
    const std::string kind = json.at("kind").get<std::string>();
    const auto pid = json.at("pid").get<std::uint64_t>();
    const Interval time{json.at("start_ns").get<std::uint64_t>(),
                        json.at("end_ns").get<std::uint64_t>()};
    const auto named = jobs.find(pid);
    Raw& raw = devices[json.at("device").get<std::int64_t>()]
                      [named != jobs.end() ? named->second : fmt::format("pid {}", pid)];
    if (kind == "compute") {
        raw.compute.push_back(time);
    } else if (kind == "communicate") {
        raw.communicate.push_back(time);
    } else if (kind != "copy") {
        throw Failure(fmt::format("kind '{}' is not compute, copy or communicate", kind));
    }
}

}  // namespace

void add_job_pids(const std::string& text, JobOfPid& jobs) {
    const std::size_t equals = text.find('=');
    const auto fault = [&text](const std::string& why) {
        return UsageError(
            fmt::format("--job '{}': {}; allowed: NAME=pid or NAME=pid,pid", text, why));
    };
    if (equals == std::string::npos || equals == 0) {
        throw fault("no name");
    }
    const std::string name = text.substr(0, equals);
    std::string_view rest = std::string_view(text).substr(equals + 1);
    for (bool more = true; more;) {
        const std::size_t comma = rest.find(',');
        const std::string_view word = rest.substr(0, comma);
        more = comma != std::string_view::npos;
        rest.remove_prefix(more ? comma + 1 : rest.size());
        std::uint64_t pid = 0;
        const char* end = word.data() + word.size();
        const auto [stop, error] = std::from_chars(word.data(), end, pid);
        if (error != std::errc{} || stop != end || pid == 0) {
            throw fault(fmt::format("'{}' is not a process id", word));
        }
        if (!jobs.emplace(pid, name).second) {
            throw fault(fmt::format("process {} is named twice", pid));
        }
    }
}

Timeline read_truth(std::istream& in, const JobOfPid& jobs) {
    Devices devices;
    std::string line;
    std::size_t number = 0;
    while (std::getline(in, line)) {
        ++number;
        const bool unfinished = in.eof();  // no newline behind it
        if (line.empty()) {
            continue;
        }
        try {
            add_line(line, jobs, devices);
        } catch (const std::exception& error) {
            if (!unfinished) {
                throw Failure(fmt::format("line {}: {}", number, error.what()));
            }
        }
    }
    Timeline timeline;
    timeline.begin_ns = std::numeric_limits<std::uint64_t>::max();
    for (auto& [device, by_job] : devices) {
        DeviceTimeline result;
        result.name = fmt::format("device {}", device);
        for (auto& [name, raw] : by_job) {
            JobLanes lanes;
            lanes.name = name;
            lanes.compute = united(std::move(raw.compute));
            lanes.in_flight = united(std::move(raw.communicate));
            lanes.window = difference(lanes.in_flight, lanes.compute);
            for (const Intervals* lane : {&lanes.compute, &lanes.in_flight}) {
                if (!lane->empty()) {
                    timeline.begin_ns = std::min(timeline.begin_ns, lane->front().begin_ns);
                    timeline.end_ns = std::max(timeline.end_ns, lane->back().end_ns);
                }
            }
            result.jobs.push_back(std::move(lanes));
        }
        timeline.devices.push_back(std::move(result));
    }
    timeline.begin_ns = std::min(timeline.begin_ns, timeline.end_ns);
    return timeline;
}

}  // namespace crossover::command
