// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/windows.hpp"

#include <algorithm>
#include <iterator>

namespace crossover {

namespace {
constexpr std::size_t kSpareEvents = 64;
}  // namespace

std::uint64_t current_thread_number() noexcept {
    [[gnu::tls_model("initial-exec")]] static thread_local char marker;
    return reinterpret_cast<std::uintptr_t>(&marker);
}

WindowInference::WindowInference(GpuEvents& gpu) : gpu_(gpu) {
    all_streams_.reserve(64);
    spare_events_.reserve(kSpareEvents);
}

// Events are left to the context's own end: at process exit the driver may be gone already.
WindowInference::~WindowInference() = default;

// ----------------------------------------------------------------------------------------------
// streams

Stream* WindowInference::stream(StreamKey key, StreamKey handle, StreamKind kind,
                                std::uint64_t thread) noexcept {
    Stream* found = streams_.find_or_add(key, [&](Stream& fresh) {
        new (&fresh) Stream{};
        fresh.handle = handle;
        fresh.kind = kind;
        fresh.thread = thread;
    });
    if (found == nullptr || found->alive) {
        return found;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    if (!found->alive) {
        found->alive = true;
        all_streams_.push_back(found);
    }
    return found;
}

void WindowInference::remove_stream(StreamKey key) noexcept {
    Stream* gone = streams_.find(key);
    if (gone == nullptr) {
        return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    if (gone->alive) {
        gone->alive = false;
        if (!gone->communication.load(std::memory_order_relaxed) &&
            gone->submitted.load(std::memory_order_acquire) != gone->marked && markable(*gone)) {
            mark(*gone);
        }
        if (gone->marker != nullptr) {
            orphans_.push_back(gone->marker);
            gone->marker = nullptr;
        }
        std::erase(all_streams_, gone);
        for (Collective& collective : collectives_) {
            for (Collective::Mark& held : collective.marks) {
                if (held.stream == gone) {
                    held.stream = nullptr;
                }
            }
        }
    }
    streams_.remove(key);
}

void WindowInference::restart() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (Stream* each : all_streams_) {
        each->marked = each->submitted.load(std::memory_order_acquire) - 1;
    }
}

// -------------------------------------------------------------------------------------- the launch
// path

// Under the lock; numbers only grow.
void WindowInference::put_behind(Stream& stream, std::uint64_t number) noexcept {
    const auto raise = [number](std::atomic<std::uint64_t>& newest) {
        newest.store(std::max(newest.load(std::memory_order_relaxed), number),
                     std::memory_order_release);
    };
    raise(stream.behind);
    if (stream.kind != StreamKind::kNonBlocking) {
        raise(stream.kind == StreamKind::kLegacyDefault ? legacy_behind_ : blocking_behind_);
    }
}

void WindowInference::note_crossing(Stream& stream, std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    stream.crossed.store(number, std::memory_order_relaxed);
    position_ = 0;
}

bool WindowInference::crossing_pays(Stream& stream, std::uint64_t number,
                                    std::uint64_t min_window_ns) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    const Collective& collective = slot(number);
    if (collective.number.load(std::memory_order_relaxed) == number) {
        // A place in the iteration that is new (the first iteration that is followed, a changed
        // order) takes the word of the same collective elsewhere.
        auto expected = crossings_.predict(collective.crossing_signature);
        if (!expected) {
            expected = windows_.predict(collective.window_signature);
        }
        if (expected && *expected >= min_window_ns) {
            return true;
        }
    }
    stream.passed.store(number, std::memory_order_relaxed);
    return false;
}

// ------------------------------------------------------------------------------------------
// collectives

std::uint64_t WindowInference::before_collective(Stream& stream, const CollectiveCall& call,
                                                 bool computes) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (faulty() || gpu_.capturing(stream.handle)) {
        return 0;
    }
    std::uint64_t all_launches = 0;
    for (const Stream* each : all_streams_) {
        all_launches += each->all_launches();
    }
    stream.communication.store(
        !computes && stream.joined_compute && stream.all_launches() * 2 < all_launches,
        std::memory_order_release);

    const std::uint64_t number = next_number_;
    Collective& collective = slot(number);
    const State state = collective.state.load(std::memory_order_relaxed);
    if (state == State::kInFlight || state == State::kSubmitting) {
        return 0;  // more in flight than are followed: this one stays untracked
    }
    GpuEvent begin = take_event();
    GpuEvent end = take_event();
    if (begin == nullptr || end == nullptr) {
        give_event(begin);
        give_event(end);
        return 0;
    }
    ++next_number_;
    for (Stream* each : all_streams_) {
        if (each->communication.load(std::memory_order_relaxed)) {
            continue;
        }
        if (each->submitted.load(std::memory_order_acquire) != each->marked && markable(*each)) {
            mark(*each);
        }
        attach_mark(collective, *each);
    }
    std::uint64_t signature = mix_signature(call.communicator, call.bytes);
    signature = mix_signature(signature, call.operation);
    collective.window_signature = mix_signature(signature, 1);
    collective.crossing_signature = mix_signature(signature, 2 + position_);
    ++position_;
    collective.stream = stream.handle;
    collective.computes = computes;
    collective.begin = begin;
    collective.end = end;
    collective.number.store(number, std::memory_order_release);
    collective.state.store(State::kSubmitting, std::memory_order_release);
    record(begin, stream.handle);
    return number;
}

void WindowInference::after_collective(Stream& stream, std::uint64_t number,
                                       bool launched) noexcept {
    if (number == 0) {
        return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    Collective& collective = slot(number);
    if (!launched || !record(collective.end, stream.handle)) {
        collective.state.store(State::kFinished, std::memory_order_release);
        retire(collective);
        return;
    }
    collective.state.store(State::kInFlight, std::memory_order_release);
    put_behind(stream, number);
    newest_in_flight_.store(std::max(newest_in_flight_.load(std::memory_order_relaxed), number),
                            std::memory_order_release);
}

void WindowInference::event_recorded(EventKey event, Stream& stream) noexcept {
    EventRecord* known =
        events_.find_or_add(event, [](EventRecord& fresh) { new (&fresh) EventRecord{}; });
    if (known == nullptr) {
        return;
    }
    const bool compute =
        !stream.communication.load(std::memory_order_acquire) && stream.all_launches() != 0;
    known->behind.store(behind(stream), std::memory_order_release);
    known->compute_stream.store(compute ? stream.handle : 0, std::memory_order_release);
}

void WindowInference::event_destroyed(EventKey event) noexcept { events_.remove(event); }

void WindowInference::before_wait(Stream& stream, EventKey event) noexcept {
    EventRecord* known = events_.find(event);
    if (known == nullptr) {
        return;
    }
    const std::uint64_t number = known->behind.load(std::memory_order_acquire);
    const StreamKey from = known->compute_stream.load(std::memory_order_acquire);
    const bool joins = from != 0 && from != stream.handle;
    const bool puts_behind =
        number > stream.behind.load(std::memory_order_acquire) && !finished(number);
    if ((!joins || stream.joined_compute) && !puts_behind) {
        return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    stream.joined_compute = stream.joined_compute || joins;
    if (!puts_behind || faulty()) {
        return;
    }
    if (!stream.communication.load(std::memory_order_relaxed) && !gpu_.capturing(stream.handle)) {
        if (stream.submitted.load(std::memory_order_acquire) != stream.marked) {
            mark(stream);
        }
        Collective& collective = slot(number);
        if (collective.number.load(std::memory_order_relaxed) == number && !finished(number)) {
            attach_mark(collective, stream);
        }
    }
    put_behind(stream, number);
}

// ------------------------------------------------------------------------------------------ the
// watcher

std::optional<FinishedCollective> WindowInference::poll_finished() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    // Collectives of one stream end in order: behind one that is pending nothing needs to be asked.
    std::array<StreamKey, 16> pending{};
    std::ptrdiff_t pending_count = 0;
    for (std::uint64_t number = oldest_in_flight_; number < next_number_; ++number) {
        Collective& collective = slot(number);
        if (collective.number.load(std::memory_order_relaxed) != number ||
            collective.state.load(std::memory_order_relaxed) != State::kInFlight) {
            continue;
        }
        if (std::find(pending.begin(), pending.begin() + pending_count, collective.stream) !=
            pending.begin() + pending_count) {
            continue;
        }
        const EventState state = gpu_.query(collective.end);
        if (state == EventState::kPending) {
            if (pending_count == std::ssize(pending)) {
                break;
            }
            pending[static_cast<std::size_t>(pending_count++)] = collective.stream;
            continue;
        }
        FinishedCollective done;
        done.number = number;
        if (state == EventState::kDone) {
            done.running_ns = static_cast<std::uint64_t>(
                std::max<std::int64_t>(0, gpu_.elapsed_ns(collective.begin, collective.end)));
            done.exposed_ns =
                collective.computes ? 0 : measure_exposed(collective, done.running_ns);
            crossings_.learn(collective.crossing_signature, done.exposed_ns);
            if (done.exposed_ns != 0) {
                windows_.learn(collective.window_signature, done.exposed_ns);
            }
        } else {
            faulty_.store(true, std::memory_order_release);
        }
        collective.state.store(State::kFinished, std::memory_order_release);
        retire(collective);
        update_in_flight();
        return done;
    }
    update_in_flight();
    return std::nullopt;
}

bool WindowInference::drained() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    for (const Stream* each : all_streams_) {
        if (each->communication.load(std::memory_order_relaxed)) {
            continue;
        }
        if (each->submitted.load(std::memory_order_acquire) != each->marked ||
            (each->marker != nullptr && !marker_done(*each->marker))) {
            return false;
        }
    }
    while (!orphans_.empty()) {
        if (!marker_done(*orphans_.back())) {
            return false;
        }
        drop_marker(orphans_.back());
        orphans_.pop_back();
    }
    return !faulty();
}

bool WindowInference::mark_open_streams() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    bool all = true;
    for (Stream* each : all_streams_) {
        if (each->communication.load(std::memory_order_relaxed) ||
            each->submitted.load(std::memory_order_acquire) == each->marked) {
            continue;
        }
        all = markable(*each) && mark(*each) && all;
    }
    return all;
}

std::optional<std::uint64_t> WindowInference::expected_window_ns() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (newest_in_flight() == 0) {
        return std::nullopt;
    }
    const Collective& collective = slot(newest_in_flight());
    return windows_.predict(collective.window_signature);
}

// --------------------------------------------------------------------------------- guarded by the
// lock

bool WindowInference::markable(const Stream& stream) const noexcept {
    return stream.kind != StreamKind::kPerThread || stream.thread == current_thread_number();
}

bool WindowInference::mark(Stream& stream) noexcept {
    if (faulty() || gpu_.capturing(stream.handle)) {
        return false;
    }
    Marker* marker = nullptr;
    if (!spare_markers_.empty()) {
        marker = spare_markers_.back();
        spare_markers_.pop_back();
    } else {
        markers_.push_back(std::make_unique<Marker>());
        marker = markers_.back().get();
    }
    marker->event = take_event();
    marker->done = false;
    marker->references = 1;
    // Launches counted from here on are not covered; those in the driver right now are not counted
    // yet.
    const std::uint64_t covered = stream.submitted.load(std::memory_order_acquire);
    if (marker->event == nullptr || !record(marker->event, stream.handle)) {
        drop_marker(marker);
        return false;
    }
    drop_marker(stream.marker);
    stream.marker = marker;
    stream.marked = covered;
    return true;
}

void WindowInference::attach_mark(Collective& collective, const Stream& stream) noexcept {
    if (stream.marker == nullptr ||
        stream.submitted.load(std::memory_order_acquire) != stream.marked) {
        return;
    }
    for (Collective::Mark& held : collective.marks) {
        if (held.stream == &stream || held.marker == nullptr) {
            ++stream.marker->references;
            drop_marker(held.marker);
            held = {&stream, stream.marker};
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
