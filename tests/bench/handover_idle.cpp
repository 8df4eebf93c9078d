// SPDX-License-Identifier: Apache-2.0
// Attached clients that want nothing sleep as the library's watcher does. Each wake-up of theirs is
// a voluntary context switch when they go to sleep again, so the kernel's counts tell all of them.
#include <algorithm>
#include <atomic>

#include "arbiter/futex.hpp"
#include "handover_parts.hpp"
#include "handover_processes.hpp"

namespace crossover::bench {
namespace {

constexpr std::uint64_t kNeverNs = 3600 * kSecond;
constexpr std::uint64_t kStillNs = 300 * kMs;      // without a switch: they have settled
constexpr std::uint64_t kSettleNs = 10 * kSecond;  // longest

Switches sum_of(const std::vector<Child>& children) {
    Switches sum;
    for (const Child& child : children) {
        const Switches own = switches_of(child.pid());
        sum.voluntary += own.voluntary;
        sum.involuntary += own.involuntary;
    }
    return sum;
}

// Attaching wakes those that are there already.
bool settle(const std::vector<Child>& children) {
    const std::uint64_t deadline = monotonic_ns() + kSettleNs;
    Switches last = sum_of(children);
    while (monotonic_ns() < deadline) {
        sleep_ns(kStillNs);
        const Switches now = sum_of(children);
        if (now.voluntary == last.voluntary) return true;
        last = now;
    }
    return false;
}

}  // namespace

IdleFigures measure_idle(const IdlePlan& plan) {
    const SegmentDirectory segments;
    const std::uint32_t jobs = std::min(plan.clients, plan.most_jobs);
    Shared<std::atomic<std::uint32_t>> attached;
    std::vector<Child> children;
    for (std::uint32_t self = 0; self < plan.clients; ++self) {
        children.emplace_back([&, self] {
            const std::unique_ptr<Client> client = segments.attach(0, self % jobs);
            std::uint32_t seen = client->notice();
            attached->fetch_add(1);
            while (client->usable()) seen = client->sleep(seen, monotonic_ns() + kNeverNs);
            fail("the segment became unusable");
        });
    }
    wait_until([&] { return attached->load() == plan.clients; }, children, "attach");
    IdleFigures figures;
    figures.jobs = jobs;
    figures.settled = settle(children);
    const std::uint64_t began_ns = monotonic_ns();
    const Switches before = sum_of(children);
    sleep_ns(plan.length_ns);
    const Switches after = sum_of(children);
    figures.length_ns = monotonic_ns() - began_ns;
    figures.voluntary = after.voluntary - before.voluntary;
    figures.involuntary = after.involuntary - before.involuntary;
    for (Child& child : children) {
        if (child.done()) fail("a client ended too early");
    }
    return figures;
}

}  // namespace crossover::bench
