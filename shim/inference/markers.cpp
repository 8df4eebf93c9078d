// SPDX-License-Identifier: Apache-2.0
// Window inference's markers and events: recording, asking, using again. Everything here is guarded
// by WindowInference::mutex_. What a marker means for the job is in windows.cpp.
#include <algorithm>
#include <new>

#include "shim/inference/windows.hpp"

namespace crossover {

// Whether what is launched on `stream` after a collective on `collectives` waits for it by CUDA's
// order.
bool WindowInference::ordered_behind(const Stream& stream, const Stream& collectives) noexcept {
    if (&stream == &collectives) {
        return true;
    }
    const bool legacy =
        stream.kind == StreamKind::kLegacyDefault || collectives.kind == StreamKind::kLegacyDefault;
    return legacy && stream.kind != StreamKind::kNonBlocking &&
           collectives.kind != StreamKind::kNonBlocking;
}

bool WindowInference::covered(const Stream& stream) noexcept {
    return stream.submitted.load(std::memory_order_acquire) == stream.marked &&
           (stream.marker == nullptr || marker_done(*stream.marker));
}

bool WindowInference::markable(const Stream& stream) const noexcept {
    return stream.kind != StreamKind::kPerThread || stream.thread == current_thread_number();
}

// With room for it in every list that may hold it later. nullptr: no memory.
Marker* WindowInference::new_marker() noexcept {
    try {
        spare_markers_.reserve(markers_.size() + 1);
        orphans_.reserve(markers_.size() + 1);
        markers_.push_back(std::make_unique<Marker>());
        return markers_.back().get();
    } catch (const std::bad_alloc&) {
        return nullptr;
    }
}

bool WindowInference::mark(Stream& stream, bool refusal_is_fault) noexcept {
    if (faulty() || gpu_.capturing(stream.handle)) {
        return false;
    }
    Marker* marker = nullptr;
    if (!spare_markers_.empty()) {
        marker = spare_markers_.back();
        spare_markers_.pop_back();
    } else {
        marker = new_marker();
        if (marker == nullptr) {
            return false;
        }
    }
    marker->event = take_event();
    marker->done = false;
    marker->references = 1;
    // Launches counted from here on are not covered; those in the driver right now are not counted
    // yet.
    const std::uint64_t covered = stream.submitted.load(std::memory_order_acquire);
    const bool recorded =
        marker->event != nullptr && (refusal_is_fault ? record(marker->event, stream.handle)
                                                      : gpu_.record(marker->event, stream.handle));
    if (!recorded) {
        drop_marker(marker);
        return false;
    }
    drop_marker(stream.marker);
    stream.marker = marker;
    stream.marked = covered;
    return true;
}

void WindowInference::attach_mark(Collective& collective, const Stream& stream,
                                  bool before) noexcept {
    if (stream.marker == nullptr ||
        stream.submitted.load(std::memory_order_acquire) != stream.marked) {
        return;
    }
    for (Collective::Mark& held : collective.marks) {
        if (held.stream == &stream || held.marker == nullptr) {
            ++stream.marker->references;
            drop_marker(held.marker);
            held = {&stream, stream.marker, stream.marked, before};
            return;
        }
    }
}

void WindowInference::drop_marker(Marker*& marker) noexcept {
    if (marker != nullptr && --marker->references == 0) {
        give_event(marker->event);
        marker->event = nullptr;
        spare_markers_.push_back(marker);
    }
    marker = nullptr;
}

void WindowInference::retire(Collective& collective) noexcept {
    for (Collective::Mark& held : collective.marks) {
        drop_marker(held.marker);
        held.stream = nullptr;
    }
    give_event(collective.begin);
    give_event(collective.end);
    collective.begin = nullptr;
    collective.end = nullptr;
}

void WindowInference::update_in_flight() noexcept {
    std::uint64_t newest = 0;
    while (oldest_in_flight_ < next_number_) {
        const Collective& collective = slot(oldest_in_flight_);
        if (collective.number.load(std::memory_order_relaxed) == oldest_in_flight_ &&
            collective.state.load(std::memory_order_relaxed) != State::kFinished) {
            break;
        }
        ++oldest_in_flight_;
    }
    for (std::uint64_t number = next_number_ - 1; number >= oldest_in_flight_; --number) {
        const Collective& collective = slot(number);
        if (collective.number.load(std::memory_order_relaxed) == number &&
            collective.state.load(std::memory_order_relaxed) == State::kInFlight) {
            newest = number;
            break;
        }
    }
    newest_in_flight_.store(newest, std::memory_order_release);
}

std::uint64_t WindowInference::measure_exposed(Collective& collective,
                                               std::uint64_t running_ns) noexcept {
    std::uint64_t exposed = running_ns;
    for (Collective::Mark& held : collective.marks) {
        if (held.marker == nullptr) {
            continue;
        }
        if (!marker_done(*held.marker)) {
            return 0;
        }
        const std::int64_t after = gpu_.elapsed_ns(held.marker->event, collective.end);
        exposed = std::min(exposed, static_cast<std::uint64_t>(std::max<std::int64_t>(0, after)));
    }
    return exposed;
}

bool WindowInference::marker_done(Marker& marker) noexcept {
    if (!marker.done) {
        const EventState state = gpu_.query(marker.event);
        if (state == EventState::kFault) {
            faulty_.store(true, std::memory_order_release);
        }
        marker.done = state != EventState::kPending;
    }
    return marker.done;
}

GpuEvent WindowInference::take_event() noexcept {
    if (!spare_events_.empty()) {
        GpuEvent event = spare_events_.back();
        spare_events_.pop_back();
        return event;
    }
    return gpu_.create();
}

void WindowInference::give_event(GpuEvent event) noexcept {
    if (event == nullptr) {
        return;
    }
    if (spare_events_.size() < kSpareEvents) {
        spare_events_.push_back(event);
    } else {
        gpu_.destroy(event);
    }
}

bool WindowInference::record(GpuEvent event, StreamKey stream) noexcept {
    if (gpu_.record(event, stream)) {
        return true;
    }
    faulty_.store(true, std::memory_order_release);
    return false;
}

}  // namespace crossover
