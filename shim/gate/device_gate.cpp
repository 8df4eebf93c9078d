// SPDX-License-Identifier: Apache-2.0
// The launching threads' side of a gate, and its start and end. The watcher's side stands in
// watcher.cpp.
#include "shim/gate/device_gate.hpp"

#include <sched.h>

#include <algorithm>
#include <cstring>
#include <ctime>
#include <new>

#include "arbiter/futex.hpp"
#include "arbiter/policy.hpp"
#include "shim/call_site.hpp"
#include "shim/gate/quiet_thread.hpp"
#include "shim/log.hpp"

namespace crossover {

namespace {

constexpr std::uint64_t kAttachBoundNs = 2'000'000'000;
constexpr std::uint64_t kCrossingStepNs = 10'000'000;
constexpr std::uint64_t kTurnSlackNs = 5'000'000'000;
constexpr std::uint64_t kMoveBoundNs = 200'000;  // a launch takes some microseconds
constexpr std::uint64_t kStayOutBoundNs = 1'000'000;

constexpr std::uint32_t kPending = 0;
constexpr std::uint32_t kAttached = 1;
constexpr std::uint32_t kFailed = 2;

}  // namespace

DeviceGate::DeviceGate(const DeviceUuid& device, std::uint32_t ordinal, void* context,
                       const JobIdentity& job, const Options& options)
    : inference_(events_),
      device_(device),
      ordinal_(ordinal),
      context_(context),
      job_(job),
      options_(options),
      observe_(static_cast<Mode>(options.mode) == Mode::kObserve),
      idle_grace_(options.idle_grace_us * 1000) {}

DeviceGate::~DeviceGate() = default;

std::unique_ptr<DeviceGate> DeviceGate::start(const DeviceUuid& device, std::uint32_t ordinal,
                                              void* context, const JobIdentity& job,
                                              const Options& options, Status& status) noexcept {
    std::unique_ptr<DeviceGate> gate;
    try {
        gate.reset(new DeviceGate(device, ordinal, context, job, options));
    } catch (const std::bad_alloc&) {
        status = Status::kSystem;
        return nullptr;
    }
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
    if (stream.moving.load(std::memory_order_seq_cst)) [[unlikely]] {
        stay_out(stream);
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
    const bool meets = inference_.meets_collective(stream);
    const std::uint64_t behind = inference_.unfinished_behind(stream);
    if (!gated() || observe_) {
        return true;
    }
    if (meets) {
        pieces_.stop();
    }
    crossing = 0;
    if (behind != 0 && inference_.crossing_pays(stream, behind, least_window_ns())) {
        crossing = behind;
        return false;
    }
    // What waits on the GPU will run under a turn.
    if ((traffic_.closing() || !client_->holding()) && !waits_on_gpu(stream)) {
        return false;
    }
    if (pieces_.following()) [[unlikely]] {
        pieces_.next(stream, monotonic_ns(), true, small_piece_ns());
    }
    return true;
}

// The launch belongs to a piece of compute that is too small for a turn. The caller is counted as
// launching, and stands behind no collective that pays. False: it needs the turn, or unless `later`
// is 0, that collective's end will tell.
bool DeviceGate::passes(Stream& stream, std::uint64_t& later) noexcept {
    later = 0;
    for (;;) {
        const std::uint64_t now = monotonic_ns();
        switch (pieces_.next(stream, now, false, small_piece_ns())) {
            case SmallPieces::Answer::kBegins:
                client_->record(EventKind::kPassed, pieces_.expected_ns(), now);
                return true;
            case SmallPieces::Answer::kPasses:
                return true;
            case SmallPieces::Answer::kSoon:
                ::sched_yield();
                break;
            case SmallPieces::Answer::kLater:
                later = inference_.newest_unfinished(stream);
                if (later != 0) {
                    return false;
                }
                break;
            case SmallPieces::Answer::kUnder:
            case SmallPieces::Answer::kTurn:
                return false;
        }
    }
}

// The leases of the other jobs, at their longest, are what a wait can come to in good order; one
// more for a turn that a weight has put off. With two jobs that is 25 s, with 32 it is 325 s:
// beyond that somebody is to be told, and before the frameworks' own watchdogs (480 s) fire.
std::uint64_t DeviceGate::wait_bound_ns() const noexcept {
    const std::uint64_t jobs = client_->turn().active_jobs;
    return kMaxLeaseNs * std::clamp<std::uint64_t>(jobs, 1, kMaxJobs) + kTurnSlackNs;
}

void DeviceGate::wait_to_enter(Stream& stream, std::uint64_t crossing) noexcept {
    const std::uint32_t let_gos = let_gos_.load(std::memory_order_acquire);
    traffic_.step_out();
    std::uint64_t never = 0;
    if (came_back_at_.load(std::memory_order_relaxed) == never) {
        came_back_at_.compare_exchange_strong(never, monotonic_ns(), std::memory_order_acq_rel);
    }
    const std::uint64_t deadline = monotonic_ns() + wait_bound_ns();
    for (;;) {
        if (crossing != 0) {
            wait_for_collective(stream, crossing, deadline, let_gos);
        }
        if (let_gos_.load(std::memory_order_acquire) != let_gos) {
            traffic_.step_in();
            return;
        }
        // The collective may still run: then the turn is away, and the GPU waits for both.
        const bool crosses = crossing != 0 && crosses_on_gpu(stream, crossing);
        if (crosses || !client_->holding()) {
            // A small piece passes, behind the collective as well.
            traffic_.step_in();
            std::uint64_t later = 0;
            if (!(crosses && epochs_.pending() != 0) && passes(stream, later)) {
                if (crosses) {
                    stream.passed.store(crossing, std::memory_order_relaxed);
                }
                return;
            }
            traffic_.step_out();
            if (crosses) {
                if (!wait_on_gpu(stream, crossing)) {
                    continue;
                }
            } else if (later != 0 && !may_wait_on_gpu(stream)) {
                wait_for_collective(stream, later, deadline, let_gos);
            } else if (!wait_on_gpu(stream, 0)) {
                wait_for_turn(deadline);
            }
        } else if (traffic_.closing()) {
            ::sched_yield();
        }
        traffic_.step_in();
        if (may_launch(stream, crossing) || let_gos_.load(std::memory_order_acquire) != let_gos) {
            return;
        }
        traffic_.step_out();
    }
}

void DeviceGate::leave(Stream& stream, bool launched) noexcept {
    bool begins = false;
    if (launched) {
        inference_.compute_submitted(stream);
        begins = fresh_turn_.load(std::memory_order_relaxed) && begin_turn();
    }
    if (pieces_.following() && pieces_.made(launched)) [[unlikely]] {
        pieces_.marked(monotonic_ns());
    }
    if (begins) [[unlikely]] {
        // Perhaps nothing else wakes the watcher, so it has to find this launch counted.
        traffic_.count_launch();
        wake_watcher();
        traffic_.end_use();
        return;
    }
    traffic_.end_launch(launched);
}

// Whether this was the first launch of a turn. What passes without one begins none.
bool DeviceGate::begin_turn() noexcept {
    if ((gated() && !observe_ && !client_->holding()) ||
        !fresh_turn_.exchange(false, std::memory_order_acq_rel)) {
        return false;
    }
    const std::uint64_t now = monotonic_ns();
    client_->set_phase(ClientPhase::kComputing, now);
    client_->record(EventKind::kCompute, 0, now);
    return true;
}

void DeviceGate::wait_for_collective(Stream& stream, std::uint64_t number, std::uint64_t deadline,
                                     std::uint32_t let_gos) noexcept {
    const std::uint64_t since = monotonic_ns();
    client_->count_crossing();
    client_->record(EventKind::kCrossing, number, since);
    if (!inference_.still_runs(number)) {
        // A program that waits for its collectives itself comes just after their end: sooner than
        // the watcher looks.
        stream.passed.store(number, std::memory_order_relaxed);
        went_on_at_.store(since, std::memory_order_release);
        wake_watcher();
        return;
    }
    crossing_waiters_.fetch_add(1, std::memory_order_seq_cst);
    wake_watcher();
    while (gated() && !inference_.finished(number) && !crosses_on_gpu(stream, number) &&
           let_gos_.load(std::memory_order_acquire) == let_gos) {
        const std::uint32_t seen = collectives_ended_.load(std::memory_order_acquire);
        if (inference_.finished(number) || crosses_on_gpu(stream, number) ||
            let_gos_.load(std::memory_order_acquire) != let_gos) {
            break;
        }
        const std::uint64_t now = monotonic_ns();
        if (now >= deadline) {
            // A collective this late waits for a peer; the launch may as well queue behind it on
            // the GPU.
            char place[kCallSiteBytes];
            describe_call_site(place, sizeof place);
            client_->note_stall(place, since);
            log_line(LogLevel::kFault,
                     "a collective did not end on device %u within %llu ms: its successor in %s is "
                     "launched ungated",
                     ordinal_, static_cast<unsigned long long>((now - since) / 1'000'000), place);
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
            measure_grant(since);
            return;
        case Wait::kAborted:
            return;
        case Wait::kTimedOut:
            stalled(since, nullptr);
            break;
        case Wait::kFault:
            open_for(kFault);  // the watcher says why, and closes it again
            break;
    }
    client_->wake();
}

// What the way from the grant to here took, where the grant came after the wait began.
void DeviceGate::measure_grant(std::uint64_t waited_since) noexcept {
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t granted_at = client_->turn().since_ns;
    if (client_->holding() && granted_at > waited_since && granted_at <= now) {
        hand_over_.went_on(now - granted_at);
    }
}

bool DeviceGate::open_for(Reason reason) noexcept {
    const bool first = (ungated_.fetch_or(reason, std::memory_order_acq_rel) & reason) == 0;
    follow_reasons();
    return first;
}

void DeviceGate::close_for(Reason reason) noexcept {
    ungated_.fetch_and(~static_cast<std::uint32_t>(reason), std::memory_order_acq_rel);
    follow_reasons();
}

// A wait since then passed its bound, at a place of the program; nullptr: where this thread is.
void DeviceGate::stalled(std::uint64_t since_ns, const char* place) noexcept {
    stalled_at_.store(monotonic_ns(), std::memory_order_release);
    if (open_for(kStall)) {
        report_stall(since_ns, place);
    }
}

// Says who has the turn, since when, and where the wait is.
void DeviceGate::report_stall(std::uint64_t since_ns, const char* place) noexcept {
    const TurnView turn = client_->turn();
    const std::uint64_t now = monotonic_ns();
    const std::uint64_t held_ns = turn.held ? now - std::min(now, turn.since_ns) : 0;
    char here[kCallSiteBytes];
    if (place == nullptr) {
        describe_call_site(here, sizeof here);
        place = here;
    }
    client_->note_stall(place, since_ns);
    log_line(LogLevel::kFault,
             "no turn on device %u within %llu ms: %s has it since %llu ms; waiting in %s; this "
             "process goes on ungated for a while",
             ordinal_, static_cast<unsigned long long>((now - since_ns) / 1'000'000),
             turn.held ? turn.holder : "nobody",
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
    if (!computes) {
        put_hold(stream);
    }
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

// Launches of other threads on the stream are kept out until the driver has the wait: it is to be
// known on which side of it each of them is.
StreamMove DeviceGate::begin_wait(Stream& stream, EventKey event) noexcept {
    StreamMove move;
    const bool moves = inference_.puts_behind(stream, event);
    if (moves) {
        stream.moving.store(true, std::memory_order_seq_cst);
        move.kept_out = traffic_.wait_out(monotonic_ns() + kMoveBoundNs);
    }
    move.collective = inference_.before_wait(stream, event);
    if (moves && move.collective == 0) {
        stream.moving.store(false, std::memory_order_seq_cst);
    }
    return move;
}

void DeviceGate::end_wait(Stream& stream, const StreamMove& move) noexcept {
    if (move.collective != 0) {
        inference_.after_wait(stream, move);
        stream.moving.store(false, std::memory_order_seq_cst);
    }
}

void DeviceGate::stay_out(Stream& stream) noexcept {
    const std::uint64_t deadline = monotonic_ns() + kStayOutBoundNs;
    while (stream.moving.load(std::memory_order_seq_cst)) {
        traffic_.step_out();
        if (monotonic_ns() >= deadline) {
            // The other thread waits in the driver, or is gone.
            stream.moving.store(false, std::memory_order_seq_cst);
        } else {
            ::sched_yield();
        }
        traffic_.step_in();
    }
}

// ------------------------------------------------------------------------------------------ start
// and end

void DeviceGate::let_go() noexcept {
    open_for(kLetGo);
    let_waiting_pass();
    if (begin_use()) {
        client_->let_go();
        end_use();
    }
}

// However soon the gate is closed again.
void DeviceGate::let_waiting_pass() noexcept {
    let_gos_.fetch_add(1, std::memory_order_acq_rel);
    collectives_ended_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake_all(collectives_ended_);
}

void DeviceGate::allow() noexcept {
    if (begin_use()) {
        client_->allow();
        close_for(kLetGo);
        end_use();
    }
}

void DeviceGate::rekey(const JobIdentity& job) noexcept {
    if (!begin_use()) {
        return;
    }
    const Status status = client_->rekey(job);
    if (status != Status::kOk && !client_->usable()) {
        open_for(kFault);  // it joins anew under that name
        client_->wake();
    } else if (status != Status::kOk) {
        log_line(LogLevel::kFault, "job %s cannot join device %u: %s; this process goes on ungated",
                 job.name, ordinal_, status_text(status));
        open_for(kForGood);
        client_->let_go();
    }
    end_use();
}

bool DeviceGate::stop(std::uint64_t bound_ns) noexcept {
    if (attach_state_.load(std::memory_order_acquire) == kAttached && begin_use()) {
        open_for(kEnded);
        stopping_.store(true, std::memory_order_seq_cst);
        client_->let_go();
        client_->wake();
        let_waiting_pass();
        end_use();
    }
    stopping_.store(true, std::memory_order_seq_cst);
    if (!watcher_started_) {
        return true;
    }
    const std::uint64_t end_ns = monotonic_ns() + bound_ns;
    const timespec until{static_cast<std::time_t>(end_ns / 1'000'000'000),
                         static_cast<long>(end_ns % 1'000'000'000)};
    watcher_started_ = pthread_clockjoin_np(watcher_, nullptr, CLOCK_MONOTONIC, &until) != 0;
    return !watcher_started_;
}

void DeviceGate::abandon_after_fork() noexcept {
    if (client_ != nullptr) {
        client_->abandon_after_fork();
    }
}

}  // namespace crossover
