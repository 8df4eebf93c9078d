// SPDX-License-Identifier: Apache-2.0
// Following event rings: see follower.hpp.
#include "follower.hpp"

#include <algorithm>

#include "arbiter/ring.hpp"
#include "snapshot.hpp"

namespace crossover::command {

Follower::Follower(std::uint64_t begin_ns, bool with_past)
    : begin_ns_(begin_ns), with_past_(with_past) {}

DeviceBuilder& Follower::builder_of(const std::string& device) {
    for (auto& [name, builder] : builders_) {
        if (name == device) {
            return builder;
        }
    }
    builders_.emplace_back(device, DeviceBuilder(device, with_past_ ? 0 : begin_ns_));
    return builders_.back().second;
}

void Follower::read(Source& source, std::uint64_t now_ns) {
    DeviceBuilder& builder = builder_of(source.device);
    // Names first: a job that leaves takes its name along.
    for (const JobSnapshot& job : snapshot_of(source.open->segment(), now_ns).jobs) {
        builder.name_job(job.key, job.name);
    }
    const EventBatch batch = read_events(source.open->segment(), source.next);
    for (const EventRecord& event : batch.events) {
        // A hole between two events was overwritten or never finished. One at the end may still be
        // written: it is read next time.
        builder.lost(event.place - source.next);
        source.next = event.place + 1;
        first_event_ns_ =
            first_event_ns_ == 0 ? event.time_ns : std::min(first_event_ns_, event.time_ns);
        last_event_ns_ = std::max(last_event_ns_, event.time_ns);
        builder.add({event.time_ns, event.kind, event.value, event.client, event.job_key});
    }
}

bool Follower::follow(const std::vector<std::shared_ptr<OpenSegment>>& segments,
                      std::uint64_t now_ns) {
    for (const auto& open : segments) {
        if (std::any_of(sources_.begin(), sources_.end(),
                        [&open](const Source& source) { return source.open == open; })) {
            continue;
        }
        Source source{open, uuid_text(open->segment().header.device_uuid), 0};
        const std::uint64_t written = open->segment().ring.next.load(std::memory_order_acquire);
        if (with_past_) {
            // What was overwritten before anybody asked for it is not a loss of this trace.
            source.next = written > kRingEvents ? written - kRingEvents : 0;
        } else if (first_look_) {
            // In use before the trace began: go on from its present state.
            source.next = written;
            builder_of(source.device).begin_with(snapshot_of(open->segment(), now_ns));
        }
        sources_.push_back(std::move(source));
    }
    first_look_ = false;
    active_ = false;
    for (Source& source : sources_) {
        read(source, now_ns);
        active_ = active_ || source.open->segment().arbitration.turn.active_jobs.load(
                                 std::memory_order_acquire) != 0;
    }
    // A segment whose name has gone was read to its end just now; nobody writes to it any more.
    std::erase_if(sources_, [&segments](const Source& source) {
        return std::find(segments.begin(), segments.end(), source.open) == segments.end();
    });
    return active_;
}

Timeline Follower::finish(std::uint64_t now_ns) {
    Timeline timeline;
    timeline.source = "What the library inferred, from the jobs' own events";
    // A trace to the end shows the jobs' life, not the time before and after it.
    timeline.begin_ns = with_past_ && first_event_ns_ != 0 ? first_event_ns_ : begin_ns_;
    timeline.end_ns = std::max(with_past_ && !active_ ? 0 : now_ns, last_event_ns_);
    timeline.end_ns = std::max(timeline.end_ns, timeline.begin_ns);
    for (auto& [name, builder] : builders_) {
        timeline.devices.push_back(builder.finish(timeline.end_ns));
    }
    return timeline;
}

}  // namespace crossover::command
