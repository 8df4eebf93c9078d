// SPDX-License-Identifier: Apache-2.0
// A client: transactions on the segment, and sleeping between them. What a transition does stands
// in state.cpp. Once something is wrong with the segment the client is faulted for good: every call
// returns at once and nothing is touched any more.
#include "arbiter/client.hpp"

#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "arbiter/futex.hpp"
#include "arbiter/liveness.hpp"
#include "arbiter/ring.hpp"
#include "arbiter/segment.hpp"
#include "arbiter/state.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kAttachBoundNs = 2'000'000'000;
constexpr std::uint64_t kLookPeriodNs = 50'000'000;      // of a waiter, at the holder
constexpr std::uint64_t kSweepPeriodNs = 1'000'000'000;  // at all clients

std::string_view name_of(const JobIdentity& job) noexcept {
    return {job.name, strnlen(job.name, sizeof job.name)};
}

}  // namespace

struct Client::State {
    MappedSegment mapping;
    HeldLock life;
    pid_t pid = 0;
    std::uint64_t attached_ns = 0;
    std::uint32_t waiting_threads = 0;  // under the segment's lock
    std::uint64_t claim_since_ns = 0;   // under the segment's lock
    std::atomic<bool> faulted{false};
    std::atomic<bool> abandoned{false};
    std::atomic<bool> aborted{false};
    std::atomic<std::uint64_t> swept_ns{0};
    std::atomic<std::uint64_t> job_key{0};
    std::atomic<std::uint32_t> job_index{0};

    ClientSlot& slot_of(std::uint32_t slot) const noexcept { return mapping.get()->clients[slot]; }

    // A reaped slot may have gone to somebody else.
    bool owns(std::uint32_t slot) const noexcept {
        const ClientSlot& mine = slot_of(slot);
        return mine.attached.load(std::memory_order_relaxed) == 1 &&
               mine.attached_ns == attached_ns && mine.job < kMaxJobs;
    }

    // In a forked child nothing is this process's, whether it was told or not.
    bool usable() const noexcept {
        return !faulted.load(std::memory_order_relaxed) &&
               !abandoned.load(std::memory_order_relaxed) && getpid() == pid;
    }

    void fault(std::uint32_t slot) noexcept {
        if (faulted.exchange(true) || getpid() != pid) return;
        // Best effort without the lock: the next transition of anybody sees that this client
        // neither submits nor waits, and moves the turn on.
        if (owns(slot)) {
            slot_of(slot).waits.store(0, std::memory_order_relaxed);
            slot_of(slot).claims.store(0, std::memory_order_relaxed);
        }
    }

    bool sweep_due(std::uint64_t now_ns) noexcept {
        std::uint64_t last = swept_ns.load(std::memory_order_relaxed);
        return now_ns >= last + kSweepPeriodNs &&
               swept_ns.compare_exchange_strong(last, now_ns, std::memory_order_relaxed);
    }

    void note_job(std::uint32_t slot) noexcept {
        const std::uint32_t index = slot_of(slot).job;
        job_index.store(index, std::memory_order_relaxed);
        job_key.store(mapping.get()->jobs[index].key, std::memory_order_relaxed);
    }

    // One try; kNotReady: the file was on its way out, try anew.
    Status join(const Folder& folder, const DeviceUuid& device, const Joining& joining,
                std::uint32_t& slot) noexcept {
        Status status = open_or_create(folder, device, monotonic_ns() + kAttachBoundNs, mapping);
        if (status != Status::kOk) return status;
        Segment& segment = *mapping.get();
        Transaction transaction(segment);
        if (transaction.status() != Status::kOk) return transaction.status();
        if (!consistent(segment, device.bytes)) return Status::kCorrupt;
        if (segment.header.unlinked.load(std::memory_order_relaxed) != 0) {
            // Its last client left; should it have died before the name was gone, finish that.
            if (remove_name(mapping) == Status::kOk) return Status::kNotReady;
            segment.header.unlinked.store(0, std::memory_order_relaxed);
        }
        const std::uint64_t now_ns = monotonic_ns();
        reap_dead_clients(segment, kNoSlot, now_ns, transaction.wakes());
        slot = take_free_slot(segment, life);
        if (slot == kNoSlot) return Status::kFull;
        note_links(transaction.lock());
        status = attach_client(segment, slot, joining, now_ns, transaction.wakes());
        if (status != Status::kOk) {
            unlock_long_held(life);
            note_links(transaction.lock());
            return status;
        }
        attached_ns = slot_of(slot).attached_ns;
        note_job(slot);
        status = transaction.finish();
        return status;
    }

    // Leaves in good order; false: the mapping must stay.
    bool leave(std::uint32_t slot) noexcept {
        Segment& segment = *mapping.get();
        Transaction transaction(segment, slot);
        if (transaction.status() != Status::kOk || !owns(slot)) return false;
        detach_client(segment, slot, monotonic_ns(), transaction.wakes());
        bool last = true;
        for (const ClientSlot& client : segment.clients) {
            last = last && client.attached.load(std::memory_order_relaxed) == 0;
        }
        if (last) {
            segment.header.unlinked.store(1, std::memory_order_relaxed);
            if (remove_name(mapping) != Status::kOk) {
                segment.header.unlinked.store(0, std::memory_order_relaxed);
            }
        }
        const bool unlocked = unlock_long_held(life);
        note_links(transaction.lock());
        return transaction.finish() == Status::kOk && unlocked;
    }
};

std::unique_ptr<Client> Client::attach(const DeviceUuid& device, const JobIdentity& job,
                                       std::uint32_t ordinal, const Options& options,
                                       Status& status) noexcept {
    status = Status::kSystem;
    if (job.key == 0) return nullptr;
    std::unique_ptr<Client> client(new (std::nothrow) Client);
    std::unique_ptr<State> state(new (std::nothrow) State);
    if (client == nullptr || state == nullptr) return nullptr;

    Folder folder;
    status = choose_folder(options.dir, true, folder);
    if (status != Status::kOk) return nullptr;

    Joining joining;
    joining.job_key = job.key;
    joining.job_name = name_of(job);
    joining.pid = static_cast<std::uint32_t>(getpid());
    joining.ordinal = ordinal;
    joining.mode = options.mode;
    joining.fixed_lease_ns = options.lease_ms * 1'000'000;
    state->pid = getpid();

    const std::uint64_t deadline_ns = monotonic_ns() + kAttachBoundNs;
    std::uint32_t slot = kNoSlot;
    do {
        status = state->join(folder, device, joining, slot);
    } while (status == Status::kNotReady && monotonic_ns() < deadline_ns);
    if (status != Status::kOk) {
        // A life lock that was taken must stay mapped.
        if (state->life.storage != nullptr) state->mapping.leak();
        return nullptr;
    }
    client->slot_ = slot;
    client->segment_ = state->mapping.get();
    client->state_ = std::move(state);
    return client;
}

Client::~Client() {
    if (state_ == nullptr) return;
    if (!state_->usable() || !state_->leave(slot_)) state_->mapping.leak();
}

Wait Client::acquire(std::uint64_t deadline_ns) noexcept {
    State& state = *state_;
    if (!state.usable()) return Wait::kFault;
    if (state.aborted.load(std::memory_order_acquire)) return Wait::kAborted;
    if (holding()) return Wait::kGranted;

    ClientSlot& mine = segment_->clients[slot_];
    bool waiting = false;  // counted in waiting_threads
    for (;;) {
        std::uint32_t seen = 0;
        std::uint64_t wake_ns = 0;
        {
            Transaction transaction(*segment_, slot_);
            if (transaction.status() != Status::kOk || !state.owns(slot_)) break;
            Wakes& wakes = transaction.wakes();
            const std::uint64_t now_ns = monotonic_ns();
            const auto stop_waiting = [&] {
                if (waiting) --state.waiting_threads;
                waiting = false;
            };
            if (state.aborted.load(std::memory_order_acquire)) {
                stop_waiting();
                if (state.waiting_threads == 0) {
                    withdraw(*segment_, slot_, now_ns, wakes);
                    // A turn that came for these threads only.
                    if (!holding()) crossover::release(*segment_, slot_, now_ns, wakes);
                }
                return Wait::kAborted;
            }
            expire(*segment_, now_ns, wakes);
            // Also when nothing is waited for: a dead neighbour makes this job look contended.
            if (contended() && state.sweep_due(now_ns)) {
                reap_dead_clients(*segment_, slot_, now_ns, wakes);
            }
            bool granted = request(*segment_, slot_, now_ns, wakes);
            if (!granted && reap_dead_holders(*segment_, slot_, now_ns, wakes) != 0) {
                // Where one died there may be more, and each would get its turn before it is found.
                reap_dead_clients(*segment_, slot_, now_ns, wakes);
                granted = mine.claims.load(std::memory_order_relaxed) != 0;
            }
            if (granted) {
                stop_waiting();
                const std::uint64_t word =
                    segment_->arbitration.turn.word.load(std::memory_order_relaxed);
                if (held_word_.exchange(word, std::memory_order_release) != word) {
                    state.claim_since_ns = now_ns;
                }
                return transaction.finish() == Status::kOk ? Wait::kGranted : fault();
            }
            if (now_ns >= deadline_ns) {
                stop_waiting();
                if (state.waiting_threads == 0) withdraw(*segment_, slot_, now_ns, wakes);
                return Wait::kTimedOut;
            }
            if (!waiting) ++state.waiting_threads;
            waiting = true;
            seen = mine.grant.load(std::memory_order_acquire);
            wake_ns = std::min({deadline_ns, lease_end_ns(*segment_), now_ns + kLookPeriodNs});
        }
        futex_wait(mine.grant, seen, wake_ns);
        if (!state.usable()) break;
    }
    return fault();
}

std::uint64_t Client::release() noexcept {
    State& state = *state_;
    if (held_word_.load(std::memory_order_acquire) == 0 || !state.usable()) return 0;
    Transaction transaction(*segment_, slot_);
    if (transaction.status() != Status::kOk || !state.owns(slot_)) {
        fault();
        return 0;
    }
    const std::uint64_t now_ns = monotonic_ns();
    const std::uint64_t word = held_word_.exchange(0, std::memory_order_acq_rel);
    if (word == 0) return 0;
    // After an expiry a claim there is belongs to threads that wait for the next turn.
    if (word == segment_->arbitration.turn.word.load(std::memory_order_relaxed)) {
        crossover::release(*segment_, slot_, now_ns, transaction.wakes());
    }
    return now_ns - state.claim_since_ns;
}

bool Client::usable() const noexcept { return state_->usable(); }

Wait Client::fault() noexcept {
    held_word_.store(0, std::memory_order_release);
    state_->fault(slot_);
    return Wait::kFault;
}

void Client::let_go() noexcept {
    state_->aborted.store(true, std::memory_order_release);
    if (!state_->usable()) return;
    ClientSlot& mine = segment_->clients[slot_];
    mine.grant.fetch_add(1, std::memory_order_release);
    futex_wake_all(mine.grant);
}

void Client::allow() noexcept { state_->aborted.store(false, std::memory_order_release); }

Status Client::rekey(const JobIdentity& job) noexcept {
    if (job.key == 0) return Status::kSystem;
    if (!state_->usable()) return Status::kDetached;
    Transaction transaction(*segment_, slot_);
    if (transaction.status() != Status::kOk || !state_->owns(slot_)) {
        fault();
        return transaction.status() != Status::kOk ? transaction.status() : Status::kDetached;
    }
    const Status status =
        rekey_client(*segment_, slot_, job.key, name_of(job), monotonic_ns(), transaction.wakes());
    if (status == Status::kOk && job.key != state_->job_key.load(std::memory_order_relaxed)) {
        held_word_.store(0, std::memory_order_release);
        state_->note_job(slot_);
    }
    return status;
}

std::uint32_t Client::sleep(std::uint32_t seen, std::uint64_t deadline_ns) noexcept {
    if (!state_->usable()) return seen;
    const std::uint64_t now_ns = monotonic_ns();
    if (contended() && state_->sweep_due(now_ns)) {
        // A dead neighbour that nobody waits for would make this job look contended for ever.
        Transaction transaction(*segment_, slot_);
        if (transaction.status() != Status::kOk || !state_->owns(slot_)) {
            fault();
            return seen;
        }
        reap_dead_clients(*segment_, slot_, now_ns, transaction.wakes());
    }
    futex_wait(segment_->clients[slot_].notice, seen, deadline_ns);
    return notice();
}

std::uint32_t Client::notice() const noexcept {
    return segment_->clients[slot_].notice.load(std::memory_order_acquire);
}

void Client::wake() noexcept {
    if (!state_->usable()) return;
    ClientSlot& mine = segment_->clients[slot_];
    mine.notice.fetch_add(1, std::memory_order_release);
    futex_wake_all(mine.notice);
}

void Client::set_phase(ClientPhase phase, std::uint64_t now_ns) noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    ClientSlot& mine = segment_->clients[slot_];
    mine.phase.store(phase, std::memory_order_relaxed);
    mine.phase_ns.store(now_ns, std::memory_order_relaxed);
}

void Client::count_window() noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    segment_->clients[slot_].windows.fetch_add(1, std::memory_order_relaxed);
}

void Client::count_crossing() noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    segment_->clients[slot_].crossings.fetch_add(1, std::memory_order_relaxed);
}

void Client::add_exposed(std::uint64_t ns) noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    segment_->clients[slot_].exposed_ns.fetch_add(ns, std::memory_order_relaxed);
}

void Client::add_communicated(std::uint64_t ns) noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    segment_->clients[slot_].communicated_ns.fetch_add(ns, std::memory_order_relaxed);
}

void Client::record(EventKind kind, std::uint64_t value, std::uint64_t now_ns) noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    EventRecord event;
    event.time_ns = now_ns;
    event.value = value;
    event.kind = kind;
    event.client = slot_ + 1;
    event.job = static_cast<std::uint16_t>(state_->job_index.load(std::memory_order_relaxed) + 1);
    event.job_key = state_->job_key.load(std::memory_order_relaxed);
    append_event(*segment_, event);
}

void Client::set_mode(Mode mode) noexcept {
    if (state_->faulted.load(std::memory_order_relaxed)) return;
    segment_->clients[slot_].mode.store(static_cast<std::uint32_t>(mode),
                                        std::memory_order_relaxed);
}

void Client::abandon_after_fork() noexcept {
    state_->abandoned.store(true, std::memory_order_relaxed);
    held_word_.store(0, std::memory_order_release);
}

}  // namespace crossover
