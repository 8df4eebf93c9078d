// SPDX-License-Identifier: Apache-2.0
// One process as a client of one device: the only way the library (shim/) touches shared state. A
// client outlives the segment it is attached to: when that is found faulty, all its clients move to
// a new one. No CUDA, no window inference. Nothing here throws, exits, prints or installs anything.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "arbiter/futex.hpp"
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

// The turn of the device as it looks from outside, for people.
struct TurnView {
    std::uint32_t active_jobs = 0;
    bool held = false;
    char holder[kJobNameBytes] = {};
    std::uint64_t since_ns = 0;  // when the holder's turn began
};

// How this client's waits for the turn went, for tests and benchmarks.
struct WaitCounts {
    std::atomic<std::uint64_t> sleeps{0};
    std::atomic<std::uint64_t> looks{0};   // sleeps that ended by the period of looking alone
    std::atomic<std::uint64_t> sweeps{0};  // looks at the life locks of all clients, under the lock
    std::atomic<std::uint64_t> lockless{0};  // grants taken without the segment's lock
};

struct Attachment;

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

    // This client submits under its job's present turn. False after release, or a fault, or once
    // the lease has ended the turn. When the segment is given up, and for the lease where it is a
    // file, false from the moment on that a thread of this client is in sleep() or acquire() to see
    // it: some microseconds after the others know. Two loads, for every launch.
    bool holding() const noexcept {
        const std::uint64_t held = held_.load(std::memory_order_acquire);
        return (held & kTurnJobMask) != 0 &&
               turn_word_.load(std::memory_order_acquire)->load(std::memory_order_acquire) == held;
    }
    // Another job is attached to the device; another job waits for the turn. These and the next ask
    // the kernel first whether the segment is still there (some 200 ns), and are false when it is not.
    bool contended() const noexcept;
    bool wanted() const noexcept;
    // A client of another job on the device says that it communicates and does not compute. A look
    // at all clients (some microseconds), without the lock.
    bool others_communicate() const noexcept;

    // --- transitions: any thread

    // Takes the turn for this client, waiting until `deadline_ns` (CLOCK_MONOTONIC). Returns at
    // once when the job already has it or it is free by the policy. Threads of one client may wait
    // side by side. When another job waits, a client that gave its claim back in its job's present
    // turn waits for the job's next one (arbiter/state.hpp).
    Wait acquire(std::uint64_t deadline_ns) noexcept;
    // This client submits no more under the present turn; the turn moves on when no client of the
    // job does. Harmless when not holding. Returns the ns the claim lasted.
    std::uint64_t release() noexcept;
    // The compute phase that a turn of this client's job was for has ended after `phase_ns`, and the
    // job has no turn. Cheap unless the lease had cut that turn: then its length is learned.
    void phase_over(std::uint64_t phase_ns) noexcept;
    // Makes every waiting acquire() of this client return kAborted, however soon allow() follows,
    // and later ones until then.
    void let_go() noexcept;
    void allow() noexcept;
    // Moves the client to another job (its first communicator has told its name). The claim is
    // given back.
    Status rekey(const JobIdentity& job) noexcept;

    // --- the watcher's sleep

    // Sleeps until notice() differs from `seen`, somebody calls wake(), or `deadline_ns`. Returns
    // the present notice value. Other clients add to it when a client comes or goes, when a job
    // comes to wait for this client's turn, and when the lease has ended that turn. A sleep of a
    // second or more ends for a client that died, too: it is reaped, and the rest is told.
    //
    // After a fault this is also what joins the device anew, on the thread that attached: a second
    // after the fault, then after twice as long each time, up to a minute. Until then it sleeps.
    // In a forked child it returns at once.
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
    // A thread has waited past its bound since `since_ns`, at the place `site` of the program. It
    // stays until the next grant.
    void note_stall(const char* site, std::uint64_t since_ns) noexcept;
    void record(EventKind kind, std::uint64_t value, std::uint64_t now_ns) noexcept;
    void set_mode(Mode mode) noexcept;

    // In a forked child, before anything else is done with it: forgets the attachment without any
    // effect on the segment or the parent.
    void abandon_after_fork() noexcept;

    TurnView turn() const noexcept;
    // The segment attached to last; for tests and tools, which must know that it is still there.
    const Segment& segment() const noexcept;
    std::uint32_t slot() const noexcept;

    // False from a fault on until sleep() has joined the device anew, and in a forked child: every
    // acquire() returns kFault.
    bool usable() const noexcept;
    // Why the last call found the client unusable, and what was wrong with the file that attach()
    // or sleep() found in this one's place and replaced; kOk: nothing.
    Status fault_status() const noexcept;
    Status replaced() const noexcept;
    // How often the client has joined a segment.
    std::uint32_t joined() const noexcept;
    const WaitCounts& wait_counts() const noexcept;
    // For tests: how long a wait for the turn sleeps at most before it looks for itself (0: as
    // usual), and how long after a fault sleep() joins anew, the first time and at most, in ns.
    void set_periods(std::uint64_t look_ns, std::uint64_t rejoin_ns,
                     std::uint64_t longest_rejoin_ns) noexcept;

  private:
    Client() = default;
    void use(Attachment* at) noexcept;
    Attachment* usable_attachment() const noexcept;
    Attachment* touchable() const noexcept;
    Attachment* touchable_or_fault() noexcept;
    bool look(Attachment& at) noexcept;
    bool take(Attachment& at, std::uint64_t before, std::uint64_t word) noexcept;
    bool take_lockless(Attachment& at) noexcept;
    bool sweep(Attachment& at) noexcept;
    bool dead_around(Attachment& at) noexcept;
    bool watch(Attachment& at, FutexWord* words, std::size_t room, std::size_t& count) noexcept;
    void sleep_for_turn(Attachment& at, std::uint32_t grant, std::uint32_t own,
                        std::uint64_t wake_ns, bool& dead_seen) noexcept;
    FutexWait sleep_for_notice(Attachment& at, std::uint32_t shared, std::uint32_t own,
                               std::uint64_t deadline_ns) noexcept;
    void sleep_lost(std::uint64_t deadline_ns) noexcept;
    bool rejoin() noexcept;
    Wait fault(Attachment& at, Status why) noexcept;
    void bump(std::atomic<std::uint32_t>& own) noexcept;

    // The turn that this client submits under: the turn word, or with job bits 0 the last such turn
    // and that it is over. Turn numbers only grow, in later segments too.
    std::atomic<std::uint64_t> held_{0};
    // The segment's turn word; where a launch may not touch the segment, which is a file that could
    // be cut: held_.
    std::atomic<const std::atomic<std::uint64_t>*> turn_word_{&held_};
    std::atomic<Attachment*> at_{nullptr};
    struct State;
    std::unique_ptr<State> state_;
};

}  // namespace crossover
