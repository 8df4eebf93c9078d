// SPDX-License-Identifier: Apache-2.0
// A segment's state copied into plain values, for tables and measurements. Reads without the lock:
// what it copies is a hint, each number is right by itself. Bad indexes and names are made harmless
// here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "crossover/layout.hpp"

namespace crossover::command {

struct JobSnapshot {
    std::uint32_t slot = 0;
    std::uint64_t key = 0;
    std::string name;
    JobState state = JobState::kFree;
    std::uint32_t clients = 0;
    std::uint64_t turns = 0;
    std::uint64_t held_ns = 0;
    std::uint64_t waited_ns = 0;
    std::uint64_t wait_since_ns = 0;
    std::uint64_t turn_since_ns = 0;
    std::uint64_t lease_from_ns = 0;  // 0: nobody waits for this job's turn
    std::uint64_t lease_ns = 0;
    std::uint32_t weight = 0;  // 0: none given
};

struct ClientSnapshot {
    std::uint32_t slot = 0;
    std::uint32_t job = 0;  // slot of its job
    std::uint32_t pid = 0;
    std::uint32_t ordinal = 0;
    std::uint64_t attached_ns = 0;
    ClientPhase phase = ClientPhase::kUnknown;
    std::uint64_t phase_ns = 0;
    std::uint32_t mode = 0;
    std::uint64_t windows = 0;
    std::uint64_t crossings = 0;
    std::uint64_t exposed_ns = 0;
    std::uint64_t communicated_ns = 0;
    std::uint64_t stalled_ns = 0;  // since when a thread of it waits past its bound; 0: none does
    std::string stall_site;        // where that thread waits; empty: not known
};

struct DeviceSnapshot {
    std::string uuid;
    std::uint64_t now_ns = 0;  // when it was taken, CLOCK_MONOTONIC
    bool live = true;          // false: its clients have left it for good
    std::uint64_t round = 0;
    std::uint64_t turn_count = 0;
    std::uint64_t expired_count = 0;
    std::uint64_t reaped_count = 0;
    bool turn_held = false;
    std::uint32_t holder = 0;  // slot of the holding job, where turn_held
    std::vector<JobSnapshot> jobs;
    std::vector<ClientSnapshot> clients;
    // Slots whose last client has left: its figures stand until the slot's next use, its job may be
    // wrong.
    std::vector<ClientSnapshot> departed;

    const JobSnapshot* job_in(std::uint32_t slot) const noexcept;
};

DeviceSnapshot snapshot_of(const Segment& segment, std::uint64_t now_ns);

// "GPU-xxxxxxxx-xxxx-..." as nvidia-smi writes it.
std::string uuid_text(const std::uint8_t (&uuid)[16]);
// Text from shared memory, `bytes` long at most: ends within its field, and whatever is no
// printable character in UTF-8 is a '?' each byte, so that no content can steer a terminal.
std::string text_of(const char* field, std::size_t bytes);
std::string name_of(const JobSlot& job);

const char* state_text(JobState state) noexcept;
const char* phase_text(ClientPhase phase) noexcept;
const char* mode_text(std::uint32_t mode) noexcept;

}  // namespace crossover::command
