// SPDX-License-Identifier: Apache-2.0
// Each record is a small sequence lock: its sequence is 0 while it is written and place + 1 after.
// All fields are accessed atomically, so a reader that comes too early copies old or mixed values
// and then sees by the sequence that it must drop them.
#include "arbiter/ring.hpp"

#include <algorithm>
#include <atomic>

namespace crossover {
namespace {

static_assert((kRingEvents & (kRingEvents - 1)) == 0);

// Release on every field keeps the earlier sequence = 0 in front of it, without a fence (which the
// thread sanitizer does not know).
template <class T>
void put(T& field, T value) noexcept {
    std::atomic_ref<T>(field).store(value, std::memory_order_release);
}

// Acquire on every field keeps the later look at the sequence behind it.
template <class T>
T get(const T& field) noexcept {
    return std::atomic_ref<T>(const_cast<T&>(field)).load(std::memory_order_acquire);
}

}  // namespace

void append_event(Segment& segment, const EventRecord& event) noexcept {
    const std::uint64_t place = segment.ring.next.fetch_add(1, std::memory_order_relaxed);
    Event& record = segment.ring.events[place & (kRingEvents - 1)];
    record.sequence.store(0, std::memory_order_relaxed);
    put(record.time_ns, event.time_ns);
    put(record.value, event.value);
    put(record.client, event.client);
    put(record.kind, static_cast<std::uint16_t>(event.kind));
    put(record.job, event.job);
    put(record.job_key, event.job_key);
    record.sequence.store(place + 1, std::memory_order_release);
}

EventBatch read_events(const Segment& segment, std::uint64_t from) {
    EventBatch batch;
    const std::uint64_t next = segment.ring.next.load(std::memory_order_acquire);
    const std::uint64_t oldest = next > kRingEvents ? next - kRingEvents : 0;
    batch.next = next;
    if (from >= next) {
        // Ahead of the ring: it was made anew since. Start with what comes next.
        return batch;
    }
    const std::uint64_t begin = std::max(from, oldest);
    batch.lost = begin - from;
    batch.events.reserve(static_cast<std::size_t>(next - begin));
    for (std::uint64_t place = begin; place != next; ++place) {
        const Event& record = segment.ring.events[place & (kRingEvents - 1)];
        if (record.sequence.load(std::memory_order_acquire) != place + 1) {
            ++batch.lost;
            continue;
        }
        EventRecord copy;
        copy.place = place;
        copy.time_ns = get(record.time_ns);
        copy.value = get(record.value);
        copy.client = get(record.client);
        copy.kind = static_cast<EventKind>(get(record.kind));
        copy.job = get(record.job);
        copy.job_key = get(record.job_key);
        if (record.sequence.load(std::memory_order_relaxed) != place + 1) {
            ++batch.lost;
            continue;
        }
        batch.events.push_back(copy);
    }
    return batch;
}

}  // namespace crossover
