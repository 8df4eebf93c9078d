// SPDX-License-Identifier: Apache-2.0
// Any segment content, read as `crossover status` and `crossover trace` read it: they end, touch
// nothing else, and what they print is whole: text without control characters, JSON that parses.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <nlohmann/json.hpp>
#include <sstream>
#include <string>

#include "arbiter/ring.hpp"
#include "page.hpp"
#include "perfetto.hpp"
#include "snapshot.hpp"
#include "status_view.hpp"
#include "tests/fuzz/damage.hpp"
#include "timeline.hpp"

namespace crossover::fuzz {
namespace {

using nlohmann::ordered_json;

void must(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

void must_parse(const std::string& text, const char* what) {
    must(ordered_json::accept(text), what);
}

bool ascending(const command::Intervals& intervals, const command::Timeline& timeline) {
    std::uint64_t reached = timeline.begin_ns;
    for (const command::Interval& interval : intervals) {
        if (interval.begin_ns < reached || interval.end_ns <= interval.begin_ns ||
            interval.end_ns > timeline.end_ns) {
            return false;
        }
        reached = interval.end_ns;
    }
    return true;
}

void read_trace(const Segment& segment, const command::DeviceSnapshot& snapshot, Input& input) {
    const std::uint64_t begin_ns = input.number<std::uint64_t>();
    const std::uint64_t end_ns = std::max(begin_ns, input.number<std::uint64_t>());
    const std::uint64_t next = segment.ring.next.load();
    const EventBatch batch = read_events(segment, next - std::min<std::uint64_t>(next, 4'096));
    must(batch.events.size() + batch.lost <= kRingEvents, "no more events than the ring has");

    command::Timeline timeline;
    timeline.source = "fuzz";
    timeline.begin_ns = begin_ns;
    timeline.end_ns = end_ns;
    command::DeviceBuilder builder(snapshot.uuid, begin_ns);
    builder.begin_with(snapshot);
    for (const command::JobSnapshot& job : snapshot.jobs) builder.name_job(job.key, job.name);
    builder.lost(batch.lost);
    for (const EventRecord& event : batch.events) {
        timeline.end_ns = std::max(timeline.end_ns, event.time_ns);
        builder.add({event.time_ns, event.kind, event.value, event.client, event.job_key});
    }
    for (int extra = input.byte(); extra > 0; --extra) {
        command::TraceEvent event;
        event.time_ns = begin_ns + input.number<std::uint32_t>();
        event.kind = static_cast<EventKind>(input.byte() % 20);
        event.value = input.number<std::uint32_t>();
        event.client = input.byte() % 6;
        event.job_key = input.byte() % 4;
        timeline.end_ns = std::max(timeline.end_ns, event.time_ns);
        builder.add(event);
        if (event.value % 64 == 0) builder.lost(1);
    }
    timeline.devices.push_back(builder.finish(timeline.end_ns));
    const command::DeviceTimeline& device = timeline.devices[0];
    for (std::size_t job = 0; job < device.jobs.size(); ++job) {
        const command::JobLanes& lanes = device.jobs[job];
        must(ascending(lanes.compute, timeline), "compute");
        must(ascending(lanes.in_flight, timeline), "in flight");
        must(ascending(lanes.window, timeline), "window");
        must(ascending(lanes.waiting, timeline), "waiting");
        const command::JobShare share = command::share_of(device, job);
        must(share.covered_ns <= share.window_ns, "no more covered than there is");
    }
    for (const command::TurnInterval& turn : device.turns) {
        must(turn.job < device.jobs.size(), "a turn is a job's");
    }
    const command::Interval part = command::telling_part(timeline, 8);
    must(timeline.begin_ns <= part.begin_ns && part.begin_ns <= part.end_ns &&
             part.end_ns <= timeline.end_ns,
         "the part to show lies in the trace");
    std::ostringstream json;
    command::write_perfetto(json, timeline);
    must_parse(json.str(), "the trace is JSON");
    std::ostringstream page;
    command::write_page(page, timeline, {.most_intervals = 100});
    must(page.str().find("</html>") != std::string::npos, "the page is whole");
}

void run(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    const auto segment = damaged_segment(input);
    const std::uint64_t now_ns = input.number<std::uint64_t>();
    const command::DeviceSnapshot snapshot = command::snapshot_of(*segment, now_ns);
    must(snapshot.jobs.size() <= kMaxJobs, "jobs");
    must(snapshot.clients.size() + snapshot.departed.size() <= kMaxClients, "clients");
    const std::string text = command::status_text_of({snapshot});
    must(std::none_of(text.begin(), text.end(),
                      [](char c) { return (c >= 0 && c < ' ' && c != '\n') || c == 127; }),
         "no control characters in status");
    must_parse(command::status_json_of({snapshot})
                   .dump(-1, ' ', false, ordered_json::error_handler_t::replace),
               "status is JSON");
    read_trace(*segment, snapshot, input);
}

}  // namespace
}  // namespace crossover::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    crossover::fuzz::run(data, size);
    return 0;
}
