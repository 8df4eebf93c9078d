// SPDX-License-Identifier: Apache-2.0
// The gate in the GPU's queues (CROSSOVER_GATE=stream): a launching thread that would wait for the
// turn makes its stream wait instead and goes on, and the turnkeeper thread takes the turn when the
// stream has come to that place, then lets it through. The turnkeeper makes no call to the driver:
// a launching thread may be held inside it by a full queue, with locks, until the turnkeeper acts.
//
// An epoch is pending only while the job is not known to have the turn. So nothing of it runs
// without one, and giving the turn back is as with waiting threads: by then all launches are out
// and done. Both that and letting an epoch through are under turn_mutex_, which nobody holds across
// a call to the driver.

#include <algorithm>
#include <mutex>

#include "arbiter/futex.hpp"
#include "shim/gate/device_gate.hpp"
#include "shim/gate/quiet_thread.hpp"
#include "shim/log.hpp"

namespace crossover {

namespace {

constexpr std::uint64_t kKeeperSleepNs = 60'000'000'000;
constexpr std::uint64_t kJoinBoundNs = 50'000'000;
constexpr std::uint32_t kNoWord = ~std::uint32_t{0};  // the stream cannot be made to wait

}  // namespace

// ------------------------------------------------------------------------------------- the watcher

// At the first sight of another job: a process that stays alone has neither words nor thread.
void DeviceGate::open_stream_gate() noexcept {
    if (streams_tried_ || observe_ || static_cast<GateKind>(options_.gate) == GateKind::kCpu) {
        return;
    }
    streams_tried_ = true;
    const bool asked = static_cast<GateKind>(options_.gate) == GateKind::kStream;
    const DriverWords::Opened opened = words_.open(ordinal_);
    if (opened == DriverWords::Opened::kEnded) {
        return;
    }
    if (opened == DriverWords::Opened::kNone) {
        log_line(asked ? LogLevel::kFault : LogLevel::kInfo,
                 "device %u has no stream memory operations; launching threads wait for the turn",
                 ordinal_);
        return;
    }
    if (!create_quiet_thread(keeper_, &DeviceGate::keeper_main, this)) {
        log_line(LogLevel::kFault,
                 "no thread for the stream gate of device %u; launching threads wait for the turn",
                 ordinal_);
        return;
    }
    keeper_started_ = true;
    streams_wait_.store(true, std::memory_order_release);
}

// After stopping_ was set.
void DeviceGate::end_stream_gate() noexcept {
    hold_communication(false);
    if (!keeper_started_) {
        return;
    }
    wake_keeper();
    const std::uint64_t end_ns = monotonic_ns() + kJoinBoundNs;
    const timespec until{static_cast<std::time_t>(end_ns / 1'000'000'000),
                         static_cast<long>(end_ns % 1'000'000'000)};
    pthread_clockjoin_np(keeper_, nullptr, CLOCK_MONOTONIC, &until);
}

void DeviceGate::follow_stream_gate(std::uint64_t now) noexcept {
    const std::uint64_t let_through_at = let_through_at_.exchange(0, std::memory_order_acq_rel);
    if (let_through_at != 0) {
        // What was launched ahead begins now.
        turn_began_ = let_through_at;
        silent_since_ = changed_at_ = now;
        idle_reported_ = false;
    }
}

// W3 of the handshake (traffic.hpp). `epochs` is how they stood before its W1: behind an epoch that
// was let through since there may be launches that were not seen.
bool DeviceGate::release_unless_changed(std::uint64_t epochs) noexcept {
    const std::lock_guard<std::mutex> guard(turn_mutex_);
    if (epochs_.snapshot() != epochs) {
        return false;
    }
    client_->release();
    return true;
}

// ------------------------------------------------------------------------------- launching threads

bool DeviceGate::may_wait_on_gpu(const Stream& stream) const noexcept {
    return streams_wait_.load(std::memory_order_acquire) &&
           stream.word.load(std::memory_order_acquire) != kNoWord;
}

// What is launched on the stream now waits for the turn by itself.
bool DeviceGate::waits_on_gpu(const Stream& stream) const noexcept {
    const Epochs::Epoch pending = epochs_.pending();
    return pending != 0 && stream.epoch.load(std::memory_order_acquire) == pending;
}

// At a crossing that is met on the CPU: the GPU may as well wait for this collective, too.
bool DeviceGate::crosses_on_gpu(const Stream& stream, std::uint64_t crossing) const noexcept {
    if (!may_wait_on_gpu(stream)) {
        return false;
    }
    return epochs_.pending() != 0 ? crossing <= epoch_crossing_.load(std::memory_order_acquire)
                                  : !client_->holding();
}

// Under the lock of records, so that no stream begins to capture meanwhile.
bool DeviceGate::put_wait(Stream& stream, Epochs::Epoch epoch) noexcept {
    inference_.hold_records();
    std::uint32_t word = stream.word.load(std::memory_order_relaxed);
    if (word == 0) {
        const std::uint32_t used = words_used_.load(std::memory_order_relaxed);
        word = used < DriverWords::kStreams ? used + 1 : kNoWord;
        words_used_.store(word == kNoWord ? used : word, std::memory_order_release);
    }
    if (word != kNoWord &&
        (events_.capturing(stream.handle) || !words_.put(stream.handle, word, epoch))) {
        word = kNoWord;
    }
    stream.word.store(word, std::memory_order_release);
    if (word != kNoWord) {
        stream.epoch.store(epoch, std::memory_order_release);
    }
    inference_.allow_records();
    return word != kNoWord;
}

// The stream waits for the turn, and before that for the collective `crossing` (0: none) as it
// does anyway. The caller is stepped out, and looks again. False: it must wait itself.
bool DeviceGate::wait_on_gpu(Stream& stream, std::uint64_t crossing) noexcept {
    if (!may_wait_on_gpu(stream)) {
        return false;
    }
    Epochs::Epoch epoch = 0;
    {
        const std::lock_guard<std::mutex> guard(turn_mutex_);
        const bool fresh = epochs_.pending() == 0;
        if (!gated() || (fresh && client_->holding())) {
            return true;
        }
        if (fresh) {  // before anybody can see it
            epoch_since_.store(monotonic_ns(), std::memory_order_release);
            epoch_crossing_.store(crossing, std::memory_order_release);
        }
        epoch = epochs_.make();
        if (epoch == 0) {
            return true;
        }
    }
    if (!put_wait(stream, epoch)) {
        epoch_forced_.store(epoch, std::memory_order_release);  // perhaps nothing waits for it
        wake_keeper();
        return false;
    }
    if (crossing != 0) {
        stream.passed.store(crossing, std::memory_order_relaxed);
    }
    wake_keeper();
    return true;
}

void DeviceGate::wake_keeper() noexcept {
    keeper_word_.fetch_add(1, std::memory_order_acq_rel);
    futex_wake_all(keeper_word_);
}

// Whatever opens or closes the gate for all does so for the streams, too.
void DeviceGate::follow_reasons() noexcept {
    const std::lock_guard<std::mutex> guard(turn_mutex_);
    if (!streams_wait_.load(std::memory_order_acquire)) {
        return;
    }
    if (ungated_.load(std::memory_order_acquire) != 0) {
        epochs_.open_all();
        words_.hold(false);
    } else {
        epochs_.close();
    }
    words_.let_through(epochs_.word());
}

// ---------------------------------------------------------------------------------- the turnkeeper

void* DeviceGate::keeper_main(void* self) noexcept {
    static_cast<DeviceGate*>(self)->keep();
    return nullptr;
}

void DeviceGate::keep() noexcept {
    be_prompt();
    while (begin_use()) {
        const std::uint32_t seen = keeper_word_.load(std::memory_order_acquire);
        const Epochs::Epoch epoch = epochs_.pending();
        if (epoch != 0 && await_stream(epoch)) {
            await_turn(epoch);
        }
        end_use();
        if (epoch == 0) {
            futex_wait(keeper_word_, seen, monotonic_ns() + kKeeperSleepNs);
        }
    }
}

bool DeviceGate::awaited(Epochs::Epoch epoch) const noexcept {
    return epochs_.pending() == epoch && !stopping_.load(std::memory_order_acquire);
}

// Until a stream that waits for the epoch has come to it. False: nothing waits for it any more.
bool DeviceGate::await_stream(Epochs::Epoch epoch) noexcept {
    const std::uint64_t since = epoch_since_.load(std::memory_order_relaxed);
    while (awaited(epoch)) {
        const std::uint32_t seen = keeper_word_.load(std::memory_order_acquire);
        if (epoch_forced_.load(std::memory_order_acquire) == epoch) {
            return true;
        }
        for (std::uint32_t i = words_used_.load(std::memory_order_acquire); i != 0; --i) {
            if (words_.at(i) == epoch) {
                return true;
            }
        }
        if (!gated()) {  // alone again
            let_through(epoch);
            return false;
        }
        const std::uint64_t now = monotonic_ns();
        if (now >= since + wait_bound_ns()) {
            // As with a waiting thread: a collective this late waits for a peer, and what stands
            // behind it may as well run when it ends.
            client_->note_stall("the GPU's queue", since);
            log_line(LogLevel::kFault,
                     "a collective did not end on device %u within %llu ms: its successor on the "
                     "GPU goes on ungated",
                     ordinal_, static_cast<unsigned long long>((now - since) / 1'000'000));
            let_through(epoch);
            return false;
        }
        futex_wait(keeper_word_, seen,
                   now + poll_pause_ns({.now = now, .changed_at = since, .began = since}));
    }
    return false;
}

void DeviceGate::await_turn(Epochs::Epoch epoch) noexcept {
    const std::uint64_t since = monotonic_ns();
    const std::uint64_t deadline = since + wait_bound_ns();
    while (awaited(epoch)) {
        client_->set_phase(ClientPhase::kWaiting, since);
        switch (client_->acquire(deadline)) {
            case Wait::kGranted:
                measure_grant(since);
                if (let_through_with_turn(epoch)) {
                    fresh_turn_.store(true, std::memory_order_release);
                    begin_turn();
                    client_->wake();
                }
                break;
            case Wait::kAborted:
                // Who waits when a let-go comes passes, however soon the gate is closed again.
                let_through(epoch);
                return;
            case Wait::kTimedOut:
                stalled(since, "the GPU's queue");
                client_->wake();
                return;
            case Wait::kFault:
                open_for(kFault);  // the watcher says why, and closes it again
                client_->wake();
                return;
        }
    }
}

// False: the turn went again, or nothing waits any more.
bool DeviceGate::let_through_with_turn(Epochs::Epoch epoch) noexcept {
    const std::lock_guard<std::mutex> guard(turn_mutex_);
    if (!client_->holding() || !epochs_.pass(epoch)) {
        return false;
    }
    words_.let_through(epochs_.word());
    let_through_at_.store(monotonic_ns(), std::memory_order_release);
    return true;
}

void DeviceGate::let_through(Epochs::Epoch epoch) noexcept {
    const std::lock_guard<std::mutex> guard(turn_mutex_);
    if (epochs_.pass(epoch)) {
        words_.let_through(epochs_.word());
    }
}

}  // namespace crossover
