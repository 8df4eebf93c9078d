// SPDX-License-Identifier: Apache-2.0
// How a client sleeps: a thread that waits for the turn, the watcher that waits for news, and the
// watcher of a client whose segment was given up, which joins the device anew. All sleep on several
// words at once, the life locks of the other clients among them, so nobody looks by the clock for
// the dead. Where the kernel does not offer that (before Linux 5.16), they look by the clock.
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <new>

#include "arbiter/client_state.hpp"
#include "arbiter/liveness.hpp"
#include "arbiter/process_id.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

// Of a waiter that nobody woke: who was woken for a dead holder in its place may have been stopped.
constexpr std::uint64_t kLookPeriodNs = 500'000'000;
// Where the kernel wakes nobody for a death.
constexpr std::uint64_t kBlindLookPeriodNs = 50'000'000;
constexpr std::uint64_t kBlindSweepPeriodNs = 1'000'000'000;
// After a sweep that left one, which cannot be told dead: its lock is damaged.
constexpr std::uint64_t kSweepPauseNs = 1'000'000'000;
// Shorter sleeps only look for the dead before; the next one will find who dies meanwhile.
constexpr std::uint64_t kLongSleepNs = 1'000'000'000;
// How often one that is awake anyway looks whether its segment still has its name.
constexpr std::uint64_t kNamePeriodNs = 1'000'000'000;

// Given-up segments stay mapped for threads that still look there.
constexpr std::uint32_t kMostJoined = 24;

constexpr std::size_t kOwnWords = 2;
using Words = std::array<FutexWord, kMostFutexWords>;

}  // namespace

// Of a segment that is whole: ends what it says no more. False: it was given up.
bool Client::look(Attachment& at) noexcept {
    if (at.lost.load(std::memory_order_acquire)) return false;
    if (given_up(at.segment())) {
        fault(at, Status::kGivenUp);
        return false;
    }
    // See client.cpp. First what is held, then the word: a turn taken in between is not ended.
    std::uint64_t held = held_.fetch_or(0, std::memory_order_seq_cst);
    if ((held & kTurnJobMask) != 0 &&
        at.segment().arbitration.turn.word.load(std::memory_order_seq_cst) != held) {
        held_.compare_exchange_strong(held, held & ~kTurnJobMask);
    }
    return true;
}

// Fills `words` with the life locks of the others; true: a sweep is due.
bool Client::watch(Attachment& at, FutexWord* words, std::size_t room,
                   std::size_t& count) noexcept {
    bool gone = false;
    count = watch_clients(at.segment(), at.slot, words, room, gone);
    return gone && monotonic_ns() >= state_->no_sweep_until_ns.load(std::memory_order_relaxed);
}

bool Client::dead_around(Attachment& at) noexcept {
    Words words;
    std::size_t count = 0;
    return watch(at, words.data(), words.size(), count);
}

// `dead_seen`: in, the last sweep has just been; out, a sweep is due and nobody slept.
void Client::sleep_for_turn(Attachment& at, std::uint32_t grant, std::uint32_t own,
                            std::uint64_t wake_ns, bool& dead_seen) noexcept {
    ClientSlot& mine = at.mine();
    const bool swept = dead_seen;
    dead_seen = false;
    const std::uint64_t now_ns = monotonic_ns();
    FutexWait result = FutexWait::kRefused;
    std::uint64_t look_ns = state_->look_ns.load(std::memory_order_relaxed);
    if (!futex_many_refused()) {
        Words words;
        words[0] = {&mine.grant, grant};
        words[1] = {&state_->own_grant, own};
        std::size_t count = 0;
        if (watch(at, words.data() + kOwnWords, words.size() - kOwnWords, count)) {
            if (!swept) {
                dead_seen = true;
                return;
            }
            state_->no_sweep_until_ns.store(now_ns + kSweepPauseNs, std::memory_order_relaxed);
        }
        count += kOwnWords;
        state_->counts.sleeps.fetch_add(1, std::memory_order_relaxed);
        look_ns = now_ns + (look_ns != 0 ? look_ns : kLookPeriodNs);
        result = futex_wait_many(words.data(), count, std::min(wake_ns, look_ns));
    }
    if (result == FutexWait::kRefused) {
        look_ns = now_ns + kBlindLookPeriodNs;
        state_->counts.sleeps.fetch_add(1, std::memory_order_relaxed);
        result = futex_wait(mine.grant, grant, std::min(wake_ns, look_ns));
        std::uint64_t last = state_->swept_ns.load(std::memory_order_relaxed);
        const std::uint64_t then_ns = monotonic_ns();
        dead_seen = then_ns >= last + kBlindSweepPeriodNs &&
                    state_->swept_ns.compare_exchange_strong(last, then_ns);
    }
    if (result == FutexWait::kTimedOut && look_ns <= wake_ns) {
        state_->counts.looks.fetch_add(1, std::memory_order_relaxed);
    }
    if (result == FutexWait::kGone) fault(at, Status::kCut);
}

// Reaps all the dead; the transitions tell the others. False: a fault.
bool Client::sweep(Attachment& at) noexcept {
    Transaction transaction = at.begin();
    if (transaction.status() != Status::kOk || !at.owns()) {
        fault(at, transaction.status() != Status::kOk ? transaction.status() : Status::kDetached);
        return false;
    }
    state_->counts.sweeps.fetch_add(1, std::memory_order_relaxed);
    reap_dead_clients(at.segment(), at.slot, monotonic_ns(), transaction.wakes());
    if (const Status finished = transaction.finish(); finished != Status::kOk) {
        fault(at, finished);
        return false;
    }
    return true;
}

FutexWait Client::sleep_for_notice(Attachment& at, std::uint32_t shared, std::uint32_t own,
                                   std::uint64_t deadline_ns) noexcept {
    ClientSlot& mine = at.mine();
    const std::uint64_t now_ns = monotonic_ns();
    const bool long_sleep = deadline_ns >= now_ns && deadline_ns - now_ns >= kLongSleepNs;
    if (!futex_many_refused()) {
        Words words;
        words[0] = {&mine.notice, shared};
        words[1] = {&state_->own_notice, own};
        std::size_t count = 0;
        const auto dead_seen = [&] {
            return watch(at, words.data() + kOwnWords, words.size() - kOwnWords, count);
        };
        if (dead_seen()) {
            if (!sweep(at)) return FutexWait::kGone;
            if (dead_seen()) {
                state_->no_sweep_until_ns.store(now_ns + kSweepPauseNs, std::memory_order_relaxed);
            }
        }
        const FutexWait result =
            futex_wait_many(words.data(), long_sleep ? kOwnWords + count : kOwnWords, deadline_ns);
        if (result != FutexWait::kRefused) return result;
    }
    std::uint64_t last = state_->swept_ns.load(std::memory_order_relaxed);
    if (now_ns >= last + kBlindSweepPeriodNs &&
        state_->swept_ns.compare_exchange_strong(last, now_ns) && contended() && !sweep(at)) {
        return FutexWait::kGone;
    }
    return futex_wait(mine.notice, shared, std::min(deadline_ns, now_ns + kBlindSweepPeriodNs));
}

std::uint32_t Client::sleep(std::uint32_t seen, std::uint64_t deadline_ns) noexcept {
    if (state_->abandoned.load(std::memory_order_relaxed) || process_id() != state_->pid)
        return seen;
    for (;;) {
        Attachment& at = *at_.load(std::memory_order_acquire);
        const std::uint32_t own = state_->own_notice.load(std::memory_order_acquire);
        if (at.lost.load(std::memory_order_acquire)) {
            if (own == seen) sleep_lost(deadline_ns);
            return notice();
        }
        if (!at.whole()) {
            fault(at, Status::kCut);
            continue;
        }
        const std::uint32_t shared = at.mine().notice.load(std::memory_order_acquire);
        if (!look(at)) continue;
        const std::uint64_t now_ns = monotonic_ns();
        if (now_ns - state_->name_looked_at_ns >= kNamePeriodNs) {
            // Whoever comes after the name is gone may make another segment, and never meet us.
            state_->name_looked_at_ns = now_ns;
            if (at.mapping.lost_name() && !at.mapping.restore_name(state_->folder)) {
                fault(at, Status::kRemoved);
                continue;
            }
        }
        if (own + shared != seen || now_ns >= deadline_ns) return own + shared;
        if (sleep_for_notice(at, shared, own, deadline_ns) == FutexWait::kGone) {
            if (!at.lost.load(std::memory_order_acquire)) fault(at, Status::kCut);
        }
    }
}

std::uint32_t Client::notice() const noexcept {
    const std::uint32_t own = state_->own_notice.load(std::memory_order_acquire);
    const Attachment* at = at_.load(std::memory_order_acquire);
    if (at->lost.load(std::memory_order_acquire) || !at->whole()) return own;
    return own + at->mine().notice.load(std::memory_order_acquire);
}

void Client::wake() noexcept {
    if (state_->abandoned.load(std::memory_order_relaxed) || process_id() != state_->pid) return;
    bump(state_->own_notice);
    if (!futex_many_refused()) return;
    if (Attachment* at = touchable()) bump(at->mine().notice);
}

// -------------------------------------------------------------------------------- after a fault

// Until the deadline, a wake-up, or the client is attached again.
void Client::sleep_lost(std::uint64_t deadline_ns) noexcept {
    State& state = *state_;
    const std::uint32_t own = state.own_notice.load(std::memory_order_acquire);
    std::uint64_t until_ns = deadline_ns;
    if (state.joined.load(std::memory_order_relaxed) < kMostJoined &&
        static_cast<pid_t>(syscall(SYS_gettid)) == state.thread) {
        const std::uint64_t now_ns = monotonic_ns();
        if (state.rejoin_at_ns == 0) {
            // One that held for long was no sign of more trouble to come.
            if (state.rejoin_pause_ns == 0 ||
                now_ns - state.rejoined_ns >= state.longest_rejoin_ns) {
                state.rejoin_pause_ns = state.first_rejoin_ns;
            }
            state.rejoin_at_ns = now_ns + state.rejoin_pause_ns;
        }
        if (now_ns >= state.rejoin_at_ns) {
            const bool joined = rejoin();
            state.rejoin_pause_ns = std::min(2 * state.rejoin_pause_ns, state.longest_rejoin_ns);
            state.rejoined_ns = monotonic_ns();
            state.rejoin_at_ns = joined ? 0 : state.rejoined_ns + state.rejoin_pause_ns;
            if (joined) return;
        }
        until_ns = std::min(until_ns, state.rejoin_at_ns);
    }
    futex_wait(state.own_notice, own, until_ns);
}

bool Client::rejoin() noexcept {
    State& state = *state_;
    Attachment* const old = at_.load(std::memory_order_acquire);
    old->part();
    auto* fresh = new (std::nothrow) Attachment;
    if (fresh == nullptr) return false;
    const std::lock_guard<std::mutex> guard(state.moving);
    Status replaced = Status::kOk;
    const Status status = fresh->join(state.folder, state.device, state.joining, replaced);
    if (status != Status::kOk) {
        state.fault.store(status, std::memory_order_relaxed);
        delete fresh;
        return false;
    }
    state.replaced.store(replaced, std::memory_order_relaxed);
    state.joined.fetch_add(1, std::memory_order_relaxed);
    state.stalled.store(false, std::memory_order_relaxed);
    fresh->older = old;
    // So that notice() differs from whatever it was, whatever the new slot's word is.
    state.own_notice.fetch_add(0x40000001, std::memory_order_release);
    use(fresh);
    return true;
}

}  // namespace crossover
