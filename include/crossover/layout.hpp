// SPDX-License-Identifier: Apache-2.0
// The shared segment: memory of one device, mapped by every client of that device and by the
// `crossover` command, and the locator, the file that leads there. Only plain data stands here; who
// may change what is written at each field. No behaviour, no CUDA, NCCL or operating-system header.
//
//   +-----------+----------------+---------------+------------------+----------------------+
//   | Header    | Arbitration    | JobSlot x 32  | ClientSlot x 128 | EventRing            |
//   | identity  | whose turn     | jobs by key   | processes        | the recent past      |
//   +-----------+----------------+---------------+------------------+----------------------+
//
// Rules of change:
//  - "locked": written only by a thread that holds Arbitration::lock (arbiter/segment_lock.hpp);
//    readable by anyone, as a hint, without it.
//  - "owner": written by the client that owns the slot.
//  - Zero means free, absent or none everywhere, because fresh memory is zero.
//  - Times are CLOCK_MONOTONIC nanoseconds, which all processes of a machine share.
//  - A change of anything in this file changes kLayoutVersion; the version is part of the file's
//    name, so builds with different layouts never map each other's segments.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace crossover {

inline constexpr std::uint64_t kSegmentMagic = 0x52564F53534F5243;  // "CROSSOVR" in memory order
inline constexpr std::uint64_t kLocatorMagic = 0x434F4C53534F5243;  // "CROSSLOC" in memory order
inline constexpr std::uint32_t kLayoutVersion = 3;
inline constexpr std::size_t kMaxJobs = 32;
inline constexpr std::size_t kMaxClients = 128;
inline constexpr std::size_t kRingEvents = 8192;    // a power of two
inline constexpr std::size_t kJobNameBytes = 48;    // with the closing zero
inline constexpr std::size_t kCallSiteBytes = 112;  // with the closing zero

enum class JobState : std::uint32_t {
    kFree = 0,  // slot unused
    kIdle,      // attached, neither waits for the turn nor has it
    kWaiting,   // at least one client waits, none may submit
    kHolding,   // has the turn
};

enum class ClientPhase : std::uint32_t {  // what a client last inferred of itself, for people and
                                          // traces
    kUnknown = 0,
    kComputing,
    kCommunicating,  // a communication window is open
    kWaiting,        // a thread waits for the turn
    kIdle,           // drained and silent
};

enum class SegmentEnd : std::uint32_t {
    kInUse = 0,
    kLeft,     // its last client left: the name is gone, or about to go
    kGivenUp,  // a fault was found in it: all its clients move to a new one under the same name
};

struct alignas(64) Header {
    std::uint64_t magic;                 // creator, then constant
    std::uint64_t total_bytes;           // creator, then constant: sizeof(Segment)
    std::uint8_t device_uuid[16];        // creator, then constant
    std::atomic<std::uint32_t> version;  // creator, stored last (release): kLayoutVersion = ready
    // locked for kLeft; anybody for kGivenUp, for good. Whoever sees anything but kInUse opens
    // anew.
    std::atomic<SegmentEnd> end;
    // creator, then constant: hash of the machine's boot identity, 0 = unknown. Locks of a file
    // that outlived a restart belong to nobody, so such a file is replaced.
    std::uint64_t boot;
    // creator, then constant: of the memory that a locator leads to, and of the folder it belongs
    // to. 0 where the file itself is the memory.
    std::uint64_t identity;
    std::uint64_t home;
};

// Content of a file that leads to a segment in System V shared memory, which no file operation can
// cut short or overwrite. (Where that cannot be had the file is the segment itself.)
struct Locator {
    std::uint64_t magic;          // kLocatorMagic
    std::uint32_t version;        // kLayoutVersion
    std::int32_t memory;          // shmid
    std::uint64_t identity;       // Header::identity
    std::uint64_t ipc_namespace;  // inode of the namespace that `memory` is known in, 0 = unknown
    std::uint64_t boot;           // Header::boot
    std::uint8_t device_uuid[16];
    std::uint64_t check;  // hash of all before: an overwritten one is told from a sound one
};

// The line every launch may read. It is written only when jobs come, go or hand over.
struct alignas(64) Turn {
    // locked. Low 16 bits: index of the holding job + 1, or 0; upper 48 bits: number of the turn,
    // which grows with every grant, so an unchanged word means an unbroken turn.
    std::atomic<std::uint64_t> word;
    std::atomic<std::uint32_t> active_jobs;   // locked: jobs with at least one client
    std::atomic<std::uint32_t> waiting_jobs;  // locked: jobs in JobState::kWaiting
    // locked, derived from JobSlot::key: bit i is set where job slot i is in use.
    std::atomic<std::uint32_t> job_set;
    std::uint32_t reserved[11];
};

struct alignas(64) Arbitration {
    alignas(64) std::byte lock[64];  // a robust process-shared mutex, arbiter/segment_lock.hpp
    Turn turn;
    std::uint64_t round;           // locked: number of the current round, from 1
    std::uint64_t turn_count;      // locked: turns granted since the segment was made
    std::uint64_t expired_count;   // locked: turns ended by their lease
    std::uint64_t reaped_count;    // locked: clients that died without detaching
    std::uint64_t repaired_count;  // locked: transitions cut short by death and put right
    std::uint64_t
        shared_since_ns;  // locked: since when there is more than one job; 0 = there is not
    // locked, derived from ClientSlot::attached: bit i of word i / 64 is set where client i is
    // attached. So that a transition looks at those alone.
    std::atomic<std::uint64_t> client_set[kMaxClients / 64];
};

struct alignas(64) JobSlot {
    std::uint64_t key;             // locked: identity and place in the round's order; 0 = free
    JobState state;                // locked
    std::uint32_t clients;         // locked: attached clients
    std::uint32_t claims;          // locked: clients that submit under the present turn
    std::uint32_t waiters;         // locked: clients that wait
    std::uint64_t last_round;      // locked: the round in which it last got a turn
    std::uint64_t wait_since_ns;   // locked
    std::uint64_t turn_since_ns;   // locked
    std::uint64_t lease_from_ns;   // locked: since when the turn is contested; 0 = nobody waits
    std::uint64_t lease_ns;        // locked: length granted from lease_from_ns on
    std::uint64_t recent_turn_ns;  // locked: moving mean of its own turns; 0 = unknown
    std::uint64_t turns;           // locked
    std::uint64_t held_ns;         // locked: sum of its turns
    std::uint64_t waited_ns;       // locked: sum of its waits
    char name[kJobNameBytes];      // locked
    std::uint64_t fixed_lease_ns;  // locked: CROSSOVER_LEASE_MS of its newest client, 0 = by policy
    // locked: device time used beyond its share, in ns; below 0: not used yet. Only where a job of
    // the device has a weight.
    std::int64_t debt_ns;
    std::uint32_t weight;  // locked: CROSSOVER_WEIGHT of its newest client, 0 = none given
};

struct alignas(64) ClientSlot {
    alignas(
        64) std::byte life[64];  // a robust mutex that a thread of the client holds while it lives
    std::atomic<std::uint32_t> attached;  // locked: 1 = slot in use
    std::uint32_t job;                    // locked: index of its job
    std::uint32_t pid;                    // owner's pid in its own namespace, for people only
    std::uint32_t ordinal;      // CUDA's ordinal of the device in that process, for people only
    std::uint64_t attached_ns;  // locked
    std::atomic<std::uint32_t> claims;  // locked: 1 = submits under its job's present turn
    std::atomic<std::uint32_t> waits;   // locked: threads of it that wait for the turn (0 or 1)
    // Futex words: any client adds one and wakes. `grant`: the turn came to this client. `notice`:
    // something its watcher should look at (another job came, waits, or went).
    std::atomic<std::uint32_t> grant;
    std::atomic<std::uint32_t> notice;
    std::atomic<ClientPhase> phase;         // owner
    std::atomic<std::uint32_t> mode;        // owner: 0 off, 1 on, 2 observe
    std::atomic<std::uint64_t> phase_ns;    // owner: since when
    std::atomic<std::uint64_t> windows;     // owner: communication windows seen
    std::atomic<std::uint64_t> crossings;   // owner: crossings gated
    std::atomic<std::uint64_t> exposed_ns;  // owner: sum of its communication windows, gated or not
    std::atomic<std::uint64_t>
        communicated_ns;          // owner: time with at least one collective in flight
    std::uint64_t released_turn;  // locked: number of the turn it last gave its claim back in
    // owner: since when a thread of it waits past its bound, 0 = none does, and where that thread
    // waits. The text is written before `stalled_ns` (release) and only while that is 0.
    std::atomic<std::uint64_t> stalled_ns;
    char stall_site[kCallSiteBytes];
};

// One thing that happened. Writers take a place by adding one to EventRing::next, fill it, and
// store `sequence` (release) last; a reader takes a record whose sequence is its place + 1 before
// and after copying.
struct Event {
    std::atomic<std::uint64_t> sequence;
    std::uint64_t time_ns;
    std::uint64_t value;   // events.def says which
    std::uint32_t client;  // index of the client slot + 1, or 0
    std::uint16_t kind;    // EventKind
    std::uint16_t job;     // index of the job slot + 1, or 0
    std::uint64_t job_key;
};

struct alignas(64) EventRing {
    std::atomic<std::uint64_t> next;
    std::uint64_t reserved[7];
    Event events[kRingEvents];
};

struct Segment {
    Header header;
    Arbitration arbitration;
    JobSlot jobs[kMaxJobs];
    ClientSlot clients[kMaxClients];
    EventRing ring;
};

template <class T>
inline constexpr bool kSharedMemorySafe =
    std::is_standard_layout_v<T>&& std::is_trivially_destructible_v<T> && !std::is_polymorphic_v<T>;

static_assert(std::atomic<std::uint32_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint32_t>) == 4);
static_assert(std::atomic<std::uint64_t>::is_always_lock_free &&
              sizeof(std::atomic<std::uint64_t>) == 8);
static_assert(kSharedMemorySafe<Segment>);
static_assert(sizeof(Header) == 64 && offsetof(Header, version) == 32);
static_assert(sizeof(Locator) == 64);
static_assert(sizeof(Turn) == 64);
static_assert(sizeof(Arbitration) == 192);
static_assert(sizeof(JobSlot) == 192);
static_assert(sizeof(ClientSlot) == 320);
static_assert(sizeof(Event) == 40);
static_assert(sizeof(Segment) <= std::size_t{1} << 20, "at most 1 MiB of shared memory a device");

inline constexpr std::uint64_t kTurnJobMask = 0xFFFF;

}  // namespace crossover
