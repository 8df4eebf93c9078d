// SPDX-License-Identifier: Apache-2.0
// Transitions: each changes the truth of one client or of the turn, then settle() derives the rest,
// ends a turn without claims, grants a free one and starts or stops the lease.
#include "arbiter/state.hpp"

#include <algorithm>
#include <cstring>

#include "arbiter/policy.hpp"
#include "arbiter/ring.hpp"

namespace crossover {
namespace {

constexpr auto kRelaxed = std::memory_order_relaxed;

std::uint32_t counted_weight(const JobSlot& job) noexcept { return std::max(job.weight, 1U); }

std::uint64_t since(std::uint64_t now_ns, std::uint64_t then_ns) noexcept {
    return now_ns > then_ns ? now_ns - then_ns : 0;
}

void set_attached(Segment& segment, std::uint32_t slot, bool attached) noexcept {
    const std::uint64_t bit = std::uint64_t{1} << (slot % 64);
    std::atomic<std::uint64_t>& word = segment.arbitration.client_set[slot / 64];
    word.store(attached ? word.load(kRelaxed) | bit : word.load(kRelaxed) & ~bit, kRelaxed);
    segment.clients[slot].attached.store(attached ? 1 : 0, std::memory_order_release);
}

void set_used(Segment& segment, std::size_t job, bool used) noexcept {
    static_assert(kMaxJobs <= 32);
    std::atomic<std::uint32_t>& set = segment.arbitration.turn.job_set;
    const std::uint32_t bit = std::uint32_t{1} << job;
    set.store(used ? set.load(kRelaxed) | bit : set.load(kRelaxed) & ~bit, kRelaxed);
}

// One transition under way. `actor` is the client that causes it, for the events.
class Transition {
  public:
    Transition(Segment& segment, std::uint32_t actor, std::uint64_t now_ns, Wakes& wakes) noexcept
        : segment_(segment), actor_(actor), now_ns_(now_ns), wakes_(wakes) {
        if (segment_.arbitration.round == 0) segment_.arbitration.round = 1;
    }

    void settle() noexcept {
        recount();
        std::size_t holder = turn_holder(segment_);
        if (holder != kNoJob && segment_.jobs[holder].claims == 0) {
            end_turn(holder, false);
            holder = kNoJob;
        }
        if (holder == kNoJob) holder = grant_next();
        if (holder != kNoJob) lease(holder);
    }

    void end_turn(std::size_t index, bool cut_by_lease) noexcept {
        JobSlot& job = segment_.jobs[index];
        // Taken before it is counted: whoever ends the turn again, after a death in here, finds 0.
        const std::uint64_t since_ns = job.turn_since_ns;
        job.turn_since_ns = 0;
        std::atomic_signal_fence(std::memory_order_seq_cst);
        const std::uint64_t held = since_ns != 0 ? since(now_ns_, since_ns) : 0;
        job.held_ns += held;
        // A job that is alone may keep its turn for hours; what counts is the part beside others,
        // from the grant on: who waits comes late or early, a lease must cover the whole turn.
        const std::uint64_t shared = segment_.arbitration.shared_since_ns;
        if (shared != 0 && since_ns != 0) {
            const std::uint64_t beside = since(now_ns_, std::max(since_ns, shared));
            job.recent_turn_ns = updated_recent_turn_ns(job.recent_turn_ns, beside, cut_by_lease);
            if (by_weight()) job.debt_ns = debt_after_turn(job.debt_ns, beside);
        }
        job.lease_from_ns = 0;
        job.lease_ns = 0;
        attached_clients(segment_).for_each([&](std::uint32_t slot) {
            ClientSlot& client = segment_.clients[slot];
            if (!belongs(client, index) || client.claims.load(kRelaxed) == 0) return;
            client.claims.store(0, kRelaxed);
            notify(slot);
        });
        segment_.arbitration.turn.word.store(turn_number(segment_) << 16,
                                             std::memory_order_release);
        if (cut_by_lease) ++segment_.arbitration.expired_count;
        log(cut_by_lease ? EventKind::kExpire : EventKind::kRelease, held, index);
        recount();
    }

    // Derives job counts, job states and the counts of the turn line from the client slots.
    void recount() noexcept {
        struct Tally {
            std::uint32_t clients = 0, claims = 0, waiters = 0;
        } tallies[kMaxJobs];
        const std::size_t holder = turn_holder(segment_);
        attached_clients(segment_).for_each([&](std::uint32_t slot) {
            ClientSlot& client = segment_.clients[slot];
            const std::uint32_t index = job_of(client);
            if (client.attached.load(kRelaxed) == 0 || index >= kMaxJobs ||
                segment_.jobs[index].key == 0) {
                set_attached(segment_, slot, false);  // only damage makes it so
                return;
            }
            const bool holds = index == holder;
            if (!holds) client.claims.store(0, kRelaxed);
            const bool claims = client.claims.load(kRelaxed) != 0;
            if (claims) client.waits.store(0, kRelaxed);
            Tally& tally = tallies[index];
            ++tally.clients;
            tally.claims += claims ? 1 : 0;
            tally.waiters += client.waits.load(kRelaxed) != 0 ? 1 : 0;
        });
        std::uint32_t active = 0;
        std::uint32_t waiting = 0;
        bool new_waiter = false;
        if (holder != kNoJob && tallies[holder].clients == 0) {
            segment_.arbitration.turn.word.store(turn_number(segment_) << 16,
                                                 std::memory_order_release);
        }
        each_job([&](std::size_t i) {
            JobSlot& job = segment_.jobs[i];
            if (tallies[i].clients == 0) {
                job = JobSlot{};
                set_used(segment_, i, false);
                return;
            }
            job.clients = tallies[i].clients;
            job.claims = tallies[i].claims;
            job.waiters = tallies[i].waiters;
            if (i != holder) {
                job.turn_since_ns = 0;
                job.lease_from_ns = 0;
                job.lease_ns = 0;
            }
            ++active;
            const JobState state = i == holder       ? JobState::kHolding
                                   : job.waiters > 0 ? JobState::kWaiting
                                                     : JobState::kIdle;
            if (state == JobState::kWaiting) ++waiting;
            if (state != job.state) {
                if (job.state == JobState::kWaiting) {
                    job.waited_ns += since(now_ns_, job.wait_since_ns);
                }
                if (state == JobState::kWaiting) {
                    job.wait_since_ns = now_ns_;
                    new_waiter = true;
                    log(EventKind::kWait, 0, i);
                }
                job.state = state;
            }
        });
        std::uint64_t& shared = segment_.arbitration.shared_since_ns;
        shared = active < 2 ? 0 : shared != 0 ? shared : now_ns_;
        segment_.arbitration.turn.active_jobs.store(active, std::memory_order_release);
        segment_.arbitration.turn.waiting_jobs.store(waiting, std::memory_order_release);
        if (new_waiter) notify_job(turn_holder(segment_));
    }

    void notify(std::uint32_t slot) noexcept {
        segment_.clients[slot].notice.fetch_add(1, std::memory_order_release);
        wakes_.notices.add(slot);
    }

    void notify_all_but_actor() noexcept {
        attached_clients(segment_).for_each([this](std::uint32_t slot) {
            if (slot != actor_) notify(slot);
        });
    }

    void grant_to(std::uint32_t slot) noexcept {
        ClientSlot& client = segment_.clients[slot];
        client.claims.store(1, kRelaxed);
        client.waits.store(0, kRelaxed);
        client.grant.fetch_add(1, std::memory_order_release);
        wakes_.grants.add(slot);
    }

    void log(EventKind kind, std::uint64_t value, std::size_t job) noexcept {
        EventRecord event;
        event.time_ns = now_ns_;
        event.value = value;
        event.kind = kind;
        event.client = actor_ < kMaxClients ? actor_ + 1 : 0;
        if (job < kMaxJobs) {
            event.job = static_cast<std::uint16_t>(job + 1);
            event.job_key = segment_.jobs[job].key;
        }
        append_event(segment_, event);
    }

  private:
    static bool belongs(const ClientSlot& client, std::size_t job) noexcept {
        return client.attached.load(kRelaxed) != 0 && client.job == job;
    }

    template <class Visit>
    void each_job(Visit&& visit) const noexcept {
        std::uint32_t rest = segment_.arbitration.turn.job_set.load(kRelaxed);
        for (; rest != 0; rest &= rest - 1) visit(std::size_t(std::countr_zero(rest)));
    }

    bool by_weight() const noexcept {
        bool any = false;
        each_job([&](std::size_t i) { any = any || segment_.jobs[i].weight != 0; });
        return any;
    }

    void notify_job(std::size_t job) noexcept {
        if (job >= kMaxJobs) return;
        attached_clients(segment_).for_each([&](std::uint32_t slot) {
            if (belongs(segment_.clients[slot], job)) notify(slot);
        });
    }

    // Every waiting client of the job joins its turn.
    void admit_waiters(std::size_t job) noexcept {
        attached_clients(segment_).for_each([&](std::uint32_t slot) {
            const ClientSlot& client = segment_.clients[slot];
            if (belongs(client, job) && client.waits.load(kRelaxed) != 0) grant_to(slot);
        });
    }

    std::size_t grant_next() noexcept {
        Arbitration& arbitration = segment_.arbitration;
        if (arbitration.turn.waiting_jobs.load(kRelaxed) == 0) return kNoJob;
        std::array<JobView, kMaxJobs> views;
        std::array<std::size_t, kMaxJobs> slots;
        std::size_t count = 0;
        each_job([&](std::size_t i) {
            const JobSlot& job = segment_.jobs[i];
            slots[count] = i;
            views[count++] = {job.key,
                              job.state == JobState::kWaiting,
                              false,
                              job.last_round,
                              job.weight,
                              job.debt_ns,
                              expected_turn_ns(job.recent_turn_ns, job.fixed_lease_ns)};
        });
        const Grant grant = next_grant({views.data(), count}, arbitration.round);
        if (grant.job == kNoJob) return kNoJob;
        for (std::size_t i = 0; i < count; ++i) {
            segment_.jobs[slots[i]].debt_ns = debt_after(views[i], grant, i == grant.job);
        }
        const std::size_t index = slots[grant.job];
        JobSlot& job = segment_.jobs[index];
        const std::uint64_t waited = since(now_ns_, job.wait_since_ns);
        arbitration.round = grant.round;
        job.last_round = grant.round;
        job.turn_since_ns = now_ns_;
        ++job.turns;
        ++arbitration.turn_count;
        // Who takes the turn without the lock must not see itself among those who wait for it.
        const std::uint32_t waiting = arbitration.turn.waiting_jobs.load(kRelaxed);
        arbitration.turn.waiting_jobs.store(waiting - std::min(waiting, 1U),
                                            std::memory_order_release);
        arbitration.turn.word.store((turn_number(segment_) + 1) << 16 | (index + 1),
                                    std::memory_order_release);
        admit_waiters(index);
        log(EventKind::kGrant, waited, index);
        recount();
        return index;
    }

    void lease(std::size_t holder) noexcept {
        JobSlot& job = segment_.jobs[holder];
        if (segment_.arbitration.turn.waiting_jobs.load(kRelaxed) == 0) {
            job.lease_from_ns = 0;
            job.lease_ns = 0;
            if (job.waiters != 0) {  // its own late-comers: nobody else wants the turn any more
                admit_waiters(holder);
                recount();
            }
        } else if (job.lease_from_ns == 0) {
            std::uint32_t least_weight = UINT32_MAX;
            each_job([&](std::size_t i) {
                least_weight = std::min(least_weight, counted_weight(segment_.jobs[i]));
            });
            job.lease_ns = crossover::lease_ns(job.recent_turn_ns, job.fixed_lease_ns,
                                               counted_weight(job), least_weight);
            job.lease_from_ns = now_ns_;
        }
    }

    Segment& segment_;
    std::uint32_t actor_;
    std::uint64_t now_ns_;
    Wakes& wakes_;
};

void set_name(JobSlot& job, std::string_view name) noexcept {
    std::memset(job.name, 0, sizeof job.name);
    name.copy(job.name, sizeof job.name - 1);
}

// The slot of the job with that key, or a free one, or kNoJob.
std::size_t job_slot(const Segment& segment, std::uint64_t key) noexcept {
    std::size_t free = kNoJob;
    for (std::size_t i = 0; i < kMaxJobs; ++i) {
        if (segment.jobs[i].key == key) return i;
        if (segment.jobs[i].key == 0 && free == kNoJob) free = i;
    }
    return free;
}

bool usable(const Segment& segment, std::uint32_t slot) noexcept {
    return slot < kMaxClients && segment.clients[slot].attached.load(kRelaxed) != 0 &&
           segment.clients[slot].job < kMaxJobs;
}

void leave(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes,
           EventKind kind) noexcept {
    if (!usable(segment, slot)) return;
    Transition transition(segment, slot, now_ns, wakes);
    ClientSlot& client = segment.clients[slot];
    transition.log(kind, client.pid, client.job);
    set_attached(segment, slot, false);
    client.claims.store(0, kRelaxed);
    client.waits.store(0, kRelaxed);
    // The turn ends while its job's slot still says whose it was.
    const std::size_t holder = turn_holder(segment);
    if (holder == client.job) {
        std::uint32_t claims = 0;
        attached_clients(segment).for_each([&](std::uint32_t index) {
            const ClientSlot& other = segment.clients[index];
            if (other.job == holder) claims += other.claims.load(kRelaxed);
        });
        if (claims == 0) transition.end_turn(holder, false);
    }
    transition.settle();
    transition.notify_all_but_actor();
}

}  // namespace

Status attach_client(Segment& segment, std::uint32_t slot, const Joining& joining,
                     std::uint64_t now_ns, Wakes& wakes) noexcept {
    const std::size_t index = job_slot(segment, joining.job_key);
    if (index == kNoJob) return Status::kFull;
    Transition transition(segment, slot, now_ns, wakes);
    JobSlot& job = segment.jobs[index];
    if (job.key == 0) {
        job = JobSlot{};
        set_name(job, joining.job_name);
        job.state = JobState::kIdle;
        job.key = joining.job_key;
        set_used(segment, index, true);
    }
    job.fixed_lease_ns = joining.fixed_lease_ns;
    job.weight = std::min(joining.weight, kMaxWeight);

    ClientSlot& client = segment.clients[slot];
    client.job = static_cast<std::uint32_t>(index);
    client.pid = joining.pid;
    client.ordinal = joining.ordinal;
    // Distinct from the slot's last use, so that a client can tell that a slot is no longer its
    // own.
    client.attached_ns = now_ns == client.attached_ns ? now_ns + 1 : now_ns;
    client.claims.store(0, kRelaxed);
    client.waits.store(0, kRelaxed);
    client.phase.store(ClientPhase::kUnknown, kRelaxed);
    client.mode.store(joining.mode, kRelaxed);
    client.phase_ns.store(now_ns, kRelaxed);
    client.windows.store(0, kRelaxed);
    client.crossings.store(0, kRelaxed);
    client.exposed_ns.store(0, kRelaxed);
    client.communicated_ns.store(0, kRelaxed);
    client.released_turn = 0;
    set_attached(segment, slot, true);
    transition.log(EventKind::kAttach, joining.pid, index);
    transition.settle();
    transition.notify_all_but_actor();
    return Status::kOk;
}

void detach_client(Segment& segment, std::uint32_t slot, std::uint64_t now_ns,
                   Wakes& wakes) noexcept {
    leave(segment, slot, now_ns, wakes, EventKind::kDetach);
}

void reap_client(Segment& segment, std::uint32_t slot, std::uint64_t now_ns,
                 Wakes& wakes) noexcept {
    if (!usable(segment, slot)) return;
    ++segment.arbitration.reaped_count;
    leave(segment, slot, now_ns, wakes, EventKind::kReap);
}

bool request(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept {
    if (!usable(segment, slot)) return false;
    Transition transition(segment, slot, now_ns, wakes);
    ClientSlot& client = segment.clients[slot];
    const bool job_holds = turn_holder(segment) == client.job;
    if (job_holds && client.claims.load(kRelaxed) != 0) return true;
    const bool wanted = segment.arbitration.turn.waiting_jobs.load(kRelaxed) != 0;
    if (job_holds && !(wanted && client.released_turn == turn_number(segment))) {
        client.claims.store(1, kRelaxed);
        client.waits.store(0, kRelaxed);
    } else {
        client.waits.store(1, kRelaxed);
    }
    transition.settle();
    return client.claims.load(kRelaxed) != 0;
}

void withdraw(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept {
    if (!usable(segment, slot)) return;
    Transition transition(segment, slot, now_ns, wakes);
    segment.clients[slot].waits.store(0, kRelaxed);
    transition.settle();
}

void release(Segment& segment, std::uint32_t slot, std::uint64_t now_ns, Wakes& wakes) noexcept {
    if (!usable(segment, slot)) return;
    ClientSlot& client = segment.clients[slot];
    if (client.claims.load(kRelaxed) == 0) return;
    Transition transition(segment, slot, now_ns, wakes);
    client.claims.store(0, kRelaxed);
    client.released_turn = turn_number(segment);
    transition.settle();
}

void phase_over(Segment& segment, std::uint32_t slot, std::uint64_t phase_ns) noexcept {
    if (!usable(segment, slot)) return;
    const std::uint32_t index = job_of(segment.clients[slot]);
    if (index >= kMaxJobs || turn_holder(segment) == index) return;
    JobSlot& job = segment.jobs[index];
    if (job.waiters == 0) {
        job.recent_turn_ns = recent_after_cut_phase(job.recent_turn_ns, phase_ns);
    }
}

bool expire(Segment& segment, std::uint64_t now_ns, Wakes& wakes) noexcept {
    const std::size_t holder = turn_holder(segment);
    if (holder == kNoJob) return false;
    JobSlot& job = segment.jobs[holder];
    if (job.lease_from_ns == 0) return false;
    // Bounded whatever the fields say.
    job.lease_from_ns = std::min(job.lease_from_ns, now_ns);
    if (now_ns - job.lease_from_ns < std::min(job.lease_ns, kMaxLeaseNs)) return false;
    Transition transition(segment, kNoSlot, now_ns, wakes);
    transition.end_turn(holder, true);
    transition.settle();
    return true;
}

Status rekey_client(Segment& segment, std::uint32_t slot, std::uint64_t key, std::string_view name,
                    std::uint64_t now_ns, Wakes& wakes) noexcept {
    if (!usable(segment, slot)) return Status::kDetached;
    ClientSlot& client = segment.clients[slot];
    const std::uint32_t old_index = job_of(client);
    if (old_index >= kMaxJobs) return Status::kDetached;
    JobSlot& old_job = segment.jobs[old_index];
    if (old_job.key == key) return Status::kOk;
    const std::size_t index = job_slot(segment, key);
    if (index == kNoJob) return Status::kFull;
    const bool waits = client.waits.load(kRelaxed) != 0;
    release(segment, slot, now_ns, wakes);

    Transition transition(segment, slot, now_ns, wakes);
    JobSlot& job = segment.jobs[index];
    if (job.key == 0) {
        job = JobSlot{};
        set_name(job, name);
        job.state = JobState::kIdle;
        job.recent_turn_ns = old_job.recent_turn_ns;
        job.fixed_lease_ns = old_job.fixed_lease_ns;
        job.weight = old_job.weight;
        job.debt_ns = old_job.debt_ns;
        job.key = key;
        set_used(segment, index, true);
    }
    client.released_turn = 0;
    client.claims.store(0, kRelaxed);
    client.job = static_cast<std::uint32_t>(index);
    transition.log(EventKind::kAttach, client.pid, index);
    transition.settle();
    if (waits) request(segment, slot, now_ns, wakes);
    transition.notify_all_but_actor();
    return Status::kOk;
}

void repair(Segment& segment, std::uint64_t now_ns, Wakes& wakes) noexcept {
    for (std::uint32_t slot = 0; slot < kMaxClients; ++slot) {
        set_attached(segment, slot, segment.clients[slot].attached.load(kRelaxed) != 0);
    }
    for (std::size_t i = 0; i < kMaxJobs; ++i) set_used(segment, i, segment.jobs[i].key != 0);
    Transition transition(segment, kNoSlot, now_ns, wakes);
    transition.settle();
    if (const std::size_t holder = turn_holder(segment); holder != kNoJob) {
        JobSlot& job = segment.jobs[holder];
        job.last_round = segment.arbitration.round;
        if (job.turn_since_ns == 0) job.turn_since_ns = now_ns;
    }
    attached_clients(segment).for_each([&](std::uint32_t slot) {
        transition.notify(slot);
        segment.clients[slot].grant.fetch_add(1, std::memory_order_release);
        wakes.grants.add(slot);
    });
}

}  // namespace crossover
