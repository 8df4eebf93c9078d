// SPDX-License-Identifier: Apache-2.0
// Whoever gets a life lock of an attached client has found a dead one. The lock is given back at
// once, so that the slot can be used again; should the finder die in between, the next one finds
// it.
#include "arbiter/liveness.hpp"

#include "arbiter/policy.hpp"

namespace crossover {
namespace {

bool is_dead(ClientSlot& client) noexcept {
    HeldLock life;
    switch (try_lock(client.life, life)) {
        case LockResult::kOwnerDied:
            mark_consistent(life);
            unlock(life);
            return true;
        case LockResult::kLocked:
            unlock(life);
            return true;
        case LockResult::kBusy:
        case LockResult::kTimedOut:
        case LockResult::kGone:
        case LockResult::kCorrupt:  // cannot be told; its lease bounds what it holds
            return false;
    }
    return false;
}

std::uint32_t reap(Segment& segment, std::uint32_t self, std::size_t job, std::uint64_t now_ns,
                   Wakes& wakes) noexcept {
    std::uint32_t reaped = 0;
    attached_clients(segment).for_each([&](std::uint32_t slot) {
        ClientSlot& client = segment.clients[slot];
        if (slot == self || client.attached.load(std::memory_order_relaxed) == 0) return;
        if (job != kNoJob && client.job != job) return;
        if (!is_dead(client)) return;
        reap_client(segment, slot, now_ns, wakes);
        ++reaped;
    });
    return reaped;
}

}  // namespace

std::size_t watch_clients(Segment& segment, std::uint32_t self, FutexWord* words, std::size_t room,
                          bool& gone) noexcept {
    gone = false;
    std::size_t count = 0;
    const ClientSet set = attached_clients(segment);
    // From the next slot on: where there are more clients than room, each is left out by few.
    for (std::uint32_t step = 1; step < kMaxClients && count < room; ++step) {
        const std::uint32_t slot = (self + step) % kMaxClients;
        if (!set.contains(slot)) continue;
        ClientSlot& client = segment.clients[slot];
        if (client.attached.load(std::memory_order_acquire) == 0) continue;
        switch (watch(client.life, words[count])) {
            case LockWatch::kHeld:
                ++count;
                break;
            case LockWatch::kFree:
                gone = true;
                break;
            case LockWatch::kCorrupt:
                break;
        }
    }
    return count;
}

std::uint32_t take_free_slot(Segment& segment, HeldLock& life) noexcept {
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        ClientSlot& client = segment.clients[slot];
        if (client.attached.load(std::memory_order_relaxed) != 0) continue;
        switch (try_lock(client.life, life)) {
            case LockResult::kOwnerDied:
                mark_consistent(life);
                return slot;
            case LockResult::kLocked:
                return slot;
            default:
                break;  // left locked by a client that gave up; free again when its thread ends
        }
    }
    return kNoSlot;
}

std::uint32_t reap_dead_holders(Segment& segment, std::uint32_t self, std::uint64_t now_ns,
                                Wakes& wakes) noexcept {
    const std::size_t holder = turn_holder(segment);
    return holder == kNoJob ? 0 : reap(segment, self, holder, now_ns, wakes);
}

std::uint32_t reap_dead_clients(Segment& segment, std::uint32_t self, std::uint64_t now_ns,
                                Wakes& wakes) noexcept {
    return reap(segment, self, kNoJob, now_ns, wakes);
}

}  // namespace crossover
