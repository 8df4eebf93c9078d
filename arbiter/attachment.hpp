// SPDX-License-Identifier: Apache-2.0
// One place of a client in one segment: joined, used, lost or left. A client whose segment was
// given up gets another one (client.cpp); what was joined here does not change any more, so other
// threads may go on looking. No waiting for turns here.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>

#include "arbiter/segment.hpp"
#include "arbiter/segment_lock.hpp"
#include "arbiter/state.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {

struct Attachment {
    // Joins the segment of the device, on the thread that will hold the life lock. A segment that
    // is damaged, or whose lock cannot be had, is given up for everybody and replaced; `replaced`
    // then says what was wrong with it. On failure nothing is attached.
    Status join(const Folder& folder, const DeviceUuid& device, const Joining& joining,
                Status& replaced) noexcept;
    // Leaves in good order and removes the file when last; or lets a lost one go as far as it may.
    // On the joining thread, as the last call.
    void leave() noexcept;
    // Of a lost one, on the joining thread: gives the life lock back where that is safe, else makes
    // the thread's list of locks whole, so that the thread can hold others. The memory stays.
    void part() noexcept;

    // Tells all clients of the segment, or only gets out of the way when there is no file left.
    void give_up_for(Status why) noexcept;

    Segment& segment() const noexcept { return *mapping.get(); }
    ClientSlot& mine() const noexcept { return segment().clients[slot]; }
    // A reaped slot may have gone to somebody else.
    bool owns() const noexcept;
    bool whole() const noexcept;
    Transaction begin() const noexcept;
    void note_job() noexcept;

    MappedSegment mapping;
    HeldLock life;
    std::uint32_t slot = 0;
    std::uint64_t attached_ns = 0;
    std::atomic<bool> lost{false};
    std::atomic<std::uint32_t> waiting_threads{0};
    std::atomic<std::uint64_t> job_key{0};
    std::atomic<std::uint32_t> job_index{0};
    Attachment* older = nullptr;  // kept for threads that still look

  private:
    Status try_join(const Folder& folder, const DeviceUuid& device, const Joining& joining,
                    Status& replaced) noexcept;
    Status replace(Status why, Status& replaced) noexcept;
    bool leave_in_order() noexcept;
};

}  // namespace crossover
