// SPDX-License-Identifier: Apache-2.0
// The legal transitions of a segment, as functions on a Segment& that the caller has locked (heap
// memory will do, in tests). No lock, no clock, no waiting, no system call: the time is an argument
// and whom to wake is the answer.
//
// What the client slots say (attached, job, claims, waits), the jobs' keys and the turn word are
// the truth; every count and job state is derived from them again in each transition. So a process
// that dies half way through one leaves nothing that repair() does not put right, and a transition
// repeated is harmless. Indexes read from the segment are checked before use: on any content these
// functions end, without touching other memory.
#pragma once

#include <array>
#include <bit>
#include <cstdint>
#include <string_view>

#include "crossover/layout.hpp"
#include "crossover/status.hpp"

namespace crossover {

// A set of client slots.
class ClientSet {
  public:
    void add(std::uint32_t slot) noexcept { words_[slot / 64] |= std::uint64_t{1} << (slot % 64); }
    bool contains(std::uint32_t slot) const noexcept {
        return (words_[slot / 64] >> (slot % 64) & 1) != 0;
    }
    bool empty() const noexcept { return (words_[0] | words_[1]) == 0; }
    template <class Visit>
    void for_each(Visit&& visit) const noexcept {
        for (std::uint32_t i = 0; i < words_.size(); ++i) {
            for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1) {
                visit(64 * i + static_cast<std::uint32_t>(std::countr_zero(rest)));
            }
        }
    }

  private:
    friend ClientSet attached_clients(const Segment& segment) noexcept;
    static_assert(kMaxClients == 128);
    std::array<std::uint64_t, 2> words_{};
};

// The clients that are attached, as the last transition left them; a hint without the lock.
ClientSet attached_clients(const Segment& segment) noexcept;

// Clients whose futex words a transition has advanced; to be woken once the lock is given back.
struct Wakes {
    ClientSet grants;
    ClientSet notices;
};

struct Joining {
    std::uint64_t job_key = 0;  // never 0
    std::string_view job_name;  // cut to kJobNameBytes - 1
    std::uint32_t pid = 0;
    std::uint32_t ordinal = 0;
    std::uint32_t mode = 0;
    std::uint64_t fixed_lease_ns = 0;  // 0 = by policy
    std::uint32_t weight = 0;          // 0 = none given; cut to kMaxWeight
};

inline constexpr std::uint32_t kNoSlot = 0xFFFFFFFF;

// The index of the client's job, read once: what somebody writes over the segment at this moment
// must not come between a check of it and its use.
inline std::uint32_t job_of(const ClientSlot& client) noexcept {
    return *const_cast<const volatile std::uint32_t*>(&client.job);
}

// The number of the turn and the index of the job that has it (kNoJob: nobody).
std::uint64_t turn_number(const Segment& segment) noexcept;
std::size_t turn_holder(const Segment& segment) noexcept;

// Puts a client into free slot `slot`, whose life lock the caller has taken. kFull: no job slot.
Status attach_client(Segment& segment, std::uint32_t slot, const Joining& joining,
                     std::uint64_t now_ns, Wakes& wakes) noexcept;

// The client leaves, or is found dead: what it holds or waits for is given back.
void detach_client(Segment& segment, std::uint32_t slot, std::uint64_t now_ns,
                   Wakes& wakes) noexcept;
void reap_client(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept;

// The client wants to submit. True: it may, now. False: it waits, and its `grant` word will change.
// A job's clients share its turn: while the job has it they join at once. But when another job
// waits, a client that has given its claim back in this turn waits for the job's next one;
// otherwise two ranks going in and out by turns would keep the turn until its lease cuts it.
bool request(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept;

// The client waits no more (its time ran out). A turn already granted is kept.
void withdraw(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept;

// The client submits no more under this turn, which ends when no client of the job does.
void release(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept;

// The client saw its job's compute phase end, after `phase_ns`, while it had no claim: the lease of
// an earlier turn cut the phase, and no further turn was needed for it. Nothing happens while a
// client of the job waits, as the phase then goes on, and where no turn was cut.
void phase_over(Segment& segment, std::uint32_t slot, std::uint64_t phase_ns) noexcept;

// Ends the present turn if its lease has run out. True if it did.
bool expire(Segment& segment, std::uint64_t now_ns, Wakes& wakes) noexcept;

// When expire() may succeed: CLOCK_MONOTONIC ns, or UINT64_MAX while the turn is not contested.
std::uint64_t lease_end_ns(const Segment& segment) noexcept;

// Moves the client to another job. Its claim is given back; a wait goes on as the new job's.
Status rekey_client(Segment& segment, std::uint32_t slot, std::uint64_t key, std::string_view name,
                    std::uint64_t now_ns, Wakes& wakes) noexcept;

// After a death inside a transition: derives everything again and lets every client look anew.
void repair(Segment& segment, std::uint64_t now_ns, Wakes& wakes) noexcept;

// Whether the content can be a segment's between two transitions: indexes in range, truth and
// derived fields agree. `device_uuid` 16 bytes, or nullptr for any.
bool consistent(const Segment& segment, const std::uint8_t* device_uuid) noexcept;

}  // namespace crossover
