// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/windows.hpp"

#include <algorithm>
#include <iterator>
#include <new>

namespace crossover {

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
        try {
            all_streams_.push_back(found);
        } catch (const std::bad_alloc&) {
            return nullptr;
        }
        found->alive = true;
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
            // At the end of a thread its context may be gone, which is no fault of the device.
            mark(*gone, gone->kind != StreamKind::kPerThread);
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

// One of a size that was never seen, as fused gradients have it now and then, is taken to be like
// the others of its communicator.
std::optional<std::uint64_t> WindowInference::predict_window(
    const Collective& collective) const noexcept {
    const auto own = windows_.predict(collective.window_signature);
    return own ? own : windows_.predict(collective.communicator_signature);
}

// Of two predictions, where there are any.
static std::optional<std::uint64_t> longer(std::optional<std::uint64_t> a,
                                           std::optional<std::uint64_t> b) noexcept {
    return a && b ? std::max(a, b) : a ? a : b;
}

// What a launch behind the collective waits for it alone. A place in the iteration that is new or
// was seen but a few times (the first iterations that are followed, an order that varies) takes the
// word of the same collective elsewhere.
std::optional<std::uint64_t> WindowInference::predict_crossing(
    const Collective& collective) const noexcept {
    const auto here = contexts_.predict(collective.context_signature);
    if (here && contexts_.sure(collective.context_signature)) {
        return here;
    }
    return longer(here, crossings_.sure(collective.crossing_signature)
                            ? crossings_.predict(collective.crossing_signature)
                            : longer(crossings_.predict(collective.crossing_signature),
                                     predict_window(collective)));
}

// Of a collective and the unfinished ones before it on its stream, one after the other: the last of
// several may be short where those before it are not.
template <typename Predict>
std::optional<std::uint64_t> WindowInference::predict_until(std::uint64_t number,
                                                            Predict predict) const noexcept {
    std::optional<std::uint64_t> sum;
    for (std::uint64_t each = std::min(oldest_in_flight_, number); each <= number; ++each) {
        const Collective& collective = slot(each);
        if (collective.number.load(std::memory_order_relaxed) == each && !finished(each) &&
            collective.stream == slot(number).stream) {
            if (const auto own = (this->*predict)(collective)) {
                sum = sum.value_or(0) + *own;
            }
        }
    }
    return sum;
}

bool WindowInference::crossing_pays(Stream& stream, std::uint64_t number,
                                    std::uint64_t min_window_ns) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    const Collective& collective = slot(number);
    if (collective.number.load(std::memory_order_relaxed) == number) {
        const auto expected = predict_until(number, &WindowInference::predict_crossing);
        if (expected ? *expected >= min_window_ns : collective.computes) {
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
        attach_mark(collective, *each, ordered_behind(*each, stream));
    }
    std::uint64_t signature = mix_signature(call.communicator, call.bytes);
    signature = mix_signature(signature, call.operation);
    signature = mix_signature(signature, computes ? 1 : 0);
    std::copy_backward(recent_.begin(), recent_.end() - 1, recent_.end());
    recent_.front() = signature;
    compute_before_newest_ = compute_launches();
    collective.window_signature = mix_signature(signature, 1);
    collective.communicator_signature = mix_signature(call.communicator, computes ? 1 : 0);
    collective.crossing_signature = mix_signature(signature, 2 + position_);
    collective.context_signature = mix_signature(context(), 2 + position_);
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
    doubt_order(collective, nullptr, true);
    collective.state.store(State::kInFlight, std::memory_order_release);
    if (collective.computes) {
        computing_graphs_.fetch_add(1, std::memory_order_release);
        stream.launches.fetch_add(1, std::memory_order_relaxed);
    }
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
    if (compute && stream.kind == StreamKind::kPerThread) {
        // What waits for this event may be submitted by a thread that cannot mark the stream.
        const std::lock_guard<std::mutex> guard(mutex_);
        if (stream.submitted.load(std::memory_order_acquire) != stream.marked && markable(stream)) {
            mark(stream);
        }
    }
    known->behind.store(behind(stream), std::memory_order_release);
    known->compute_stream.store(compute ? stream.handle : 0, std::memory_order_release);
}

void WindowInference::event_destroyed(EventKey event) noexcept { events_.remove(event); }

bool WindowInference::puts_behind(const Stream& stream, EventKey event) noexcept {
    const EventRecord* known = events_.find(event);
    const std::uint64_t number =
        known == nullptr ? 0 : known->behind.load(std::memory_order_acquire);
    return number > stream.behind.load(std::memory_order_acquire) && !finished(number);
}

std::uint64_t WindowInference::before_wait(Stream& stream, EventKey event) noexcept {
    EventRecord* known = events_.find(event);
    if (known == nullptr) {
        return 0;
    }
    const std::uint64_t number = known->behind.load(std::memory_order_acquire);
    const StreamKey from = known->compute_stream.load(std::memory_order_acquire);
    const bool joins = from != 0 && from != stream.handle;
    const bool puts_behind = this->puts_behind(stream, event);
    if ((!joins || stream.joined_compute) && !puts_behind) {
        return 0;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    stream.joined_compute = stream.joined_compute || joins;
    if (!puts_behind || faulty()) {
        return 0;
    }
    if (!stream.communication.load(std::memory_order_relaxed) && !gpu_.capturing(stream.handle)) {
        if (stream.submitted.load(std::memory_order_acquire) != stream.marked) {
            mark(stream);
        }
        Collective& collective = slot(number);
        if (collective.number.load(std::memory_order_relaxed) == number && !finished(number)) {
            attach_mark(collective, stream, true);
        }
    }
    put_behind(stream, number);
    return number;
}

void WindowInference::after_wait(Stream& stream, const StreamMove& move) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    Collective& collective = slot(move.collective);
    if (move.collective != 0 &&
        collective.number.load(std::memory_order_relaxed) == move.collective) {
        doubt_order(collective, &stream, move.kept_out);
    }
}

// Launches on the stream (nullptr: on any) that its mark does not cover may have come before the
// collective, or the wait for it. Where they were not kept out, so may one that is not counted yet.
void WindowInference::doubt_order(Collective& collective, const Stream* stream,
                                  bool kept_out) noexcept {
    for (Collective::Mark& held : collective.marks) {
        if (held.before && held.stream != nullptr && (stream == nullptr || held.stream == stream) &&
            (!kept_out ||
             held.stream->submitted.load(std::memory_order_acquire) != held.launches)) {
            held.before = false;
        }
    }
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
        done.place = collective.context_signature;
        if (state == EventState::kDone) {
            done.running_ns = static_cast<std::uint64_t>(
                std::max<std::int64_t>(0, gpu_.elapsed_ns(collective.begin, collective.end)));
            done.exposed_ns =
                collective.computes ? 0 : measure_exposed(collective, done.running_ns);
            // What comes behind a graph that also computes waits for its end, however much of it
            // was communication.
            const std::uint64_t waited = collective.computes ? done.running_ns : done.exposed_ns;
            contexts_.learn(collective.context_signature, waited);
            crossings_.learn(collective.crossing_signature, waited);
            windows_.learn(collective.communicator_signature, waited);
            if (waited != 0) {
                windows_.learn(collective.window_signature, waited);
            }
        } else {
            faulty_.store(true, std::memory_order_release);
        }
        computing_graphs_.fetch_sub(collective.computes ? 1 : 0, std::memory_order_release);
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
        if (!each->communication.load(std::memory_order_relaxed) && !covered(*each)) {
            return false;
        }
    }
    return orphans_done() && !faulty();
}

std::uint64_t WindowInference::stands_behind() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::uint64_t behind = newest_in_flight();
    if (behind == 0 || computing_graph_in_flight() || !orphans_done()) {
        return 0;
    }
    for (const Stream* each : all_streams_) {
        if (each->communication.load(std::memory_order_relaxed) || covered(*each)) {
            continue;
        }
        const std::uint64_t number = waits_for(*each);
        if (number == 0) {
            return 0;
        }
        behind = std::min(behind, number);
    }
    return faulty() ? 0 : behind;
}

bool WindowInference::still_runs(std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    const Collective& collective = slot(number);
    return number != 0 && collective.number.load(std::memory_order_relaxed) == number &&
           collective.state.load(std::memory_order_relaxed) == State::kInFlight &&
           gpu_.query(collective.end) == EventState::kPending;
}

// The oldest collective in flight that the stream's unfinished launches wait for, or 0.
std::uint64_t WindowInference::waits_for(const Stream& stream) noexcept {
    for (std::uint64_t number = oldest_in_flight_; number < next_number_; ++number) {
        const Collective& collective = slot(number);
        if (collective.number.load(std::memory_order_relaxed) != number ||
            collective.state.load(std::memory_order_relaxed) != State::kInFlight) {
            continue;
        }
        for (const Collective::Mark& held : collective.marks) {
            if (held.stream == &stream && held.before && marker_done(*held.marker)) {
                return number;
            }
        }
    }
    return 0;
}

bool WindowInference::orphans_done() noexcept {
    while (!orphans_.empty()) {
        if (!marker_done(*orphans_.back())) {
            return false;
        }
        drop_marker(orphans_.back());
        orphans_.pop_back();
    }
    return true;
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

std::optional<std::uint64_t> WindowInference::expected_window_ns(std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    number = number == 0 ? newest_in_flight() : number;
    const Collective& collective = slot(number);
    if (number == 0 || collective.number.load(std::memory_order_relaxed) != number) {
        return std::nullopt;
    }
    return predict_until(number, &WindowInference::predict_window);
}

bool WindowInference::is_oldest(std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    return number <= oldest_in_flight_;
}

std::uint64_t WindowInference::window_deviation_ns(std::uint64_t number) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    const Collective& collective = slot(number);
    return collective.number.load(std::memory_order_relaxed) == number
               ? windows_.deviation(collective.window_signature)
               : 0;
}

}  // namespace crossover
