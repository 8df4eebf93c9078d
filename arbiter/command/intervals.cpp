// SPDX-License-Identifier: Apache-2.0
// Sets of intervals and what is read off a finished timeline: see timeline.hpp.
#include <algorithm>
#include <iterator>

#include "timeline.hpp"

namespace crossover::command {

Intervals united(Intervals any_order) {
    std::sort(any_order.begin(), any_order.end(), [](const Interval& left, const Interval& right) {
        return left.begin_ns < right.begin_ns;
    });
    Intervals result;
    for (const Interval& interval : any_order) {
        if (interval.end_ns <= interval.begin_ns) {
            continue;
        }
        if (!result.empty() && interval.begin_ns <= result.back().end_ns) {
            result.back().end_ns = std::max(result.back().end_ns, interval.end_ns);
        } else {
            result.push_back(interval);
        }
    }
    return result;
}

Intervals intersection(const Intervals& left, const Intervals& right) {
    Intervals result;
    auto first = left.begin();
    auto second = right.begin();
    while (first != left.end() && second != right.end()) {
        const std::uint64_t begin_ns = std::max(first->begin_ns, second->begin_ns);
        const std::uint64_t end_ns = std::min(first->end_ns, second->end_ns);
        if (begin_ns < end_ns) {
            result.push_back({begin_ns, end_ns});
        }
        first->end_ns < second->end_ns ? ++first : ++second;
    }
    return result;
}

Intervals difference(const Intervals& from, const Intervals& what) {
    Intervals result;
    auto hole = what.begin();
    for (Interval rest : from) {
        while (hole != what.end() && hole->end_ns <= rest.begin_ns) {
            ++hole;
        }
        for (auto next = hole; next != what.end() && next->begin_ns < rest.end_ns; ++next) {
            if (rest.begin_ns < next->begin_ns) {
                result.push_back({rest.begin_ns, next->begin_ns});
            }
            rest.begin_ns = std::max(rest.begin_ns, next->end_ns);
        }
        if (rest.begin_ns < rest.end_ns) {
            result.push_back(rest);
        }
    }
    return result;
}

std::uint64_t total_ns(const Intervals& intervals) {
    std::uint64_t total = 0;
    for (const Interval& interval : intervals) {
        total += interval.end_ns - interval.begin_ns;
    }
    return total;
}

JobShare share_of(const DeviceTimeline& device, std::size_t job) {
    Intervals others;
    for (std::size_t other = 0; other < device.jobs.size(); ++other) {
        if (other != job) {
            const Intervals& compute = device.jobs[other].compute;
            others.insert(others.end(), compute.begin(), compute.end());
        }
    }
    const JobLanes& lanes = device.jobs[job];
    return {.compute_ns = total_ns(lanes.compute),
            .in_flight_ns = total_ns(lanes.in_flight),
            .window_ns = total_ns(lanes.window),
            .covered_ns = total_ns(intersection(lanes.window, united(std::move(others)))),
            .waiting_ns = total_ns(lanes.waiting)};
}

namespace {

// Room around a part, within the timeline.
Interval with_margin(const Timeline& timeline, Interval part) {
    const std::uint64_t margin_ns = (part.end_ns - part.begin_ns) / 25;
    part.begin_ns -= std::min(margin_ns, part.begin_ns - timeline.begin_ns);
    part.end_ns += std::min(margin_ns, timeline.end_ns - part.end_ns);
    return part;
}

// The last `count` turns on a device, each by another job than the one before; fewer where there
// are not as many. Turns of the same job in a row are one.
Interval alternation(const DeviceTimeline& device, std::size_t count, std::size_t& found) {
    std::vector<TurnInterval> merged;
    for (const TurnInterval& turn : device.turns) {
        if (!merged.empty() && merged.back().job == turn.job) {
            merged.back().time.end_ns = turn.time.end_ns;
        } else {
            merged.push_back(turn);
        }
    }
    // The first and the last one may be a job's time alone before or after the others: leave them
    // out where enough remains.
    if (merged.size() > count + 1) {
        merged.pop_back();
    }
    found = std::min(count, merged.size());
    if (found < 2) {
        return {};
    }
    return {merged[merged.size() - found].time.begin_ns, merged.back().time.end_ns};
}

// Without the gaps between two kernels, during which a job only communicates as well.
Intervals long_ones(const Intervals& windows) {
    std::uint64_t longest_ns = 0;
    for (const Interval& window : windows) {
        longest_ns = std::max(longest_ns, window.end_ns - window.begin_ns);
    }
    Intervals result;
    std::copy_if(windows.begin(), windows.end(), std::back_inserter(result),
                 [longest_ns](const Interval& window) {
                     return window.end_ns - window.begin_ns >= longest_ns / 4;
                 });
    return result;
}

}  // namespace

Interval telling_part(const Timeline& timeline, std::size_t turns) {
    Interval best{timeline.begin_ns, timeline.end_ns};
    std::size_t best_found = 1;
    for (const DeviceTimeline& device : timeline.devices) {
        std::size_t found = 0;
        const Interval part = alternation(device, turns, found);
        if (found > best_found) {
            best_found = found;
            best = with_margin(timeline, part);
        }
    }
    if (best_found > 1) {
        return best;
    }
    // No turns: the last windows of the job that has most of them, while every job of its device
    // works.
    for (const DeviceTimeline& device : timeline.devices) {
        std::uint64_t common_end_ns = timeline.end_ns;
        const JobLanes* busiest = nullptr;
        for (const JobLanes& job : device.jobs) {
            if (!job.compute.empty()) {
                common_end_ns = std::min(common_end_ns, job.compute.back().end_ns);
            }
            if (busiest == nullptr || job.window.size() > busiest->window.size()) {
                busiest = &job;
            }
        }
        if (busiest == nullptr) {
            continue;
        }
        const Intervals windows =
            long_ones(intersection(busiest->window, {{timeline.begin_ns, common_end_ns}}));
        const std::size_t periods = std::max<std::size_t>(2, turns * 2 / 3);
        if (windows.size() > periods) {
            return with_margin(
                timeline, {windows[windows.size() - 1 - periods].end_ns, windows.back().end_ns});
        }
    }
    return best;
}

}  // namespace crossover::command
