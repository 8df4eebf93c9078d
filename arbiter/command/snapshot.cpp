// SPDX-License-Identifier: Apache-2.0
// Plain values from a segment: see snapshot.hpp.
#include "snapshot.hpp"

#include <algorithm>
#include <iterator>

#include "arbiter/segment.hpp"

namespace crossover::command {

const JobSnapshot* DeviceSnapshot::job_in(std::uint32_t slot) const noexcept {
    const auto found = std::find_if(jobs.begin(), jobs.end(),
                                    [slot](const JobSnapshot& job) { return job.slot == slot; });
    return found == jobs.end() ? nullptr : &*found;
}

std::string uuid_text(const std::uint8_t (&uuid)[16]) {
    DeviceUuid device;
    std::copy(std::begin(uuid), std::end(uuid), std::begin(device.bytes));
    char text[kUuidTextBytes];
    format_uuid(device, text);
    return text;
}

std::string name_of(const JobSlot& job) {
    std::string name(job.name, std::find(job.name, job.name + kJobNameBytes, '\0'));
    std::replace_if(
        name.begin(), name.end(),
        [](char character) { return (character >= 0 && character < ' ') || character == 127; },
        '?');
    return name;
}

DeviceSnapshot snapshot_of(const Segment& segment, std::uint64_t now_ns) {
    DeviceSnapshot snapshot;
    snapshot.uuid = uuid_text(segment.header.device_uuid);
    snapshot.now_ns = now_ns;
    snapshot.round = segment.arbitration.round;
    snapshot.turn_count = segment.arbitration.turn_count;
    snapshot.expired_count = segment.arbitration.expired_count;
    snapshot.reaped_count = segment.arbitration.reaped_count;
    const std::uint64_t holder =
        segment.arbitration.turn.word.load(std::memory_order_acquire) & kTurnJobMask;
    for (std::uint32_t slot = 0; slot < kMaxJobs; ++slot) {
        const JobSlot& job = segment.jobs[slot];
        if (job.key == 0) {
            continue;
        }
        snapshot.jobs.push_back({slot, job.key, name_of(job), job.state, job.clients, job.turns,
                                 job.held_ns, job.waited_ns, job.wait_since_ns, job.turn_since_ns,
                                 job.lease_from_ns, job.lease_ns});
    }
    snapshot.holder = static_cast<std::uint32_t>(holder - 1);
    snapshot.turn_held = holder != 0 && snapshot.job_in(snapshot.holder) != nullptr;
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        const ClientSlot& client = segment.clients[slot];
        const bool attached = client.attached.load(std::memory_order_acquire) != 0;
        if (!attached && client.attached_ns == 0) {
            continue;  // never used
        }
        (attached ? snapshot.clients : snapshot.departed)
            .push_back({slot, client.job, client.pid, client.ordinal, client.attached_ns,
                        client.phase.load(), client.phase_ns.load(), client.mode.load(),
                        client.windows.load(), client.crossings.load(), client.exposed_ns.load(),
                        client.communicated_ns.load()});
    }
    return snapshot;
}

const char* state_text(JobState state) noexcept {
    switch (state) {
        case JobState::kFree:
            return "free";
        case JobState::kIdle:
            return "needs no turn";
        case JobState::kWaiting:
            return "waits";
        case JobState::kHolding:
            return "has the turn";
    }
    return "unknown";
}

const char* phase_text(ClientPhase phase) noexcept {
    switch (phase) {
        case ClientPhase::kUnknown:
            return "unknown";
        case ClientPhase::kComputing:
            return "computes";
        case ClientPhase::kCommunicating:
            return "communicates";
        case ClientPhase::kWaiting:
            return "waits";
        case ClientPhase::kIdle:
            return "idle";
    }
    return "unknown";
}

const char* mode_text(std::uint32_t mode) noexcept {
    switch (mode) {
        case 0:
            return "off";
        case 1:
            return "on";
        case 2:
            return "observe";
        default:
            return "unknown";
    }
}

}  // namespace crossover::command
