// SPDX-License-Identifier: Apache-2.0
// The launching threads' side of a gate, and its start and end. The watcher's side stands in
// watcher.cpp.
#include "shim/gate/device_gate.hpp"

#include <sched.h>
#include <signal.h>

#include <algorithm>
#include <cstring>
#include <ctime>

#include "arbiter/futex.hpp"
#include "arbiter/policy.hpp"
#include "shim/call_site.hpp"
#include "shim/log.hpp"

namespace crossover {

namespace {

constexpr std::uint64_t kAttachBoundNs = 2'000'000'000;
constexpr std::uint64_t kCrossingStepNs = 10'000'000;
constexpr std::uint64_t kTurnSlackNs = 5'000'000'000;
constexpr std::size_t kWatcherStackBytes = 256 * 1024;

constexpr std::uint32_t kPending = 0;
constexpr std::uint32_t kAttached = 1;
constexpr std::uint32_t kFailed = 2;

// Creates a thread that takes none of the host's signals.
bool create_quiet_thread(pthread_t& thread, void* (*body)(void*), void* argument) noexcept {
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attributes, kWatcherStackBytes);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int refused = pthread_create(&thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return refused == 0;
}

}  // namespace

DeviceGate::DeviceGate(const DeviceUuid& device, std::uint32_t ordinal, void* context,
                       const JobIdentity& job, const Options& options)
    : inference_(events_),
      device_(device),
      ordinal_(ordinal),
      context_(context),
      job_(job),
      options_(options),
      observe_(static_cast<Mode>(options.mode) == Mode::kObserve) {}

DeviceGate::~DeviceGate() = default;

std::unique_ptr<DeviceGate> DeviceGate::start(const DeviceUuid& device, std::uint32_t ordinal,
                                              void* context, const JobIdentity& job,
                                              const Options& options, Status& status) noexcept {
    std::unique_ptr<DeviceGate> gate(new DeviceGate(device, ordinal, context, job, options));
    if (!create_quiet_thread(gate->watcher_, &DeviceGate::watcher_main, gate.get())) {
        status = Status::kSystem;
        return nullptr;
    }
    gate->watcher_started_ = true;
    const std::uint64_t deadline = monotonic_ns() + kAttachBoundNs;
    while (gate->attach_state_.load(std::memory_order_acquire) == kPending &&
           monotonic_ns() < deadline) {
        futex_wait(gate->attach_state_, kPending, deadline);
    }
    const std::uint32_t state = gate->attach_state_.load(std::memory_order_acquire);
    if (state == kAttached) {
        status = Status::kOk;
        return gate;
    }
    status = state == kFailed ? gate->attach_status_ : Status::kTimedOut;
    if (!gate->stop(kAttachBoundNs)) {
        static_cast<void>(gate.release());  // its thread still uses it
    }
    return nullptr;
}

// -------------------------------------------------------------------------------------- compute
// launches

bool DeviceGate::begin_use() noexcept {
    traffic_.begin_use();
    if (stopping_.load(std::memory_order_seq_cst)) {
        end_use();
        return false;
    }
    return true;
}

bool DeviceGate::enter(Stream& stream) noexcept {
    traffic_.begin_launch();
    if (stopping_.load(std::memory_order_seq_cst)) [[unlikely]] {
        traffic_.end_launch(false);
        return false;
    }
    std::uint64_t crossing = 0;
    if (!may_launch(stream, crossing)) [[unlikely]] {
        wait_to_enter(stream, crossing);
    }
    return true;
}

// The caller is counted as launching. False: it must step out and wait, for the collective
// `crossing` unless that is 0, then for the turn.
bool DeviceGate::may_launch(Stream& stream, std::uint64_t& crossing) noexcept {
    const std::uint64_t behind = inference_.unfinished_behind(stream);
    if (!gated() || observe_) {
        return true;
    }
    crossing = 0;
    if (behind != 0 && inference_.crossing_pays(stream, behind, options_.min_window_us * 1000)) {
        crossing = behind;
        return false;
    }
    return !traffic_.closing() && client_->holding();
}

void DeviceGate::wait_to_enter(Stream& stream, std::uint64_t crossing) noexcept {
    traffic_.step_out();
    const std::uint64_t jobs =
        client_->segment().arbitration.turn.active_jobs.load(std::memory_order_acquire);
    const std::uint64_t deadline =
        monotonic_ns() + kMaxLeaseNs * std::clamp<std::uint64_t>(jobs, 1, kMaxJobs) + kTurnSlackNs;
    for (;;) {
        if (crossing != 0) {
            wait_for_collective(stream, crossing, deadline);
        }
        if (!client_->holding()) {
            wait_for_turn(deadline);
        } else if (traffic_.closing()) {
            ::sched_yield();
        }
        traffic_.step_in();
        if (may_launch(stream, crossing)) {
            return;
        }
        traffic_.step_out();
    }
}

void DeviceGate::leave(Stream& stream, bool launched) noexcept {
    if (launched) {
        inference_.compute_submitted(stream);
        if (fresh_turn_.load(std::memory_order_relaxed)) [[unlikely]] {
            begin_turn();
        }
    }
    traffic_.end_launch(launched);
}

// The first launch of a turn was taken.
void DeviceGate::begin_turn() noexcept {
    if (fresh_turn_.exchange(false, std::memory_order_acq_rel)) {
        const std::uint64_t now = monotonic_ns();
        client_->set_phase(ClientPhase::kComputing, now);
        client_->record(EventKind::kCompute, 0, now);
        wake_watcher();
    }
}

void DeviceGate::wait_for_collective(Stream& stream, std::uint64_t number,
                                     std::uint64_t deadline) noexcept {
    client_->count_crossing();
    client_->record(EventKind::kCrossing, number, monotonic_ns());
    crossing_waiters_.fetch_add(1, std::memory_order_seq_cst);
    wake_watcher();
    while (gated() && !inference_.finished(number)) {
        const std::uint32_t seen = collectives_ended_.load(std::memory_order_acquire);
        if (inference_.finished(number)) {
            break;
        }
        const std::uint64_t now = monotonic_ns();
        if (now >= deadline) {
            // A collective this late waits for a peer; the launch may as well queue behind it on
            // the GPU.
            log_line(LogLevel::kFault,
                     "a collective did not end within %llu s; its successor is launched ungated",
                     static_cast<unsigned long long>((kMaxLeaseNs + kTurnSlackNs) / 1'000'000'000));
            stream.passed.store(number, std::memory_order_relaxed);
            break;
        }
        futex_wait(collectives_ended_, seen, std::min(deadline, now + kCrossingStepNs));
    }
    crossing_waiters_.fetch_sub(1, std::memory_order_seq_cst);
}

void DeviceGate::wait_for_turn(std::uint64_t deadline) noexcept {
    const std::uint64_t since = monotonic_ns();
    client_->set_phase(ClientPhase::kWaiting, since);
    switch (client_->acquire(deadline)) {
        case Wait::kGranted:
            fresh_turn_.store(true, std::memory_order_release);
            return;
        case Wait::kAborted:
            return;
        case Wait::kTimedOut:
            report_stall(since);
            break;
        case Wait::kFault:
            log_line(LogLevel::kFault,
                     "the shared segment of device %u is unusable; this process goes on ungated",
                     ordinal_);
            break;
    }
    ungated_.store(true, std::memory_order_release);
}

// Says who has the turn, since when, and where this thread waits.
void DeviceGate::report_stall(std::uint64_t since_ns) const noexcept {
    const Segment& segment = client_->segment();
    const std::size_t holder =
        segment.arbitration.turn.word.load(std::memory_order_acquire) & kTurnJobMask;
    char name[kJobNameBytes] = "nobody";
    std::uint64_t held_ns = 0;
    const std::uint64_t now = monotonic_ns();
    if (holder != 0 && holder <= kMaxJobs) {
        // Read without the lock, which may be what is wrong: a hint for people.
        const JobSlot& job = segment.jobs[holder - 1];
        std::memcpy(name, job.name, sizeof name - 1);
        name[sizeof name - 1] = '\0';
        held_ns = now - std::min(now, job.turn_since_ns);
    }
    char place[256];
    describe_call_site(place, sizeof place);
    log_line(LogLevel::kFault,
             "no turn on device %u within %llu ms: %s has it since %llu ms; waiting in %s; this "
             "process goes on ungated",
             ordinal_, static_cast<unsigned long long>((now - since_ns) / 1'000'000), name,
             static_cast<unsigned long long>(held_ns / 1'000'000), place);
}

void DeviceGate::wake_watcher() noexcept {
    if (watcher_sleeps_.load(std::memory_order_seq_cst)) {
        client_->wake();
    }
}

// --------------------------------------------------------------------------------------------
// collectives

std::uint64_t DeviceGate::begin_collective(Stream& stream, const CollectiveCall& call,
                                           bool computes) noexcept {
    return inference_.before_collective(stream, call, computes);
}

void DeviceGate::end_collective(Stream& stream, std::uint64_t number, bool launched) noexcept {
    inference_.after_collective(stream, number, launched);
    if (number != 0 && launched && begin_use()) {
        client_->record(EventKind::kCollectiveBegin, number, monotonic_ns());
        wake_watcher();
        end_use();
    }
}

// ------------------------------------------------------------------------------------------ start
// and end

void DeviceGate::let_go() noexcept {
    ungated_.store(true, std::memory_order_release);
    if (begin_use()) {
        client_->let_go();
        end_use();
    }
    collectives_ended_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake_all(collectives_ended_);
}

void DeviceGate::allow() noexcept {
    if (begin_use()) {
        client_->allow();
        ungated_.store(inference_.faulty(), std::memory_order_release);
        end_use();
    }
}

void DeviceGate::rekey(const JobIdentity& job) noexcept {
    if (!begin_use()) {
        return;
    }
    const Status status = client_->rekey(job);
    end_use();
    if (status != Status::kOk) {
        log_line(LogLevel::kFault, "job %s cannot join device %u: %s; this process goes on ungated",
                 job.name, ordinal_, status_text(status));
        let_go();
    }
}

bool DeviceGate::stop(std::uint64_t bound_ns) noexcept {
    if (attach_state_.load(std::memory_order_acquire) == kAttached && begin_use()) {
        ungated_.store(true, std::memory_order_release);
        stopping_.store(true, std::memory_order_seq_cst);
        client_->let_go();
        client_->wake();
        end_use();
    }
    stopping_.store(true, std::memory_order_seq_cst);
    if (!watcher_started_) {
        return true;
    }
    timespec until{};
    ::clock_gettime(CLOCK_REALTIME, &until);  // what pthread_timedjoin_np counts in
    until.tv_sec += static_cast<std::time_t>(bound_ns / 1'000'000'000);
    until.tv_nsec += static_cast<long>(bound_ns % 1'000'000'000);
    if (until.tv_nsec >= 1'000'000'000) {
        ++until.tv_sec;
        until.tv_nsec -= 1'000'000'000;
    }
    watcher_started_ = pthread_timedjoin_np(watcher_, nullptr, &until) != 0;
    return !watcher_started_;
}

void DeviceGate::abandon_after_fork() noexcept {
    if (client_ != nullptr) {
        client_->abandon_after_fork();
    }
}

}  // namespace crossover
