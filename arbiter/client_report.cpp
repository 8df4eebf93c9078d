// SPDX-License-Identifier: Apache-2.0
// What others see of a client, and what it sees of the device: plain stores and loads in the
// segment, none of which changes whose turn it is.
#include <algorithm>
#include <cstring>

#include "arbiter/client_state.hpp"
#include "arbiter/ring.hpp"

namespace crossover {

bool Client::contended() const noexcept {
    const Attachment* at = touchable();
    return at != nullptr &&
           at->segment().arbitration.turn.active_jobs.load(std::memory_order_acquire) > 1;
}

bool Client::wanted() const noexcept {
    const Attachment* at = touchable();
    return at != nullptr &&
           at->segment().arbitration.turn.waiting_jobs.load(std::memory_order_acquire) != 0;
}

bool Client::others_communicate() const noexcept {
    const Attachment* at = touchable();
    if (at == nullptr) return false;
    const std::uint32_t own = at->job_index.load(std::memory_order_relaxed);
    const auto& clients = at->segment().clients;
    return std::any_of(std::begin(clients), std::end(clients), [own](const ClientSlot& client) {
        return client.attached.load(std::memory_order_acquire) == 1 && client.job != own &&
               client.phase.load(std::memory_order_relaxed) == ClientPhase::kCommunicating;
    });
}

TurnView Client::turn() const noexcept {
    TurnView view;
    const Attachment* at = touchable();
    if (at == nullptr) return view;
    const Segment& segment = at->segment();
    const Turn& turn = segment.arbitration.turn;
    view.active_jobs = turn.active_jobs.load(std::memory_order_acquire);
    const std::uint64_t holder = turn.word.load(std::memory_order_acquire) & kTurnJobMask;
    if (holder == 0 || holder > kMaxJobs) return view;
    // Read without the lock, which may be what is wrong: a hint for people.
    const JobSlot& job = segment.jobs[holder - 1];
    view.held = true;
    std::memcpy(view.holder, job.name, sizeof view.holder - 1);
    view.since_ns = job.turn_since_ns;
    return view;
}

const Segment& Client::segment() const noexcept {
    return at_.load(std::memory_order_acquire)->segment();
}

std::uint32_t Client::slot() const noexcept { return at_.load(std::memory_order_acquire)->slot; }

Status Client::fault_status() const noexcept {
    return usable() ? Status::kOk : state_->fault.load(std::memory_order_relaxed);
}

Status Client::replaced() const noexcept {
    return state_->replaced.load(std::memory_order_relaxed);
}

std::uint32_t Client::joined() const noexcept {
    return state_->joined.load(std::memory_order_relaxed);
}

const WaitCounts& Client::wait_counts() const noexcept { return state_->counts; }

void Client::set_periods(std::uint64_t look_ns, std::uint64_t rejoin_ns,
                         std::uint64_t longest_rejoin_ns) noexcept {
    state_->look_ns.store(look_ns, std::memory_order_relaxed);
    state_->first_rejoin_ns = rejoin_ns;
    state_->longest_rejoin_ns = longest_rejoin_ns;
}

void Client::set_phase(ClientPhase phase, std::uint64_t now_ns) noexcept {
    Attachment* at = touchable_or_fault();
    if (at == nullptr) return;
    ClientSlot& mine = at->mine();
    mine.phase.store(phase, std::memory_order_relaxed);
    mine.phase_ns.store(now_ns, std::memory_order_relaxed);
}

void Client::count_window() noexcept {
    Attachment* at = touchable_or_fault();
    if (at != nullptr) at->mine().windows.fetch_add(1, std::memory_order_relaxed);
}

void Client::count_crossing() noexcept {
    Attachment* at = touchable_or_fault();
    if (at != nullptr) at->mine().crossings.fetch_add(1, std::memory_order_relaxed);
}

void Client::add_exposed(std::uint64_t ns) noexcept {
    Attachment* at = touchable_or_fault();
    if (at != nullptr) at->mine().exposed_ns.fetch_add(ns, std::memory_order_relaxed);
}

void Client::add_communicated(std::uint64_t ns) noexcept {
    Attachment* at = touchable_or_fault();
    if (at != nullptr) at->mine().communicated_ns.fetch_add(ns, std::memory_order_relaxed);
}

void Client::record(EventKind kind, std::uint64_t value, std::uint64_t now_ns) noexcept {
    Attachment* at = touchable_or_fault();
    if (at == nullptr) return;
    EventRecord event;
    event.time_ns = now_ns;
    event.value = value;
    event.kind = kind;
    event.client = at->slot + 1;
    event.job = static_cast<std::uint16_t>(at->job_index.load(std::memory_order_relaxed) + 1);
    event.job_key = at->job_key.load(std::memory_order_relaxed);
    append_event(at->segment(), event);
}

void Client::set_mode(Mode mode) noexcept {
    Attachment* at = touchable_or_fault();
    if (at == nullptr) return;
    at->mine().mode.store(static_cast<std::uint32_t>(mode), std::memory_order_relaxed);
}

void Client::note_stall(const char* site, std::uint64_t since_ns) noexcept {
    Attachment* at = touchable_or_fault();
    if (at == nullptr || state_->stalled.exchange(true, std::memory_order_acq_rel)) return;
    ClientSlot& mine = at->mine();
    const std::size_t length = strnlen(site, sizeof mine.stall_site - 1);
    std::memcpy(mine.stall_site, site, length);
    std::memset(mine.stall_site + length, 0, sizeof mine.stall_site - length);
    mine.stalled_ns.store(since_ns, std::memory_order_release);
}

}  // namespace crossover
