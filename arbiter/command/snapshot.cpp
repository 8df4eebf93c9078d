// SPDX-License-Identifier: Apache-2.0
// Plain values from a segment: see snapshot.hpp.
#include "snapshot.hpp"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <iterator>
#include <string_view>
#include <utility>

#include "arbiter/segment.hpp"

namespace crossover::command {
namespace {

// Bytes of the printable character that `text` begins with; 0: it does not begin with one.
std::size_t printable_bytes(std::string_view text) noexcept {
    const auto byte = [text](std::size_t at) {
        return at < text.size() ? static_cast<unsigned char>(text[at]) : 0U;
    };
    const std::uint32_t first = byte(0);
    if (first < 0x80) return first >= 0x20 && first != 0x7F ? 1 : 0;
    const std::size_t length = first >= 0xF0 ? 4 : first >= 0xE0 ? 3 : 2;
    std::uint32_t character = first & (0x7FU >> length);
    for (std::size_t at = 1; at < length; ++at) {
        if ((byte(at) & 0xC0) != 0x80) return 0;
        character = character << 6U | (byte(at) & 0x3FU);
    }
    constexpr std::uint32_t kLeast[] = {0, 0, 0xA0, 0x800, 0x10000};  // below 0xA0: controls
    const bool surrogate = character >= 0xD800 && character <= 0xDFFF;
    // Characters that turn the direction of what follows could dress up a line as another.
    const bool turns = (character >= 0x202A && character <= 0x202E) ||
                       (character >= 0x2066 && character <= 0x2069) || character == 0x2028 ||
                       character == 0x2029;
    const bool fine = first >= 0xC0 && first < 0xF8 && character >= kLeast[length] &&
                      character <= 0x10FFFF && !surrogate && !turns;
    return fine ? length : 0;
}

struct Stall {
    std::uint64_t since_ns = 0;
    std::string site;
};

// The text may only change while no stall is told, so it is whole when that did not change
// meanwhile.
Stall stall_of(const ClientSlot& client) {
    const std::uint64_t since = client.stalled_ns.load(std::memory_order_acquire);
    if (since == 0) return {};
    // Byte by byte, each before the next and all before the second look.
    char site[kCallSiteBytes];
    for (std::size_t i = 0; i < kCallSiteBytes; ++i) {
        site[i] = __atomic_load_n(&client.stall_site[i], __ATOMIC_ACQUIRE);
    }
    const bool same = client.stalled_ns.load(std::memory_order_relaxed) == since;
    return same ? Stall{since, text_of(site, kCallSiteBytes)} : Stall{};
}

}  // namespace

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

std::string text_of(const char* field, std::size_t bytes) {
    const std::string_view raw(field, strnlen(field, bytes));
    std::string text;
    for (std::size_t at = 0; at < raw.size();) {
        const std::size_t length = printable_bytes(raw.substr(at));
        text += length == 0 ? std::string_view("?") : raw.substr(at, length);
        at += std::max<std::size_t>(length, 1);
    }
    return text;
}

std::string name_of(const JobSlot& job) { return text_of(job.name, kJobNameBytes); }

DeviceSnapshot snapshot_of(const Segment& segment, std::uint64_t now_ns) {
    DeviceSnapshot snapshot;
    snapshot.uuid = uuid_text(segment.header.device_uuid);
    snapshot.now_ns = now_ns;
    snapshot.live = segment.header.end.load(std::memory_order_acquire) == SegmentEnd::kInUse;
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
                                 job.lease_from_ns, job.lease_ns, job.weight});
    }
    snapshot.holder = static_cast<std::uint32_t>(holder - 1);
    snapshot.turn_held = holder != 0 && snapshot.job_in(snapshot.holder) != nullptr;
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        const ClientSlot& client = segment.clients[slot];
        const bool attached = client.attached.load(std::memory_order_acquire) != 0;
        if (!attached && client.attached_ns == 0) {
            continue;  // never used
        }
        Stall stall = attached ? stall_of(client) : Stall{};
        (attached ? snapshot.clients : snapshot.departed)
            .push_back({slot, client.job, client.pid, client.ordinal, client.attached_ns,
                        client.phase.load(), client.phase_ns.load(), client.mode.load(),
                        client.windows.load(), client.crossings.load(), client.exposed_ns.load(),
                        client.communicated_ns.load(), stall.since_ns, std::move(stall.site)});
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
