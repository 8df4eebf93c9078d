// SPDX-License-Identifier: Apache-2.0
// A client: attaching, transactions on the segment, and faults. Sleeping between them stands in
// client_sleep.cpp, what others see of a client in client_report.cpp, what a transition does in
// state.cpp.
//
// holding() compares held_ with the segment's turn word, or reads held_ alone where the segment is
// a file, which a launch must not touch. Who sets held_ has seen the claim in the segment, and
// looks again afterwards (take()); who takes the claim away, in whatever process, adds to this
// client's notice, and the watcher then looks (look()). Both do so by a read-modify-write of held_,
// and these stand in one order: the later of the two sees what the earlier one saw or wrote.
#include "arbiter/client.hpp"

#include <signal.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <new>
#include <string_view>

#include "arbiter/client_state.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/liveness.hpp"
#include "arbiter/policy.hpp"
#include "arbiter/process_id.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

std::string_view name_of(const JobIdentity& job) noexcept {
    return {job.name, strnlen(job.name, sizeof job.name)};
}

pid_t thread_id() noexcept { return static_cast<pid_t>(syscall(SYS_gettid)); }

constexpr std::uint64_t over(std::uint64_t held) noexcept { return held & ~kTurnJobMask; }

}  // namespace

std::unique_ptr<Client> Client::attach(const DeviceUuid& device, const JobIdentity& job,
                                       std::uint32_t ordinal, const Options& options,
                                       Status& status) noexcept {
    status = Status::kSystem;
    if (job.key == 0) return nullptr;
    std::unique_ptr<Client> client(new (std::nothrow) Client);
    std::unique_ptr<State> state(new (std::nothrow) State);
    std::unique_ptr<Attachment> at(new (std::nothrow) Attachment);
    if (client == nullptr || state == nullptr || at == nullptr) return nullptr;

    status = choose_folder(options.dir, true, state->folder);
    if (status != Status::kOk) return nullptr;
    state->folder.in_files = options.memory != 0;

    state->pid = process_id();
    state->thread = thread_id();
    state->device = device;
    state->set_job(job);
    state->joining.pid = static_cast<std::uint32_t>(state->pid);
    state->joining.ordinal = ordinal;
    state->joining.mode = options.mode;
    state->joining.fixed_lease_ns = options.lease_ms * 1'000'000;
    state->joining.weight = static_cast<std::uint32_t>(options.weight);

    Status replaced = Status::kOk;
    status = at->join(state->folder, device, state->joining, replaced);
    if (status != Status::kOk) return nullptr;
    state->replaced.store(replaced, std::memory_order_relaxed);
    state->joined.store(1, std::memory_order_relaxed);
    client->state_ = std::move(state);
    client->use(at.release());
    return client;
}

// Segments that were left stay mapped while the client lives, so a launch may still look there.
void Client::use(Attachment* at) noexcept {
    turn_word_.store(at->mapping.cuttable() ? &held_ : &at->segment().arbitration.turn.word,
                     std::memory_order_release);
    at_.store(at, std::memory_order_release);
}

Client::~Client() {
    Attachment* at = at_.load(std::memory_order_acquire);
    const bool ours = state_ != nullptr && !state_->abandoned.load() && process_id() == state_->pid;
    for (bool newest = true; at != nullptr; newest = false) {
        Attachment* const older = at->older;
        if (!ours) {
            at->mapping.leak();
        } else if (newest) {
            at->leave();
        } else if (at->life.storage != nullptr) {
            at->mapping.leak();
        }
        delete at;
        at = older;
    }
}

// ------------------------------------------------------------------------------------------ faults

// In a forked child nothing is this process's, whether it was told or not.
Attachment* Client::usable_attachment() const noexcept {
    Attachment* at = at_.load(std::memory_order_acquire);
    return at->lost.load(std::memory_order_acquire) ||
                   state_->abandoned.load(std::memory_order_relaxed) || process_id() != state_->pid
               ? nullptr
               : at;
}

bool Client::usable() const noexcept { return usable_attachment() != nullptr; }

Attachment* Client::touchable() const noexcept {
    Attachment* at = usable_attachment();
    return at != nullptr && at->whole() ? at : nullptr;
}

Attachment* Client::touchable_or_fault() noexcept {
    Attachment* at = usable_attachment();
    if (at != nullptr && !at->whole()) {
        fault(*at, Status::kCut);
        return nullptr;
    }
    return at;
}

// A word of this process that its own threads sleep on.
void Client::bump(std::atomic<std::uint32_t>& own) noexcept {
    own.fetch_add(1, std::memory_order_release);
    futex_wake_all(own);
}

// This client uses the segment no more, and unless it is this client alone that is concerned, nor
// does anybody else.
Wait Client::fault(Attachment& at, Status why) noexcept {
    if (process_id() != state_->pid) return Wait::kFault;
    // A second thread may be late, and what is held by then be a turn of the next segment.
    if (at.lost.exchange(true)) return Wait::kFault;
    // After `lost`: take() looks at that once it has written.
    std::uint64_t held = held_.load(std::memory_order_seq_cst);
    while ((held & kTurnJobMask) != 0 && !held_.compare_exchange_weak(held, over(held))) {
    }
    state_->fault.store(why, std::memory_order_relaxed);
    // Reaped: by right when the attaching thread has ended, else its slot was overwritten.
    const bool reaped =
        why == Status::kDetached && syscall(SYS_tgkill, state_->pid, state_->thread, 0) != 0;
    if (!reaped) at.give_up_for(why);
    bump(state_->own_grant);
    bump(state_->own_notice);
    return Wait::kFault;
}

// ------------------------------------------------------------------------------------- transitions

// The claim was seen in the segment, under turn `word`; `before` is what held_ was then. False: it
// is not so any more.
//
// Also the guard of a thread that was stopped inside a transition while the others gave the segment
// up: it goes on, stores the turn word and comes here. If the mark is seen, before held_ is set or
// after, it ends here. If not, the mark is set later than held_, this client's notice is added to
// later still, and look(), which looks for the mark before the word, ends the holding.
bool Client::take(Attachment& at, std::uint64_t before, std::uint64_t word) noexcept {
    if (given_up(at.segment())) return false;
    if (before != word) {
        state_->claim_since_ns.store(monotonic_ns(), std::memory_order_relaxed);
        if (!held_.compare_exchange_strong(before, word) && before != word) return false;
    }
    if (at.segment().arbitration.turn.word.load(std::memory_order_seq_cst) == word &&
        at.mine().claims.load(std::memory_order_relaxed) == 1 && !given_up(at.segment()) &&
        !at.lost.load(std::memory_order_seq_cst)) {
        return true;
    }
    held_.compare_exchange_strong(word, over(word));
    return false;
}

// After a wake: whoever granted the turn has written the claim, then the turn word is read twice
// around it. A turn that this client has given back before is not taken this way: the claim may be
// an old one, and its end in between would not be noticed.
bool Client::take_lockless(Attachment& at) noexcept {
    if (at.lost.load(std::memory_order_acquire) || !at.whole()) return false;
    const std::uint64_t before = held_.load(std::memory_order_acquire);
    const Turn& turn = at.segment().arbitration.turn;
    const std::uint64_t word = turn.word.load(std::memory_order_acquire);
    if ((word & kTurnJobMask) != at.job_index.load(std::memory_order_relaxed) + 1 ||
        at.mine().claims.load(std::memory_order_acquire) != 1 ||
        at.mine().attached.load(std::memory_order_relaxed) != 1) {
        return false;
    }
    if (before != word && over(before) == over(word)) return false;
    return take(at, before, word);
}

Wait Client::acquire(std::uint64_t deadline_ns) noexcept {
    State& state = *state_;
    Attachment* const here = touchable_or_fault();
    if (here == nullptr) return Wait::kFault;
    Attachment& at = *here;
    const std::uint32_t let_gos = state.let_gos.load(std::memory_order_acquire);
    const auto aborted = [&] {
        return state.aborted.load(std::memory_order_acquire) ||
               state.let_gos.load(std::memory_order_acquire) != let_gos;
    };
    if (aborted()) return Wait::kAborted;
    ClientSlot& mine = at.mine();
    const Turn& turn = at.segment().arbitration.turn;
    if (holding() &&
        held_.load(std::memory_order_acquire) == turn.word.load(std::memory_order_acquire)) {
        return Wait::kGranted;
    }

    bool waiting = false;  // counted in waiting_threads
    const auto stop_waiting = [&] {
        if (waiting) at.waiting_threads.fetch_sub(1);
        waiting = false;
    };
    const auto granted_now = [&] {
        stop_waiting();
        if (state.stalled.load(std::memory_order_relaxed)) {
            mine.stalled_ns.store(0, std::memory_order_release);
            state.stalled.store(false, std::memory_order_release);
        }
        return Wait::kGranted;
    };
    Status why = Status::kOk;
    // Also when nothing is waited for: a dead neighbour makes this job look contended.
    bool dead_seen = turn.active_jobs.load(std::memory_order_acquire) > 1 && dead_around(at);
    for (;;) {
        std::uint32_t grant = 0;
        std::uint64_t wake_ns = 0;
        const std::uint32_t own = state.own_grant.load(std::memory_order_acquire);
        {
            Transaction transaction = at.begin();
            why = transaction.status();
            if (why == Status::kOk && !at.owns()) why = Status::kDetached;
            if (why != Status::kOk) break;
            Wakes& wakes = transaction.wakes();
            Segment& segment = at.segment();
            const std::uint64_t now_ns = monotonic_ns();
            if (aborted()) {
                stop_waiting();
                if (at.waiting_threads.load() == 0) {
                    withdraw(segment, at.slot, now_ns, wakes);
                    // A turn that came for these threads only.
                    if (held_.load() != turn.word.load(std::memory_order_relaxed)) {
                        crossover::release(segment, at.slot, now_ns, wakes);
                    }
                }
                why = transaction.finish();
                if (why != Status::kOk) break;
                return Wait::kAborted;
            }
            expire(segment, now_ns, wakes);
            if (dead_seen) {
                state.counts.sweeps.fetch_add(1, std::memory_order_relaxed);
                reap_dead_clients(segment, at.slot, now_ns, wakes);
            }
            bool granted = request(segment, at.slot, now_ns, wakes);
            if (!granted && reap_dead_holders(segment, at.slot, now_ns, wakes) != 0) {
                // Where one died there may be more, and each would get its turn before it is found.
                reap_dead_clients(segment, at.slot, now_ns, wakes);
                granted = mine.claims.load(std::memory_order_relaxed) != 0;
            }
            if (granted) {
                const std::uint64_t word = turn.word.load(std::memory_order_relaxed);
                const bool taken = take(at, held_.load(), word);
                why = transaction.finish();
                if (!taken && why == Status::kOk) continue;
                if (why != Status::kOk) break;
                return granted_now();
            }
            if (now_ns >= deadline_ns) {
                stop_waiting();
                if (at.waiting_threads.load() == 0) withdraw(segment, at.slot, now_ns, wakes);
                why = transaction.finish();
                if (why != Status::kOk) break;
                return Wait::kTimedOut;
            }
            if (!waiting) at.waiting_threads.fetch_add(1);
            waiting = true;
            grant = mine.grant.load(std::memory_order_acquire);
            wake_ns = std::min(deadline_ns, lease_end_ns(segment));
        }
        sleep_for_turn(at, grant, own, wake_ns, dead_seen);
        if (!usable() || &at != at_.load(std::memory_order_acquire)) {
            why = Status::kGivenUp;
            break;
        }
        if (!dead_seen && !aborted() && take_lockless(at)) {
            state.counts.lockless.fetch_add(1, std::memory_order_relaxed);
            return granted_now();
        }
    }
    stop_waiting();
    return fault(at, why);
}

std::uint64_t Client::release() noexcept {
    std::uint64_t word = held_.load(std::memory_order_acquire);
    if ((word & kTurnJobMask) == 0) return 0;
    Attachment* const at = touchable_or_fault();
    if (at == nullptr) return 0;
    Transaction transaction = at->begin();
    if (transaction.status() != Status::kOk || !at->owns()) {
        fault(*at, transaction.status() != Status::kOk ? transaction.status() : Status::kDetached);
        return 0;
    }
    const std::uint64_t now_ns = monotonic_ns();
    word = held_.load(std::memory_order_acquire);
    if ((word & kTurnJobMask) == 0) return 0;
    const std::uint64_t since_ns = state_->claim_since_ns.load(std::memory_order_relaxed);
    // After an expiry a claim there is belongs to threads that wait for the next turn.
    if (word == at->segment().arbitration.turn.word.load(std::memory_order_relaxed)) {
        crossover::release(at->segment(), at->slot, now_ns, transaction.wakes());
    }
    // Fails where a waiting thread has taken the next turn meanwhile.
    held_.compare_exchange_strong(word, over(word));
    if (const Status finished = transaction.finish(); finished != Status::kOk) {
        fault(*at, finished);
    }
    return now_ns - std::min(now_ns, since_ns);
}

void Client::phase_over(std::uint64_t phase_ns) noexcept {
    Attachment* const at = touchable_or_fault();
    if (at == nullptr) return;
    // A hint: most phases end with their turn.
    const std::uint32_t index = job_of(at->mine());
    if (index >= kMaxJobs || recent_cut_ns(at->segment().jobs[index].recent_turn_ns) == 0) return;
    Transaction transaction = at->begin();
    Status status = transaction.status();
    if (status == Status::kOk && !at->owns()) status = Status::kDetached;
    if (status == Status::kOk) {
        crossover::phase_over(at->segment(), at->slot, phase_ns);
        status = transaction.finish();
    }
    if (status != Status::kOk) fault(*at, status);
}

void Client::let_go() noexcept {
    state_->aborted.store(true, std::memory_order_release);
    state_->let_gos.fetch_add(1, std::memory_order_release);
    if (process_id() != state_->pid) return;
    bump(state_->own_grant);
    if (!futex_many_refused()) return;
    if (Attachment* at = touchable()) bump(at->mine().grant);
}

void Client::allow() noexcept { state_->aborted.store(false, std::memory_order_release); }

Status Client::rekey(const JobIdentity& job) noexcept {
    if (job.key == 0) return Status::kSystem;
    if (state_->abandoned.load() || process_id() != state_->pid) return Status::kDetached;
    const std::lock_guard<std::mutex> guard(state_->moving);
    Attachment* const at = touchable_or_fault();
    if (at == nullptr) {
        // It joins the next segment under this job.
        state_->set_job(job);
        return Status::kOk;
    }
    Transaction transaction = at->begin();
    Status status = transaction.status();
    if (status == Status::kOk && !at->owns()) status = Status::kDetached;
    if (status != Status::kOk) {
        fault(*at, status);
        return status;
    }
    status = rekey_client(at->segment(), at->slot, job.key, name_of(job), monotonic_ns(),
                          transaction.wakes());
    if (status != Status::kOk) return status;
    if (job.key != at->job_key.load(std::memory_order_relaxed)) {
        at->note_job();
        std::uint64_t held = held_.load();
        while ((held & kTurnJobMask) != 0 && !held_.compare_exchange_weak(held, over(held))) {
        }
    }
    state_->set_job(job);
    return Status::kOk;
}

void Client::abandon_after_fork() noexcept {
    state_->abandoned.store(true, std::memory_order_relaxed);
    held_.store(0, std::memory_order_release);
}

}  // namespace crossover
