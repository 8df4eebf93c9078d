// SPDX-License-Identifier: Apache-2.0
// The watcher thread of a gate: sees when the job's compute has drained while a collective is in
// flight (a communication window) or the job has gone silent, gives the turn back, and tells
// threads at a crossing when their collective has ended. It sleeps without waking while the job is
// alone or nothing is in flight.
#include <sched.h>

#include <algorithm>

#include "arbiter/futex.hpp"
#include "shim/gate/device_gate.hpp"
#include "shim/gate/quiet_thread.hpp"
#include "shim/log.hpp"
#include "shim/real_driver.hpp"
#include "shim/relaxed_capture.hpp"

namespace crossover {

namespace {

constexpr std::uint64_t kLongSleepNs = 60'000'000'000;
// From here on a pause is one in which threads must wake the watcher. So they must while nothing is
// in flight: the pause is then that of a silence, and a collective that begins may be a short one.
constexpr std::uint64_t kAsleepNs = 1'000'000'000;
// A wait for the turn that passed its bound opens the gate for so long, doubled each time.
constexpr std::uint64_t kFirstStallPauseNs = 10'000'000'000;
constexpr std::uint64_t kLongestStallPauseNs = 300'000'000'000;
// Streams whose launches no marker covers are marked once no launch came for this long.
constexpr std::uint64_t kMarkAfterNs = 300'000;
constexpr std::uint64_t kUsersBoundNs = 50'000'000;

}  // namespace

void* DeviceGate::watcher_main(void* self) noexcept {
    static_cast<DeviceGate*>(self)->watch();
    return nullptr;
}

void DeviceGate::watch() noexcept {
    be_prompt();
    client_ = Client::attach(device_, job_, ordinal_, options_, attach_status_);
    if (client_ != nullptr) {
        if (const Status replaced = client_->replaced(); replaced != Status::kOk) {
            log_line(LogLevel::kFault, "the segment of device %u was no good (%s) and was replaced",
                     ordinal_, status_text(replaced));
        }
        if (const RealDriver* driver = real_driver();
            driver != nullptr && driver->ctx_set_current != nullptr) {
            driver->ctx_set_current(static_cast<CUcontext>(context_));
            relax_this_thread(*driver);
        }
        changed_at_ = silent_since_ = monotonic_ns();
        update_quiet();
    }
    attach_state_.store(client_ != nullptr ? 1 : 2, std::memory_order_release);
    futex_wake_all(attach_state_);
    if (client_ == nullptr) {
        return;
    }
    std::uint32_t seen = client_->notice();
    while (!stopping_.load(std::memory_order_acquire)) {
        const std::uint64_t now = monotonic_ns();
        const std::uint64_t pause = watch_once(now);
        if (pause >= kAsleepNs || inference_.newest_in_flight() == 0) {
            watcher_sleeps_.store(true, std::memory_order_seq_cst);
            // Whatever was submitted before this store did not wake us: look once more.
            if (watch_once(monotonic_ns()) < pause) {
                watcher_sleeps_.store(false, std::memory_order_seq_cst);
                continue;
            }
        }
        std::uint64_t until = monotonic_ns() + pause;
        if (stall_over_at_ != 0) {
            until = std::min(until, stall_over_at_);
        }
        seen = client_->sleep(seen, until);
        watcher_sleeps_.store(false, std::memory_order_seq_cst);
    }
    end_stream_gate();
    client_->release();
    // Threads that came before `stopping_` was set may still use the client. Where one does not
    // leave in time it stays, with the gate, which nobody deletes: the end of this thread then
    // tells the others that the client is gone.
    const std::uint64_t deadline = monotonic_ns() + kUsersBoundNs;
    while (traffic_.sum().users != 0 && monotonic_ns() < deadline) {
        ::sched_yield();
    }
    if (traffic_.sum().users == 0) {
        client_.reset();
    }
}

// One look at everything; returns for how many ns nothing needs to be looked at unless somebody
// wakes us.
std::uint64_t DeviceGate::watch_once(std::uint64_t now) noexcept {
    follow_faults(now);
    update_quiet();
    if (quiet()) {
        hold_communication(false);
        return kLongSleepNs;
    }
    follow_stream_gate(now);
    const std::uint64_t launches = traffic_.sum().launches;
    if (launches != launches_seen_) {
        launches_seen_ = launches;
        silent_since_ = changed_at_ = now;
        idle_reported_ = false;
        went_on_after_silence(now);
        if (turn_began_ == 0 && (observe_ || !gated() || client_->holding())) {
            turn_began_ = now;
        }
    }
    pieces_.watch(now, small_piece_ns());
    follow_collectives(now);
    const std::uint64_t in_flight = inference_.newest_in_flight();
    if (in_flight != 0 && in_flight_seen_ == 0) {
        changed_at_ = now;  // who waits for its gradients before it submits has drained already
    }
    in_flight_seen_ = in_flight;
    if (in_flight != 0 && now - silent_since_ >= kMarkAfterNs) {
        inference_.mark_open_streams();
    }
    follow_window(now, in_flight);
    follow_silence(now);
    follow_yielding(now);
    if (inference_.faulty() && open_for(kForGood)) {
        if (!events_.ended()) {
            log_line(LogLevel::kFault, "device %u reports an error; this process goes on ungated",
                     ordinal_);
        }
        client_->let_go();
        let_waiting_pass();
        client_->release();
    }
    if (in_flight != 0) {
        return poll_pause(now);
    }
    if (!idle_reported_) {
        return std::max(idle_grace_.ns() / 2, kShortestPollNs);
    }
    return kLongSleepNs;
}

// Says once that the gate stands open, and once that it is closed again.
void DeviceGate::follow_faults(std::uint64_t now) noexcept {
    if (!client_->usable()) {
        open_for(kFault);
        if (!fault_told_) {
            fault_told_ = true;
            log_line(LogLevel::kFault,
                     "the shared segment of device %u is unusable (%s); this process goes on "
                     "ungated until it has joined a new one",
                     ordinal_, status_text(client_->fault_status()));
        }
    } else if ((ungated_.load(std::memory_order_acquire) & kFault) != 0) {
        // A thread may have met the fault of a segment that is history by now.
        close_for(kFault);
        if (fault_told_ || client_->joined() != joined_) {
            log_line(LogLevel::kFault,
                     "device %u: joined a new segment; this process is gated again", ordinal_);
        }
        fault_told_ = false;
        joined_ = client_->joined();
    }
    if ((ungated_.load(std::memory_order_acquire) & kStall) == 0) {
        return;
    }
    const std::uint64_t stalled_at = stalled_at_.load(std::memory_order_acquire);
    if (stall_over_at_ == 0) {
        // One that comes long after the last is no sign of more to come.
        const bool again =
            stall_pause_ns_ != 0 && stalled_at - stall_ended_at_ < kLongestStallPauseNs;
        stall_pause_ns_ =
            again ? std::min(2 * stall_pause_ns_, kLongestStallPauseNs) : kFirstStallPauseNs;
        stall_over_at_ = stalled_at + stall_pause_ns_;
    }
    if (now >= stall_over_at_) {
        stall_over_at_ = 0;
        stall_ended_at_ = now;
        close_for(kStall);
        log_line(LogLevel::kFault, "device %u: this process is gated again", ordinal_);
    }
}

// Of compute until drained, or an open window.
std::uint64_t DeviceGate::poll_pause(std::uint64_t now) noexcept {
    PhaseUnderWay phase{.now = now, .changed_at = changed_at_, .began = turn_began_};
    if (window_number_ != 0) {
        phase.window = true;
        phase.began = window_since_;
        phase.length = window_length_;
        phase.spread = 2 * inference_.window_deviation_ns(window_number_);
        phase.reliable = phase.spread <= phase.length / 8;
    } else if (turn_began_ != 0) {
        phase.length = turn_length_.ns();
        phase.spread = turn_length_.spread();
        phase.reliable = turn_length_.reliable();
    }
    const std::uint64_t pause = poll_pause_ns(phase);
    return communication_held_ ? std::min(pause, kLongestPollNs) : pause;
}

void DeviceGate::update_quiet() noexcept {
    const bool alone = !observe_ && !client_->contended();
    if (!alone) {
        open_stream_gate();
    }
    if (alone == quiet()) {
        return;
    }
    if (alone) {
        // A job that is alone has the turn, so that the next to come waits for its first window.
        client_->acquire(0);
    } else {
        inference_.restart();
        yield_trial_.restart();
        idle_reported_ = false;
        changed_at_ = silent_since_ = monotonic_ns();
    }
    idle_since_ = 0;
    quiet_.store(alone, std::memory_order_release);
    refresh_attention();
}

void DeviceGate::follow_collectives(std::uint64_t now) noexcept {
    bool any = false;
    while (const auto done = inference_.poll_finished()) {
        client_->record(EventKind::kCollectiveEnd, done->running_ns, now);
        // Collectives of several communicators may run at once; the time counts once.
        const std::uint64_t began =
            std::max(now - std::min(now, done->running_ns), communicated_until_);
        client_->add_communicated(now - began);
        communicated_until_ = now;
        client_->add_exposed(done->exposed_ns);
        yield_trial_.ended(done->place, now);
        any = true;
    }
    if (any) {
        changed_at_ = now;
        collectives_ended_.fetch_add(1, std::memory_order_acq_rel);
        futex_wake_all(collectives_ended_);
    }
}

void DeviceGate::follow_window(std::uint64_t now, std::uint64_t in_flight) noexcept {
    // A job that is only observed launches on behind its collectives: its window lasts while all of
    // that stands still. With turns, a launch ends it.
    const std::uint64_t behind = observe_ ? inference_.stands_behind() : 0;
    // What waits on the GPU is launched while the window is open, later collectives with it.
    const bool ahead = epochs_.pending() != 0;
    const bool stays =
        ahead || (window_number_ != 0 && streams_wait_.load(std::memory_order_acquire) &&
                  !client_->holding() && inference_.stands_behind() != 0);
    const bool over = stays ? inference_.finished(window_number_)
                            : in_flight == 0 || launches_seen_ != window_launches_ ||
                                  inference_.computing_graph_in_flight();
    if (window_number_ != 0 && (observe_ ? behind == 0 : over)) {
        const std::uint64_t went_on_at = went_on_at_.load(std::memory_order_acquire);
        const std::uint64_t closed_at =
            went_on_at > window_since_ && went_on_at < now ? went_on_at : now;
        client_->record(EventKind::kWindowClose, closed_at - window_since_, closed_at);
        window_number_ = 0;
        changed_at_ = now;
        if (observe_ && !inference_.drained()) {
            // What was launched behind the collective runs now.
            client_->record(EventKind::kCompute, 0, now);
            client_->set_phase(ClientPhase::kComputing, now);
            turn_began_ = now;
        } else {
            client_->set_phase(ClientPhase::kIdle, now);
            fresh_turn_.store(true, std::memory_order_release);
        }
    }
    if (in_flight == 0 || inference_.computing_graph_in_flight()) {
        not_drained_at_ = 0;
        if (in_flight != 0) {
            follow_graph();
        }
        return;
    }
    if (window_number_ == 0) {
        if (ahead) {
            return;
        }
        if (observe_ ? behind == 0 : traffic_.sum().launching != 0 || !inference_.drained()) {
            not_drained_at_ = now;
            return;
        }
        // This thread may lose its core between asking and noting the time, so that is noted
        // between two looks: at that moment the compute had finished, and the collective had not.
        now = monotonic_ns();
        const std::uint64_t number = observe_ ? behind : in_flight;
        const bool launched =
            traffic_.sum().launching != 0 || traffic_.sum().launches != launches_seen_;
        if ((launched && !observe_) || !inference_.still_runs(number)) {
            return;
        }
        window_number_ = number;
        window_since_ = changed_at_ = now;
        // How much is left of what runs before it is not known.
        window_length_ =
            inference_.is_oldest(number) ? inference_.expected_window_ns(number).value_or(0) : 0;
        window_launches_ = launches_seen_;
        if (not_drained_at_ != 0) {
            hand_over_.seen_open(now - not_drained_at_);
            not_drained_at_ = 0;
        }
        if (turn_began_ != 0) {
            note_needed(now - turn_began_);
            turn_length_.learn(now - turn_began_);
            end_phase(now);
        }
        tell_least_window(now);
        client_->record(EventKind::kWindowOpen, in_flight, now);
        client_->set_phase(ClientPhase::kCommunicating, now);
        client_->count_window();
    }
    if (!observe_ && client_->holding()) {
        const auto expected = inference_.expected_window_ns();
        const bool pays = crossing_waiters_.load(std::memory_order_seq_cst) != 0 ||
                          (expected && *expected >= least_window_ns());
        if (pays) {
            give_back(window_launches_);
        }
    }
}

// What the last turn was for has drained. When its lease cut it on the way, nothing more was to be
// launched, and nobody else can tell the arbiter how long the phase was.
void DeviceGate::end_phase(std::uint64_t drained_at) noexcept {
    if (turn_began_ != 0 && !observe_ && !client_->holding()) {
        client_->phase_over(drained_at - std::min(drained_at, turn_began_));
    }
    turn_began_ = 0;
}

// Whoever judges the windows from the events has to know which were worth a turn.
void DeviceGate::tell_least_window(std::uint64_t now) noexcept {
    const std::uint64_t least = least_window_ns();
    const auto [less, more] = std::minmax(least, least_told_ns_);
    if (more - less > more / 8) {
        least_told_ns_ = least;
        client_->record(EventKind::kLeastWindow, least, now);
    }
}

// A graph of compute and collectives is in flight: it waits for its peer ranks, so the turn goes as
// soon as all other compute has drained, unless it is known to take no longer than handing over.
void DeviceGate::follow_graph() noexcept {
    if (observe_ || !client_->holding()) {
        return;
    }
    const auto expected = inference_.expected_window_ns();
    const bool pays = crossing_waiters_.load(std::memory_order_seq_cst) != 0 || !expected ||
                      *expected >= least_window_ns();
    if (pays && inference_.drained() && give_back(launches_seen_)) {
        turn_began_ = 0;
    }
}

// The first launch after a silence that let the turn go tells whether that was worth it.
void DeviceGate::went_on_after_silence(std::uint64_t now) noexcept {
    if (idle_since_ == 0) {
        return;
    }
    const std::uint64_t came_back = came_back_at_.load(std::memory_order_acquire);
    const std::uint64_t until = came_back == 0 ? now : came_back;
    idle_grace_.went_on(until - std::min(until, idle_since_));
    idle_since_ = 0;
}

void DeviceGate::follow_silence(std::uint64_t now) noexcept {
    if (idle_reported_ || window_number_ != 0 || inference_.newest_in_flight() != 0 ||
        now - silent_since_ < kMarkAfterNs) {
        drained_since_ = 0;
        return;
    }
    if (!inference_.mark_open_streams() || !inference_.drained()) {
        drained_since_ = 0;
        return;
    }
    if (drained_since_ == 0) {
        drained_since_ = now;
    }
    const std::uint64_t silent = now - drained_since_;
    if (silent < idle_grace_.ns()) {
        return;
    }
    if (!observe_ && client_->holding()) {
        came_back_at_.store(0, std::memory_order_release);
        if (!give_back(launches_seen_)) {
            return;
        }
        idle_since_ = monotonic_ns();
    }
    idle_reported_ = true;
    end_phase(drained_since_);
    client_->record(EventKind::kIdle, silent, now);
    client_->set_phase(ClientPhase::kIdle, now);
    fresh_turn_.store(true, std::memory_order_release);
}

// Invariant 1 of the gate: nobody is inside, nothing came since the look that called for it, all
// has drained.
bool DeviceGate::give_back(std::uint64_t launches_seen) noexcept {
    const std::uint64_t epochs = epochs_.snapshot();
    const bool safe =
        traffic_.close(launches_seen) && inference_.drained() && release_unless_changed(epochs);
    traffic_.open();
    if (safe) {
        pieces_.stop();
        if (streams_wait_.load(std::memory_order_acquire)) {
            // Threads at a crossing may go on: their streams wait from here on.
            collectives_ended_.fetch_add(1, std::memory_order_acq_rel);
            futex_wake_all(collectives_ended_);
        }
    }
    return safe;
}

}  // namespace crossover
