// SPDX-License-Identifier: Apache-2.0
// What can be read of a segment without changing it, and whether it can be one. See state.hpp.
#include <algorithm>
#include <cstring>

#include "arbiter/policy.hpp"
#include "arbiter/state.hpp"

namespace crossover {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

}  // namespace

ClientSet attached_clients(const Segment& segment) noexcept {
    ClientSet set;
    for (std::size_t i = 0; i < set.words_.size(); ++i) {
        set.words_[i] = segment.arbitration.client_set[i].load(kRelaxed);
    }
    return set;
}

std::uint64_t turn_number(const Segment& segment) noexcept {
    return segment.arbitration.turn.word.load(std::memory_order_acquire) >> 16;
}

std::size_t turn_holder(const Segment& segment) noexcept {
    const std::uint64_t index =
        segment.arbitration.turn.word.load(std::memory_order_acquire) & kTurnJobMask;
    return index == 0 || index > kMaxJobs ? kNoJob : static_cast<std::size_t>(index - 1);
}

std::uint64_t lease_end_ns(const Segment& segment) noexcept {
    const std::size_t holder = turn_holder(segment);
    if (holder == kNoJob) return UINT64_MAX;
    const JobSlot& job = segment.jobs[holder];
    const std::uint64_t lease = std::min(job.lease_ns, kMaxLeaseNs);
    if (job.lease_from_ns == 0 || job.lease_from_ns > UINT64_MAX - lease) return UINT64_MAX;
    return job.lease_from_ns + lease;
}

bool consistent(const Segment& segment, const std::uint8_t* device_uuid) noexcept {
    const Header& header = segment.header;
    if (header.magic != kSegmentMagic || header.total_bytes != sizeof(Segment) ||
        header.version.load(std::memory_order_acquire) != kLayoutVersion) {
        return false;
    }
    if (device_uuid != nullptr &&
        std::memcmp(header.device_uuid, device_uuid, sizeof header.device_uuid) != 0) {
        return false;
    }
    const std::uint64_t word = segment.arbitration.turn.word.load(std::memory_order_acquire);
    if ((word & kTurnJobMask) > kMaxJobs) return false;
    const std::uint32_t used = segment.arbitration.turn.job_set.load(kRelaxed);
    for (std::size_t i = 0; i < kMaxJobs; ++i) {
        if ((used >> i & 1) != (segment.jobs[i].key != 0 ? 1U : 0U)) return false;
        if (segment.jobs[i].key == 0) continue;
        if (segment.jobs[i].state > JobState::kHolding) return false;
        if (segment.jobs[i].weight > kMaxWeight) return false;
        for (std::size_t j = 0; j < i; ++j) {
            if (segment.jobs[j].key == segment.jobs[i].key) return false;
        }
    }
    const ClientSet set = attached_clients(segment);
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        const ClientSlot& client = segment.clients[slot];
        const std::uint32_t attached = client.attached.load(kRelaxed);
        if (set.contains(slot) != (attached != 0)) return false;
        if (attached == 0) continue;
        const std::uint32_t index = job_of(client);
        if (attached != 1 || index >= kMaxJobs || segment.jobs[index].key == 0 ||
            client.claims.load(kRelaxed) > 1 || client.waits.load(kRelaxed) > 1) {
            return false;
        }
    }
    return true;
}

}  // namespace crossover
