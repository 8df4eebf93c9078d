// SPDX-License-Identifier: Apache-2.0
// Order on the links (with CROSSOVER_GATE=stream): while this job computes and another one does
// nothing but communicate, what this one communicates beside its compute waits in the GPU's queue.
// The other needs the link now; this one has time until its compute has drained. Only collectives
// on streams of their own are held, before they begin, and never beyond
//  - the end of the other's communication,
//  - this job's own window: then its collectives are exposed, too,
//  - the loss of the turn, or whatever else opens the gate,
//  - the time that this job's compute took the last time.
// The last one ends every circle that false dependencies between streams could close. Ranks decide
// each for itself: a collective then begins when the last of them lets it.
#include "shim/gate/device_gate.hpp"

namespace crossover {

namespace {

// A phase that is shorter than the last one by this part, with communication held, was perhaps cut
// by that.
constexpr std::uint64_t kMuchShorter = 8;

}  // namespace

// Before a collective: its stream waits while hold_communication() says so. Under the lock of
// records, so that the stream does not begin to capture meanwhile.
void DeviceGate::put_hold(Stream& stream) noexcept {
    if (!stream.communication.load(std::memory_order_acquire) || !gated() ||
        !may_wait_on_gpu(stream)) {
        return;
    }
    inference_.hold_records();
    if (!events_.capturing(stream.handle)) {
        static_cast<void>(words_.put_hold(stream.handle));  // refused: it is not held
    }
    inference_.allow_records();
}

// The watcher's.
void DeviceGate::hold_communication(bool held) noexcept {
    if (communication_held_ != held) {
        communication_held_ = held;
        words_.hold(held);
    }
}

// The job's compute has drained after so long.
void DeviceGate::note_needed(std::uint64_t computed_ns) noexcept {
    if (communication_held_ && computed_ns < turn_length_.ns() - turn_length_.ns() / kMuchShorter) {
        yield_trial_.hurts();
    }
}

void DeviceGate::follow_yielding(std::uint64_t now) noexcept {
    if (streams_wait_.load(std::memory_order_acquire)) {
        const std::uint32_t jobs = client_->turn().active_jobs;
        if (jobs != jobs_seen_) {
            jobs_seen_ = jobs;
            yield_trial_.restart();
        }
        const bool computes = window_number_ == 0 && turn_began_ != 0 &&
                              now - std::min(now, turn_began_) < turn_length_.ns();
        hold_communication(computes && yield_trial_.yields() && gated() && client_->holding() &&
                           client_->others_communicate());
    }
}

}  // namespace crossover
