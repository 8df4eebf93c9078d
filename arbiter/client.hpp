// SPDX-License-Identifier: Apache-2.0
// One process's attachment to one device's segment: the only way the library (shim/) touches shared
// state. No CUDA, no window inference. Nothing here throws, exits, prints or installs anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "crossover/events.hpp"
#include "crossover/layout.hpp"
#include "crossover/options.hpp"
#include "crossover/status.hpp"

namespace crossover {

struct DeviceUuid {
    std::uint8_t bytes[16] = {};
};

struct JobIdentity {
    std::uint64_t key = 0;          // never 0
    char name[kJobNameBytes] = {};  // for people
};

enum class Wait : std::uint32_t {
    kGranted,
    kTimedOut,
    kAborted,  // let_go() was called
    kFault,    // the segment is unusable or this client was reaped: go on ungated
};

class Client {
  public:
    // Attaches this process. Must be called on the thread that will hold the client's life lock and
    // outlive the attachment (the library's watcher thread). On failure `status` says why and
    // nullptr is returned.
    static std::unique_ptr<Client> attach(const DeviceUuid& device, const JobIdentity& job,
                                          std::uint32_t ordinal, const Options& options,
                                          Status& status) noexcept;
    // Gives back what is held, leaves, removes the file when last. Same thread as attach().
    ~Client();
    Client(const Client&) = delete;
    Client& operator=(const Client&) = delete;

    // --- read by every launch: one or two loads each, no write

    // Another job is attached to the device.
    bool contended() const noexcept {
        return segment_->arbitration.turn.active_jobs.load(std::memory_order_acquire) > 1;
    }
    // Another job waits for the turn.
    bool wanted() const noexcept {
        return segment_->arbitration.turn.waiting_jobs.load(std::memory_order_acquire) != 0;
    }
    // This client submits under its job's present turn. False after release, expiry of the lease or
    // a fault.
    bool holding() const noexcept {
        const std::uint64_t mine = held_word_.load(std::memory_order_acquire);
        return mine != 0 && segment_->arbitration.turn.word.load(std::memory_order_acquire) == mine;
    }

    // --- transitions: any thread

    // Takes the turn for this client, waiting until `deadline_ns` (CLOCK_MONOTONIC). Returns at
    // once when the job already has it or it is free by the policy. Threads of one client may wait
    // side by side. When another job waits, a client that gave its claim back in its job's present
    // turn waits for the job's next one (arbiter/state.hpp).
    Wait acquire(std::uint64_t deadline_ns) noexcept;
    // This client submits no more under the present turn; the turn moves on when no client of the
    // job does. Harmless when not holding. Returns the ns the claim lasted.
    std::uint64_t release() noexcept;
    // Makes every waiting acquire() of this client return kAborted, and later ones until allow() is
    // called.
    void let_go() noexcept;
    void allow() noexcept;
    // Moves the client to another job (its first communicator has told its name). The claim is
    // given back.
    Status rekey(const JobIdentity& job) noexcept;

    // --- the watcher's sleep

    // Sleeps until notice() differs from `seen`, somebody calls wake(), or `deadline_ns`. Returns
    // the present notice value. Other clients add to it when a client comes or goes, when a job
    // comes to wait for this client's turn, and when the lease has ended that turn. Returns at once
    // when the client is not usable().
    std::uint32_t sleep(std::uint32_t seen, std::uint64_t deadline_ns) noexcept;
    std::uint32_t notice() const noexcept;
    void wake() noexcept;

    // --- what others see

    void set_phase(ClientPhase phase, std::uint64_t now_ns) noexcept;
    void count_window() noexcept;
    void count_crossing() noexcept;
    // Adds to the sums that status and compare show, in ns.
    void add_exposed(std::uint64_t ns) noexcept;
    void add_communicated(std::uint64_t ns) noexcept;
    void record(EventKind kind, std::uint64_t value, std::uint64_t now_ns) noexcept;
    void set_mode(Mode mode) noexcept;

    // In a forked child, before anything else is done with it: forgets the attachment without any
    // effect on the segment or the parent.
    void abandon_after_fork() noexcept;

    const Segment& segment() const noexcept { return *segment_; }
    std::uint32_t slot() const noexcept { return slot_; }

    // False once a call has met a fault, or in a forked child: every acquire() returns kFault.
    bool usable() const noexcept;

  private:
    Client() = default;
    Wait fault() noexcept;
    Segment* segment_ = nullptr;
    std::uint32_t slot_ = 0;
    std::atomic<std::uint64_t> held_word_{0};
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace crossover
