// SPDX-License-Identifier: Apache-2.0
// The parts of the hand-over benchmark that need the arbiter alone, each measured with processes of
// its own, and their figures. Times in ns. A part throws std::runtime_error when it cannot measure.
#pragma once

#include <cstdint>
#include <vector>

namespace crossover::bench {

// ---- how long a hand-over takes, against a bare wake

struct LatencyPlan {
    std::uint32_t handovers = 3000;
    std::uint32_t block = 50;           // hand-overs, then as many bare wakes, and so on
    std::uint64_t asleep_ns = 1000000;  // least time that the other side sleeps before it is woken
};

struct LatencyFigures {
    std::vector<std::uint64_t> handover_ns;  // release() called to acquire() returned
    std::vector<std::uint64_t> floor_ns;     // word stored to FUTEX_WAIT returned
    std::vector<std::uint64_t> release_ns;   // time in release()
    std::vector<std::uint64_t> wake_ns;      // time in storing the word and FUTEX_WAKE
    std::uint64_t shortest_sleep_ns = 0;     // over all of both kinds
};

LatencyFigures measure_latency(const LatencyPlan& plan);

// ---- how many turns a second

struct TurnsPlan {
    std::uint32_t clients = 2;  // processes; each attaches once to each device
    std::uint32_t devices = 1;
    std::uint32_t most_jobs = 8;  // client n belongs to job n modulo the lesser of this and clients
    std::uint64_t length_ns = 2000000000;
};

struct TurnsFigures {
    std::uint32_t jobs = 0;
    std::uint64_t length_ns = 0;
    std::uint64_t turns = 0;         // granted, over all devices
    std::uint64_t acquisitions = 0;  // clients that got into a turn
    std::uint64_t cut_by_lease = 0;  // turns
    std::uint64_t job_least = 0;     // turns of the job with fewest on a device
    std::uint64_t job_most = 0;      // and with most
    std::uint64_t client_least = 0;  // acquisitions of one client on one device
    std::uint64_t client_most = 0;
};

TurnsFigures measure_turns(const TurnsPlan& plan);

// ---- what waits for nothing costs nothing

struct IdlePlan {
    std::uint32_t clients = 2;  // processes
    std::uint32_t most_jobs = 8;
    std::uint64_t length_ns = 10000000000;
};

struct IdleFigures {
    std::uint32_t jobs = 0;
    std::uint64_t length_ns = 0;
    std::uint64_t voluntary = 0;  // context switches of all threads of all clients
    std::uint64_t involuntary = 0;
    bool settled = false;  // nothing moved any more before the measurement began
};

IdleFigures measure_idle(const IdlePlan& plan);

}  // namespace crossover::bench
