// SPDX-License-Identifier: Apache-2.0
// The watcher thread of a gate: sees when the job's compute has drained while a collective is in
// flight (a communication window) or the job has gone silent, gives the turn back, and tells
// threads at a crossing when their collective has ended. It sleeps without waking while the job is
// alone or nothing is in flight.
#include <sched.h>
#include <sys/prctl.h>

#include <algorithm>

#include "arbiter/futex.hpp"
#include "shim/gate/device_gate.hpp"
#include "shim/log.hpp"
#include "shim/real_driver.hpp"

namespace crossover {

namespace {

constexpr std::uint64_t kLongSleepNs = 60'000'000'000;
// Beside other jobs nobody may wake us for one that died: Client::sleep() looks for it.
constexpr std::uint64_t kContendedSleepNs = 1'000'000'000;
// Asking the GPU costs about a microsecond, so a phase is asked about as often as its age warrants:
// late by at most a 64th of the phase, within these limits.
constexpr std::uint64_t kShortestPollNs = 50'000;
constexpr std::uint64_t kLongestPollNs = 300'000;
constexpr std::uint64_t kPhaseFraction = 64;
// Around the end that the last phases of the kind lead to expect, it is asked about as often as may
// be.
constexpr std::uint64_t kExpectedFraction = 32;
// Streams whose launches no marker covers are marked once no launch came for this long.
constexpr std::uint64_t kMarkAfterNs = 300'000;
constexpr std::uint64_t kUsersBoundNs = 50'000'000;

}  // namespace

void* DeviceGate::watcher_main(void* self) noexcept {
    static_cast<DeviceGate*>(self)->watch();
    return nullptr;
}

void DeviceGate::watch() noexcept {
    ::prctl(PR_SET_NAME, "crossover");
    ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    client_ = Client::attach(device_, job_, ordinal_, options_, attach_status_);
    if (client_ != nullptr) {
        client_->set_mode(static_cast<Mode>(options_.mode));
        if (const RealDriver* driver = real_driver();
            driver != nullptr && driver->ctx_set_current != nullptr) {
            driver->ctx_set_current(static_cast<CUcontext>(context_));
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
        if (pause >= kContendedSleepNs) {
            watcher_sleeps_.store(true, std::memory_order_seq_cst);
            // Whatever was submitted before this store did not wake us: look once more.
            if (watch_once(monotonic_ns()) < kContendedSleepNs) {
                watcher_sleeps_.store(false, std::memory_order_seq_cst);
                continue;
            }
        }
        seen = client_->sleep(seen, monotonic_ns() + pause);
        watcher_sleeps_.store(false, std::memory_order_seq_cst);
    }
    client_->release();
    // Threads that came before `stopping_` was set may still use the client. One that does not
    // leave in time keeps it alive: the end of this thread then tells the others that the client is
    // gone.
    const std::uint64_t deadline = monotonic_ns() + kUsersBoundNs;
    while (traffic_.sum().users != 0 && monotonic_ns() < deadline) {
        ::sched_yield();
    }
    if (traffic_.sum().users == 0) {
        client_.reset();
    } else {
        static_cast<void>(client_.release());
    }
}

// One look at everything; returns for how many ns nothing needs to be looked at unless somebody
// wakes us.
std::uint64_t DeviceGate::watch_once(std::uint64_t now) noexcept {
    update_quiet();
    if (quiet()) {
        return kLongSleepNs;
    }
    const std::uint64_t launches = traffic_.sum().launches;
    if (launches != launches_seen_) {
        launches_seen_ = launches;
        silent_since_ = changed_at_ = now;
        idle_reported_ = false;
        turn_began_ = turn_began_ == 0 ? now : turn_began_;
    }
    follow_collectives(now);
    const std::uint64_t in_flight = inference_.newest_in_flight();
    if (in_flight != 0 && now - silent_since_ >= kMarkAfterNs) {
        inference_.mark_open_streams();
    }
    follow_window(now, in_flight);
    follow_silence(now);
    if (inference_.faulty() && !ungated_.load(std::memory_order_acquire)) {
        if (!events_.ended()) {
            log_line(LogLevel::kFault, "device %u reports an error; this process goes on ungated",
                     ordinal_);
        }
        let_go();
        client_->release();
    }
    if (in_flight != 0) {
        return poll_pause(now);
    }
    if (!idle_reported_) {
        return std::max<std::uint64_t>(options_.idle_grace_us * 1000 / 2, kShortestPollNs);
    }
    return client_->contended() ? kContendedSleepNs : kLongSleepNs;
}

// How long the phase under way (compute until drained, or an open window) may be left unasked.
std::uint64_t DeviceGate::poll_pause(std::uint64_t now) noexcept {
    const std::uint64_t usual =
        std::clamp((now - changed_at_) / kPhaseFraction, kShortestPollNs, kLongestPollNs);
    const std::uint64_t length =
        window_number_ != 0 ? inference_.expected_window_ns().value_or(0) : usual_turn_ns_;
    const std::uint64_t end = (window_number_ != 0 ? window_since_ : turn_began_) + length;
    const std::uint64_t margin = length / kExpectedFraction;
    if (length == 0 || now > end + margin) {
        return usual;
    }
    return now + margin >= end ? kShortestPollNs
                               : std::max(kShortestPollNs, std::min(usual, end - margin - now));
}

void DeviceGate::update_quiet() noexcept {
    const bool alone = !observe_ && !client_->contended();
    if (alone == quiet()) {
        return;
    }
    if (alone) {
        // A job that is alone has the turn, so that the next to come waits for its first window.
        client_->acquire(0);
    } else {
        inference_.restart();
        idle_reported_ = false;
        changed_at_ = silent_since_ = monotonic_ns();
    }
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
        any = true;
    }
    if (any) {
        changed_at_ = now;
        collectives_ended_.fetch_add(1, std::memory_order_acq_rel);
        futex_wake_all(collectives_ended_);
    }
}

void DeviceGate::follow_window(std::uint64_t now, std::uint64_t in_flight) noexcept {
    if (window_number_ != 0 && (in_flight == 0 || launches_seen_ != window_launches_)) {
        client_->record(EventKind::kWindowClose, now - window_since_, now);
        client_->set_phase(ClientPhase::kIdle, now);
        window_number_ = 0;
        changed_at_ = now;
        fresh_turn_.store(true, std::memory_order_release);
    }
    if (in_flight == 0) {
        return;
    }
    if (window_number_ == 0) {
        if (traffic_.sum().launching != 0 || !inference_.drained() ||
            traffic_.sum().launches != launches_seen_) {
            return;
        }
        window_number_ = in_flight;
        window_since_ = changed_at_ = now;
        window_launches_ = launches_seen_;
        if (turn_began_ != 0) {
            usual_turn_ns_ = now - turn_began_;
            turn_began_ = 0;
        }
        client_->record(EventKind::kWindowOpen, in_flight, now);
        client_->set_phase(ClientPhase::kCommunicating, now);
        client_->count_window();
    }
    if (!observe_ && client_->holding()) {
        const auto expected = inference_.expected_window_ns();
        const bool pays = crossing_waiters_.load(std::memory_order_seq_cst) != 0 ||
                          (expected && *expected >= options_.min_window_us * 1000);
        if (pays) {
            give_back(window_launches_);
        }
    }
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
    if (silent < options_.idle_grace_us * 1000) {
        return;
    }
    if (!observe_ && client_->holding() && !give_back(launches_seen_)) {
        return;
    }
    idle_reported_ = true;
    turn_began_ = 0;
    client_->record(EventKind::kIdle, silent, now);
    client_->set_phase(ClientPhase::kIdle, now);
    fresh_turn_.store(true, std::memory_order_release);
}

// Invariant 1 of the gate: nobody is inside, nothing came since the look that called for it, all
// has drained.
bool DeviceGate::give_back(std::uint64_t launches_seen) noexcept {
    const bool safe = traffic_.close(launches_seen) && inference_.drained();
    if (safe) {
        client_->release();
    }
    traffic_.open();
    return safe;
}

}  // namespace crossover
