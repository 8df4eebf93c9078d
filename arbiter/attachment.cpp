// SPDX-License-Identifier: Apache-2.0
// Joining and leaving a segment, and replacing one that is no good.
#include "arbiter/attachment.hpp"

#include <cstring>

#include "arbiter/futex.hpp"
#include "arbiter/liveness.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kJoinBoundNs = 2'000'000'000;

}  // namespace

bool Attachment::owns() const noexcept {
    const ClientSlot& client = mine();
    return client.attached.load(std::memory_order_relaxed) == 1 &&
           client.attached_ns == attached_ns && client.job < kMaxJobs;
}

bool Attachment::whole() const noexcept {
    return !mapping.cuttable() || (crossover::whole(segment()) && futex_reachable(mine().notice));
}

Transaction Attachment::begin() const noexcept {
    return Transaction(segment(), slot, kLockBoundNs, mapping.cuttable());
}

void Attachment::note_job() noexcept {
    const std::uint32_t index = job_of(mine());
    if (index >= kMaxJobs) return;
    job_index.store(index, std::memory_order_relaxed);
    job_key.store(segment().jobs[index].key, std::memory_order_relaxed);
}

Status Attachment::join(const Folder& folder, const DeviceUuid& device, const Joining& joining,
                        Status& replaced) noexcept {
    replaced = Status::kOk;
    const std::uint64_t deadline_ns = monotonic_ns() + kJoinBoundNs;
    Status status = Status::kNotReady;
    do {
        status = try_join(folder, device, joining, replaced);
    } while (status == Status::kNotReady && monotonic_ns() < deadline_ns);
    // A life lock that was taken must stay mapped.
    if (status != Status::kOk && life.storage != nullptr) mapping.leak();
    return status;
}

// kNotReady: that file was on its way out, try anew.
Status Attachment::try_join(const Folder& folder, const DeviceUuid& device, const Joining& joining,
                            Status& replaced) noexcept {
    const Status opened = open_or_create(folder, device, monotonic_ns() + kJoinBoundNs, mapping);
    if (opened == Status::kCorrupt) return replace(opened, replaced);
    if (opened != Status::kOk) return opened;
    Segment& in = segment();
    Transaction transaction(in, kNoSlot, kLockBoundNs, mapping.cuttable());
    switch (transaction.status()) {
        case Status::kOk:
            break;
        case Status::kTimedOut:
        case Status::kCorrupt:
        case Status::kGivenUp:
        case Status::kCut:
            return replace(transaction.status(), replaced);
        default:
            return transaction.status();
    }
    if (!consistent(in, device.bytes)) {
        transaction.finish();
        return replace(Status::kCorrupt, replaced);
    }
    if (in.header.end.load(std::memory_order_relaxed) != SegmentEnd::kInUse) {
        // Its last client left; should it have died before the name was gone, finish that.
        const Status removed = remove_name(mapping);
        if (removed == Status::kOk || removed == Status::kNotReady) return Status::kNotReady;
        in.header.end.store(SegmentEnd::kInUse, std::memory_order_relaxed);
    }
    const std::uint64_t now_ns = monotonic_ns();
    reap_dead_clients(in, kNoSlot, now_ns, transaction.wakes());
    slot = take_free_slot(in, life);
    if (slot == kNoSlot) return Status::kFull;
    note_links(transaction.lock());
    const Status status = attach_client(in, slot, joining, now_ns, transaction.wakes());
    if (status != Status::kOk) {
        unlock_long_held(life);
        note_links(transaction.lock());
        return status;
    }
    attached_ns = mine().attached_ns;
    mine().stalled_ns.store(0, std::memory_order_relaxed);
    note_job();
    // Who waits takes the newcomer among those whose death it wants to be woken by.
    for (std::uint32_t other = 0; other < kMaxClients; ++other) {
        ClientSlot& client = in.clients[other];
        if (client.attached.load(std::memory_order_relaxed) == 0 ||
            client.waits.load(std::memory_order_relaxed) == 0) {
            continue;
        }
        client.grant.fetch_add(1, std::memory_order_release);
        transaction.wakes().grants.add(other);
    }
    const Status finished = transaction.finish();
    note_links(life);  // as they are with the segment's lock given back
    return finished;
}

// A file of ours that is no good goes, and whoever still uses it is told.
Status Attachment::replace(Status why, Status& replaced) noexcept {
    const bool there = mapping && why != Status::kGivenUp && why != Status::kCut;
    if (there && mapping.whole()) give_up(segment());
    const Status removed = remove_name(mapping);
    if (removed != Status::kOk && removed != Status::kNotReady) return removed;
    if (why != Status::kGivenUp) replaced = why;
    return Status::kNotReady;
}

void Attachment::give_up_for(Status why) noexcept {
    if (!whole()) {
        mapping.blank();
    } else if (why != Status::kGivenUp) {
        give_up(segment());
    }
    remove_name(mapping);
}

void Attachment::part() noexcept {
    if (life.storage == nullptr) return;
    if (whole() && links_are_as_noted(life) && unlock_long_held(life)) return;
    if (!whole()) {
        mapping.blank();
    } else if (!given_up(segment())) {
        return;  // reaped by right: the lock may be somebody else's by now
    }
    restore_links(life);
}

bool Attachment::leave_in_order() noexcept {
    Segment& in = segment();
    Transaction transaction = begin();
    if (transaction.status() != Status::kOk || !owns()) return false;
    const std::uint64_t now_ns = monotonic_ns();
    // Else one that died just now would keep the name, and nobody be there to remove it.
    reap_dead_clients(in, slot, now_ns, transaction.wakes());
    detach_client(in, slot, now_ns, transaction.wakes());
    bool last = true;
    for (const ClientSlot& client : in.clients) {
        last = last && client.attached.load(std::memory_order_relaxed) == 0;
    }
    if (last) {
        in.header.end.store(SegmentEnd::kLeft, std::memory_order_relaxed);
        const Status removed = remove_name(mapping);
        if (removed != Status::kOk && removed != Status::kNotReady) {
            in.header.end.store(SegmentEnd::kInUse, std::memory_order_relaxed);
        }
    }
    const bool unlocked = unlock_long_held(life);
    note_links(transaction.lock());
    const Status finished = transaction.finish();
    return (finished == Status::kOk || finished == Status::kGivenUp) && unlocked;
}

void Attachment::leave() noexcept {
    if (!lost.load(std::memory_order_relaxed) && leave_in_order()) return;
    part();
    if (life.storage != nullptr) mapping.leak();
}

}  // namespace crossover
