// SPDX-License-Identifier: Apache-2.0
// Events to intervals: what each job did on each device and whose turn it was. Pure: no segment, no
// file, no clock. Renderers (perfetto.hpp, page.hpp) read the Timeline and nothing else.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

#include "crossover/events.hpp"
#include "snapshot.hpp"

namespace crossover::command {

// Times are CLOCK_MONOTONIC nanoseconds.
struct Interval {
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
};
using Intervals = std::vector<Interval>;  // ascending, disjoint, none empty

struct TurnInterval {
    std::size_t job = 0;  // index into DeviceTimeline::jobs
    Interval time;
    bool cut_by_lease = false;
};

struct JobLanes {
    std::string name;
    Intervals compute;    // submitted compute not finished
    Intervals in_flight;  // at least one collective in flight
    Intervals window;     // communication window: a collective in flight and nothing computes
    Intervals waiting;    // the job waits for its turn
};

struct DeviceTimeline {
    std::string name;
    std::vector<JobLanes> jobs;
    std::vector<TurnInterval> turns;  // ascending; disjoint but for leases that ran out
    Intervals lost;                   // parts of which nothing is known: events were overwritten
    std::uint64_t lost_events = 0;
};

struct Timeline {
    std::string source;  // what the picture stems from, for its caption
    std::vector<DeviceTimeline> devices;
    std::uint64_t begin_ns = 0;
    std::uint64_t end_ns = 0;
};

// One event as read from a ring, freed from the ring's layout.
struct TraceEvent {
    std::uint64_t time_ns = 0;
    EventKind kind = EventKind::kNone;
    std::uint64_t value = 0;
    std::uint32_t client = 0;   // slot + 1, or 0
    std::uint64_t job_key = 0;  // 0: none
};

// Follows one device's events in ring order. Not thread-safe.
class DeviceBuilder {
  public:
    // `begin_ns`: nothing before it is shown; 0: the first event begins it.
    DeviceBuilder(std::string name, std::uint64_t begin_ns);

    // The name to show for a job; may come late, and the last one counts.
    void name_job(std::uint64_t job_key, const std::string& name);
    // What goes on when the trace begins, for a segment that was in use before.
    void begin_with(const DeviceSnapshot& snapshot);
    void add(const TraceEvent& event);
    // `count` events before the next one were overwritten. What was going on is closed at the last
    // known time, and the time up to the next event is marked as unknown.
    void lost(std::uint64_t count);
    // Ends what is still going on at `end_ns` and gives the result. The builder is spent.
    DeviceTimeline finish(std::uint64_t end_ns);

  private:
    enum Lane : std::size_t { kCompute, kWindow, kLanes };
    struct ClientState {
        std::size_t job = 0;
        bool open[kLanes] = {};
        bool known[kLanes] = {};  // its state has been told since the trace or the last gap began
        std::uint64_t since_ns[kLanes] = {};
    };
    struct Job {
        std::uint64_t key = 0;
        std::string name;
        Intervals raw[kLanes];
        Intervals raw_in_flight;
        Intervals raw_waiting;
        bool waits = false;
        std::uint64_t wait_since_ns = 0;
    };
    // A job's turn as it is known at the moment.
    struct OpenTurn {
        bool open = false;
        std::size_t job = 0;
        std::uint64_t since_ns = 0;
    };

    std::size_t job_index(std::uint64_t key);
    ClientState& client_of(std::uint32_t number, std::size_t job, std::uint64_t now_ns);
    void open(ClientState& client, Lane lane, std::uint64_t now_ns);
    // `began_ns` is when it began where nothing was known of it.
    void close(ClientState& client, Lane lane, std::uint64_t now_ns, std::uint64_t began_ns);
    void close_all(ClientState& client, std::uint64_t now_ns);
    void stop_waiting(std::size_t job, std::uint64_t now_ns);
    void stop_if_alone(std::uint64_t now_ns);
    void stop_everything(std::uint64_t now_ns);
    void client_event(const TraceEvent& event);
    void turn_event(const TraceEvent& event);
    void turn_begins(std::size_t job, std::uint64_t now_ns);
    void turn_ends(std::size_t job, const TraceEvent& event, bool cut_by_lease);
    void end_turn(std::uint64_t now_ns, bool cut_by_lease);
    std::uint64_t clipped(std::uint64_t time_ns) const noexcept;

    DeviceTimeline result_;
    std::vector<Job> jobs_;
    std::map<std::uint32_t, ClientState> clients_;  // by client number
    OpenTurn turn_;
    std::uint64_t
        known_from_ns_;  // nothing earlier is known: begin of the trace, end of the last gap
    std::uint64_t last_ns_;
    bool gap_ = false;
};

// --- sets of intervals, ascending and disjoint
// -----------------------------------------------------------
Intervals united(Intervals any_order);
Intervals intersection(const Intervals& left, const Intervals& right);
Intervals difference(const Intervals& from, const Intervals& what);
std::uint64_t total_ns(const Intervals& intervals);

// What the picture's caption tells of a job on a device.
struct JobShare {
    std::uint64_t compute_ns = 0;
    std::uint64_t in_flight_ns = 0;
    std::uint64_t window_ns = 0;
    std::uint64_t covered_ns = 0;  // part of window_ns during which another job computed
    std::uint64_t waiting_ns = 0;
};
JobShare share_of(const DeviceTimeline& device, std::size_t job);

// The part of a timeline that shows the alternation best: its last `turns` turns in which jobs took
// turns, with a little room at both ends; without turns, a stretch of that many windows; at most
// the whole.
Interval telling_part(const Timeline& timeline, std::size_t turns);

}  // namespace crossover::command
