// SPDX-License-Identifier: Apache-2.0
// Inside of Client, for client.cpp, client_sleep.cpp and client_report.cpp only.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <mutex>

#include "arbiter/attachment.hpp"
#include "arbiter/client.hpp"

namespace crossover {

struct Client::State {
    pid_t pid = 0;
    pid_t thread = 0;  // that attached
    Folder folder;
    DeviceUuid device;

    std::mutex moving;  // of joining anew and rekey(): the job below, and which segment is told it
    JobIdentity job;
    Joining joining;
    void set_job(const JobIdentity& to) noexcept {
        job = to;
        joining.job_key = job.key;
        joining.job_name = {job.name, strnlen(job.name, sizeof job.name)};
    }

    std::atomic<bool> abandoned{false};
    std::atomic<bool> aborted{false};
    std::atomic<std::uint32_t> let_gos{0};  // who waited when one came waits no more
    std::atomic<bool> stalled{false};  // ClientSlot::stalled_ns is, or is about to be, this one's
    std::atomic<Status> fault{Status::kOk};
    std::atomic<Status> replaced{Status::kOk};
    std::atomic<std::uint32_t> joined{0};
    std::atomic<std::uint64_t> claim_since_ns{0};
    std::atomic<std::uint64_t> swept_ns{0};  // where the kernel wakes nobody for a death
    // A sweep has left a life lock that nobody holds: no other one before this time.
    std::atomic<std::uint64_t> no_sweep_until_ns{0};

    // Futex words of this process: what its own threads tell those that wait for the turn, and the
    // one that sleeps. They work when the segment does not.
    std::atomic<std::uint32_t> own_grant{0};
    std::atomic<std::uint32_t> own_notice{0};

    WaitCounts counts;
    std::atomic<std::uint64_t> look_ns{0};  // 0: the usual period

    // Only the attaching thread.
    std::uint64_t name_looked_at_ns = 0;
    std::uint64_t first_rejoin_ns = 1'000'000'000;
    std::uint64_t longest_rejoin_ns = 60'000'000'000;
    std::uint64_t rejoin_pause_ns = 0;  // 0: not lost, or not seen yet
    std::uint64_t rejoin_at_ns = 0;
    std::uint64_t rejoined_ns = 0;
};

}  // namespace crossover
