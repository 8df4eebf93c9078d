// SPDX-License-Identifier: Apache-2.0
// Many clients that want nothing but turns: each takes one, gives it back at once and asks again.
// With several devices a process goes from one to the next, so it never holds two turns, and all
// its attachments are there all the time.
#include <algorithm>
#include <atomic>
#include <map>

#include "arbiter/futex.hpp"
#include "handover_parts.hpp"
#include "handover_processes.hpp"

namespace crossover::bench {
namespace {

struct Table {
    std::atomic<std::uint32_t> attached{0};
    std::atomic<std::uint32_t> phase{0};  // 0 get ready, 1 go, 2 stop
};

using Counts = Shared<std::atomic<std::uint64_t>>;  // acquisitions of client, device

void take_turns(const SegmentDirectory& segments, const TurnsPlan& plan, std::uint32_t self,
                std::uint32_t jobs, Table& table, Counts& counts) {
    std::vector<std::unique_ptr<Client>> clients;
    for (std::uint32_t device = 0; device < plan.devices; ++device) {
        clients.push_back(segments.attach(device, self % jobs));
    }
    table.attached.fetch_add(1);
    while (table.phase.load() == 0) futex_wait(table.phase, 0, monotonic_ns() + kLongNs);
    // Not all at the same device at once.
    std::uint32_t device = self % plan.devices;
    while (table.phase.load(std::memory_order_relaxed) == 1) {
        if (clients[device]->acquire(monotonic_ns() + kLongNs) != Wait::kGranted) fail("no turn");
        counts[self * plan.devices + device].fetch_add(1, std::memory_order_relaxed);
        clients[device]->release();
        device = device + 1 == plan.devices ? 0 : device + 1;
    }
    // In order of arrival: whoever leaves while others still take turns changes what they see.
    table.attached.fetch_sub(1);
    while (table.attached.load() != 0) sleep_ns(kMs);
}

struct Reading {
    std::uint64_t turns = 0;
    std::uint64_t cut = 0;
    std::map<std::pair<std::size_t, std::uint64_t>, std::uint64_t> jobs;  // by device and key
    std::vector<std::uint64_t> counts;
};

// Turns go on meanwhile. `first`: the reading from which another is measured: then the sums are
// read before their parts, else after them, so that from one to the other no sum is less than its
// parts'.
Reading read(const std::vector<MappedSegment>& segments, const Counts& counts, std::size_t count,
             bool first) {
    Reading reading;
    const auto read_sums = [&] {
        for (const MappedSegment& each : segments) {
            reading.turns += each.view()->arbitration.turn_count;
            reading.cut += each.view()->arbitration.expired_count;
        }
    };
    if (first) read_sums();
    for (std::size_t device = 0; device < segments.size(); ++device) {
        for (const JobSlot& job : segments[device].view()->jobs) {
            if (job.key != 0) reading.jobs[{device, job.key}] = job.turns;
        }
    }
    if (!first) read_sums();
    for (std::size_t i = 0; i < count; ++i) reading.counts.push_back(counts[i].load());
    return reading;
}

}  // namespace

TurnsFigures measure_turns(const TurnsPlan& plan) {
    const SegmentDirectory segments;
    const std::uint32_t jobs = std::min(plan.clients, plan.most_jobs);
    const std::size_t count = std::size_t{plan.clients} * plan.devices;
    Shared<Table> table;
    Counts counts(count);
    std::vector<Child> children;
    for (std::uint32_t self = 0; self < plan.clients; ++self) {
        children.emplace_back(
            [&, self] { take_turns(segments, plan, self, jobs, *table, counts); });
    }
    wait_until([&] { return table->attached.load() == plan.clients; }, children, "attach");
    const std::vector<MappedSegment> looks = segments.look();
    if (looks.size() != plan.devices) fail("not a segment for each device");
    table->phase.store(1);
    futex_wake_all(table->phase);
    sleep_ns(plan.length_ns / 10);  // all awake and in order
    const Reading before = read(looks, counts, count, true);
    const std::uint64_t began_ns = monotonic_ns();
    sleep_ns(plan.length_ns);
    const Reading after = read(looks, counts, count, false);
    TurnsFigures figures;
    figures.length_ns = monotonic_ns() - began_ns;
    table->phase.store(2);
    wait_for_all(children, kLongNs);

    figures.jobs = jobs;
    figures.turns = after.turns - before.turns;
    figures.cut_by_lease = after.cut - before.cut;
    figures.job_least = figures.client_least = UINT64_MAX;
    for (const auto& [place, turns] : after.jobs) {
        const auto found = before.jobs.find(place);
        if (found == before.jobs.end()) fail("a job came late");
        figures.job_least = std::min(figures.job_least, turns - found->second);
        figures.job_most = std::max(figures.job_most, turns - found->second);
    }
    if (after.jobs.size() != std::size_t{jobs} * plan.devices) fail("a job is missing");
    for (std::size_t i = 0; i < count; ++i) {
        const std::uint64_t own = after.counts[i] - before.counts[i];
        figures.acquisitions += own;
        figures.client_least = std::min(figures.client_least, own);
        figures.client_most = std::max(figures.client_most, own);
    }
    return figures;
}

}  // namespace crossover::bench
