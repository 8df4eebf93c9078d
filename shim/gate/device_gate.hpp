// SPDX-License-Identifier: Apache-2.0
// The gate of one device in this process: joins window inference (what the job does) with the
// client (whose turn it is). Launching threads pass enter()/leave(); one watcher thread gives the
// turn back.
//
// Invariants:
//  1. The watcher gives the turn back only while no thread is between enter() and leave(), and
//     every thread that enters afterwards sees that the turn is gone. Why that holds without a lock
//     stands in traffic.hpp.
//  2. A thread that waits in enter() holds no lock of ours, and giving the turn back does not
//  depend on it.
//  3. Every wait ends: by the grant, by let_go(), or by a bound after which the launch goes on
//  ungated.
//  4. Without the turn only small pieces of compute are launched (inference/small_pieces.hpp), and
//  each leaves an event.
//  5. A gate that stands open for a fault or a wait past its bound is closed again by the watcher:
//  once the client has joined the device anew, or after a pause.
#pragma once

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>

#include <pthread.h>

#include "arbiter/client.hpp"
#include "shim/driver_events.hpp"
#include "shim/driver_words.hpp"
#include "shim/gate/epochs.hpp"
#include "shim/gate/traffic.hpp"
#include "shim/inference/hand_over.hpp"
#include "shim/inference/pace.hpp"
#include "shim/inference/small_pieces.hpp"
#include "shim/inference/windows.hpp"
#include "shim/inference/yield_trial.hpp"

namespace crossover {

class DeviceGate {
  public:
    // Starts the watcher thread, which attaches to the device's segment and holds the attachment
    // for its life. `context` is a CUcontext of the device. Waits for the attachment (bounded).
    // nullptr: `status` says why.
    static std::unique_ptr<DeviceGate> start(const DeviceUuid& device, std::uint32_t ordinal,
                                             void* context, const JobIdentity& job,
                                             const Options& options, Status& status) noexcept;
    ~DeviceGate();  // only after stop() returned true
    DeviceGate(const DeviceGate&) = delete;
    DeviceGate& operator=(const DeviceGate&) = delete;

    // Before a compute launch: waits for the turn, and at a crossing for the collective. True: the
    // caller launches and then calls leave(). False: the gate is stopped; launch and forget.
    bool enter(Stream& stream) noexcept;
    void leave(Stream& stream, bool launched) noexcept;

    // Around the launch of a communication kernel, or of a graph that contains some; never waits
    // for the turn, which is not held across it either. `computes`: of a graph with others, too.
    std::uint64_t begin_collective(Stream& stream, const CollectiveCall& call,
                                   bool computes) noexcept;
    void end_collective(Stream& stream, std::uint64_t number, bool launched) noexcept;
    // Around the driver's putting the stream behind an event.
    StreamMove begin_wait(Stream& stream, EventKey event) noexcept;
    void end_wait(Stream& stream, const StreamMove& move) noexcept;

    // Every waiting thread passes, and none waits until allow().
    void let_go() noexcept;
    void allow() noexcept;
    void rekey(const JobIdentity& job) noexcept;
    // The device's launches need no attention: this job is alone on it.
    bool quiet() const noexcept { return quiet_.load(std::memory_order_acquire); }

    // Ends the watcher, which detaches. False when it did not end within `bound_ns`: then it is
    // left alone.
    bool stop(std::uint64_t bound_ns) noexcept;
    // In a forked child: no effect on the parent or the segment; the object is then leaked.
    void abandon_after_fork() noexcept;

    WindowInference& inference() noexcept { return inference_; }
    void* context() const noexcept { return context_; }
    std::uint32_t ordinal() const noexcept { return ordinal_; }

  private:
    DeviceGate(const DeviceUuid& device, std::uint32_t ordinal, void* context,
               const JobIdentity& job, const Options& options);

    // The watcher (watcher.cpp).
    static void* watcher_main(void* self) noexcept;
    void watch() noexcept;
    std::uint64_t watch_once(std::uint64_t now) noexcept;
    std::uint64_t poll_pause(std::uint64_t now) noexcept;
    void update_quiet() noexcept;
    void follow_collectives(std::uint64_t now) noexcept;
    void follow_window(std::uint64_t now, std::uint64_t in_flight) noexcept;
    void follow_silence(std::uint64_t now) noexcept;
    void follow_graph() noexcept;
    bool give_back(std::uint64_t launches_seen) noexcept;
    void end_phase(std::uint64_t drained_at) noexcept;
    void tell_least_window(std::uint64_t now) noexcept;
    void open_stream_gate() noexcept;
    void end_stream_gate() noexcept;
    void follow_stream_gate(std::uint64_t now) noexcept;
    bool release_unless_changed(std::uint64_t epochs) noexcept;
    void went_on_after_silence(std::uint64_t now) noexcept;
    std::uint64_t least_window_ns() const noexcept {
        return hand_over_.least_window_ns(options_.min_window_us * 1000);
    }
    // What costs the job that has the turn no more than handing it over would.
    std::uint64_t small_piece_ns() const noexcept {
        return std::min(least_window_ns(), SmallPieces::kLongestNs);
    }

    // Launching threads.
    void stay_out(Stream& stream) noexcept;
    bool may_launch(Stream& stream, std::uint64_t& crossing) noexcept;
    bool passes(Stream& stream, std::uint64_t& later) noexcept;
    void wait_to_enter(Stream& stream, std::uint64_t crossing) noexcept;
    bool begin_turn() noexcept;
    bool begin_use() noexcept;
    void end_use() noexcept { traffic_.end_use(); }
    void wait_for_collective(Stream& stream, std::uint64_t number, std::uint64_t deadline,
                             std::uint32_t let_gos) noexcept;
    void wait_for_turn(std::uint64_t deadline) noexcept;
    std::uint64_t wait_bound_ns() const noexcept;
    void measure_grant(std::uint64_t waited_since) noexcept;
    void stalled(std::uint64_t since_ns, const char* place) noexcept;
    void report_stall(std::uint64_t since_ns, const char* place) noexcept;
    void wake_watcher() noexcept;
    void let_waiting_pass() noexcept;
    bool gated() const noexcept {
        return ungated_.load(std::memory_order_acquire) == 0 && !quiet();
    }

    // Hidden communication that gives way (yielding.cpp).
    void put_hold(Stream& stream) noexcept;
    void follow_yielding(std::uint64_t now) noexcept;
    void hold_communication(bool held) noexcept;
    void note_needed(std::uint64_t computed_ns) noexcept;

    // The gate in the GPU's queues (turnkeeper.cpp).
    bool may_wait_on_gpu(const Stream& stream) const noexcept;
    bool waits_on_gpu(const Stream& stream) const noexcept;
    bool crosses_on_gpu(const Stream& stream, std::uint64_t crossing) const noexcept;
    bool wait_on_gpu(Stream& stream, std::uint64_t crossing) noexcept;
    bool put_wait(Stream& stream, Epochs::Epoch epoch) noexcept;
    void wake_keeper() noexcept;
    void follow_reasons() noexcept;
    static void* keeper_main(void* self) noexcept;
    void keep() noexcept;
    bool awaited(Epochs::Epoch epoch) const noexcept;
    bool await_stream(Epochs::Epoch epoch) noexcept;
    void await_turn(Epochs::Epoch epoch) noexcept;
    bool let_through_with_turn(Epochs::Epoch epoch) noexcept;
    void let_through(Epochs::Epoch epoch) noexcept;

    // Why the gate stands open.
    enum Reason : std::uint32_t {
        kLetGo = 1,    // until allow()
        kForGood = 2,  // a device error, or a job that has no place here
        kFault = 4,    // until the client has joined the device anew
        kStall = 8,    // for a pause, longer each time
        kEnded = 16,   // for good
    };
    // True: it was not open for this reason before.
    bool open_for(Reason reason) noexcept;
    void close_for(Reason reason) noexcept;
    void follow_faults(std::uint64_t now) noexcept;

    DriverEvents events_;
    WindowInference inference_;
    SmallPieces pieces_{inference_};
    const DeviceUuid device_;
    const std::uint32_t ordinal_;
    void* const context_;
    JobIdentity job_;
    const Options options_;
    const bool observe_;

    std::unique_ptr<Client> client_;
    pthread_t watcher_{};
    bool watcher_started_ = false;
    std::atomic<std::uint32_t> attach_state_{0};  // futex: 0 pending, 1 attached, 2 failed
    Status attach_status_ = Status::kOk;

    // Read by every launch and seldom written: a line of their own.
    alignas(64) std::atomic<bool> stopping_{false};
    std::atomic<bool> quiet_{false};
    std::atomic<std::uint32_t> ungated_{0};  // Reasons
    std::atomic<bool> fresh_turn_{true};     // no compute since the last grant, window or idle time

    Traffic traffic_;  // its users may touch client_, which outlives them

    alignas(64) std::atomic<std::uint32_t> crossing_waiters_{0};
    std::atomic<std::uint32_t> collectives_ended_{0};  // futex of threads at a crossing
    std::atomic<std::uint32_t> let_gos_{0};            // who waits when one comes passes
    std::atomic<bool> watcher_sleeps_{false};

    // The gate in the GPU's queues.
    std::atomic<bool> streams_wait_{false};  // it is there
    std::mutex turn_mutex_;                  // changes of epochs_, and of the turn against them
    Epochs epochs_;
    DriverWords words_;
    std::atomic<std::uint32_t> words_used_{0};
    std::atomic<std::uint64_t> epoch_since_{0};     // of the pending one
    std::atomic<std::uint64_t> epoch_crossing_{0};  // collective that it waits for, 0: none
    std::atomic<Epochs::Epoch> epoch_forced_{0};    // not to be waited for on the GPU
    std::atomic<std::uint32_t> keeper_word_{0};     // futex of the turnkeeper
    std::atomic<std::uint64_t> let_through_at_{0};  // 0: seen by the watcher
    pthread_t keeper_{};                            // this and what follows: of the watcher
    bool keeper_started_ = false;
    bool streams_tried_ = false;
    bool communication_held_ = false;
    YieldTrial yield_trial_;
    std::uint32_t jobs_seen_ = 0;  // on the device

    HandOver hand_over_;
    // When a thread first waited since a silence let the turn go; 0: not yet.
    std::atomic<std::uint64_t> came_back_at_{0};
    // When a launching thread last found a collective ended before the watcher did.
    std::atomic<std::uint64_t> went_on_at_{0};
    std::atomic<std::uint64_t> stalled_at_{0};  // of the last stall; before its reason is set

    // Only the watcher.
    std::uint64_t stall_pause_ns_ = 0;
    std::uint64_t stall_over_at_ = 0;  // 0: not open for a stall
    std::uint64_t stall_ended_at_ = 0;
    std::uint32_t joined_ = 1;  // segments of the client that were told of
    bool fault_told_ = false;
    std::uint64_t least_told_ns_ = 0;
    std::uint64_t launches_seen_ = 0;
    std::uint64_t silent_since_ = 0;  // last seen launch
    std::uint64_t drained_since_ =
        0;  // since when nothing runs and nothing was launched, 0 = not so
    std::uint64_t changed_at_ = 0;
    std::uint64_t in_flight_seen_ = 0;
    std::uint64_t window_number_ = 0;  // newest collective of the open window, 0 = none open
    std::uint64_t window_since_ = 0;
    std::uint64_t window_length_ = 0;  // expected when it opened; 0: unknown
    std::uint64_t window_launches_ = 0;
    std::uint64_t turn_began_ =
        0;                     // first launch seen since the last window or idle time, 0 = none yet
    PhaseLength turn_length_;  // from there to drained
    std::uint64_t not_drained_at_ = 0;  // last seen, with a collective in flight; 0: not so
    IdleGrace idle_grace_;
    std::uint64_t idle_since_ = 0;  // a silence let the turn go; 0: it did not, or is over
    std::uint64_t communicated_until_ = 0;
    bool idle_reported_ = false;
};

// Some gate became quiet or loud: decides anew whether launches need attention. Defined in
// process.cpp.
void refresh_attention() noexcept;

}  // namespace crossover
