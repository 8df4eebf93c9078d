// SPDX-License-Identifier: Apache-2.0
// Chrome trace-event JSON, written event by event so that a long trace needs no second copy in
// memory: see perfetto.hpp.
#include "perfetto.hpp"

#include <nlohmann/json.hpp>
#include <ostream>
#include <string>

namespace crossover::command {
namespace {

using nlohmann::ordered_json;

class Writer {
  public:
    Writer(std::ostream& out, const Timeline& timeline) : out_(out), timeline_(timeline) {}

    void event(const ordered_json& json) {
        // A name from shared memory may hold any bytes: replace what is no UTF-8 instead of
        // throwing.
        out_ << (first_ ? "\n" : ",\n")
             << json.dump(-1, ' ', false, ordered_json::error_handler_t::replace);
        first_ = false;
    }

    void name(const char* what, std::size_t process, std::size_t thread, const std::string& name) {
        event({{"ph", "M"},
               {"name", what},
               {"pid", process},
               {"tid", thread},
               {"args", {{"name", name}}}});
    }

    void lane(std::size_t process, std::size_t thread, const std::string& lane_name) {
        name("thread_name", process, thread, lane_name);
        event({{"ph", "M"},
               {"name", "thread_sort_index"},
               {"pid", process},
               {"tid", thread},
               {"args", {{"sort_index", thread}}}});
    }

    void slice(std::size_t process, std::size_t thread, const std::string& slice_name,
               const char* category, const Interval& time) {
        event({{"ph", "X"},
               {"name", slice_name},
               {"cat", category},
               {"pid", process},
               {"tid", thread},
               {"ts", microseconds(time.begin_ns - timeline_.begin_ns)},
               {"dur", microseconds(time.end_ns - time.begin_ns)}});
    }

    void slices(std::size_t process, std::size_t thread, const std::string& slice_name,
                const char* category, const Intervals& intervals) {
        for (const Interval& interval : intervals) {
            slice(process, thread, slice_name, category, interval);
        }
    }

  private:
    static double microseconds(std::uint64_t ns) { return static_cast<double>(ns) / 1e3; }

    std::ostream& out_;
    const Timeline& timeline_;
    bool first_ = true;
};

void write_device(Writer& writer, const DeviceTimeline& device, std::size_t process) {
    writer.name("process_name", process, 0, device.name);
    std::size_t thread = 1;
    if (!device.turns.empty()) {
        writer.lane(process, thread, "whose turn");
        for (const TurnInterval& turn : device.turns) {
            writer.slice(process, thread, device.jobs[turn.job].name,
                         turn.cut_by_lease ? "turn,lease-ran-out" : "turn", turn.time);
        }
    }
    for (std::size_t index = 0; index < device.jobs.size(); ++index) {
        const JobLanes& job = device.jobs[index];
        writer.lane(process, ++thread, job.name + ": compute");
        writer.slices(process, thread, "compute", "compute", job.compute);
        writer.lane(process, ++thread, job.name + ": collective in flight");
        writer.slices(process, thread, "collective", "communicate", job.in_flight);
        writer.lane(process, ++thread, job.name + ": communication window");
        writer.slices(process, thread, "window", "window", job.window);
        writer.lane(process, ++thread, job.name + ": waits for its turn");
        writer.slices(process, thread, "wait", "wait", job.waiting);
        if (!device.turns.empty()) {
            writer.lane(process, ++thread, job.name + ": has the turn");
            for (const TurnInterval& turn : device.turns) {
                if (turn.job == index) {
                    writer.slice(process, thread, "turn", "turn", turn.time);
                }
            }
        }
    }
    if (!device.lost.empty()) {
        writer.lane(process, ++thread, "unknown: events were overwritten");
        writer.slices(process, thread, "unknown", "lost", device.lost);
    }
}

}  // namespace

void write_perfetto(std::ostream& out, const Timeline& timeline) {
    Writer writer(out, timeline);
    out << "{\"displayTimeUnit\":\"ms\",\"otherData\":"
        << ordered_json{{"source", timeline.source}, {"begin_monotonic_ns", timeline.begin_ns}}
               .dump(-1, ' ', false, ordered_json::error_handler_t::replace)
        << ",\"traceEvents\":[";
    std::size_t process = 0;
    for (const DeviceTimeline& device : timeline.devices) {
        write_device(writer, device, ++process);
    }
    out << "\n]}\n";
}

}  // namespace crossover::command
