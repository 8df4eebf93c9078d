// SPDX-License-Identifier: Apache-2.0
// The connection's two threads. The executor receives notices, runs effects in their order and
// marks operations complete; the other runs the program's host functions, which may block. Neither
// takes the driver's lock while an effect runs.

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <string>

#include "connection.hpp"

namespace simgpu {
namespace {

constexpr long kValuePollNs = 50'000;
constexpr std::size_t kStackBytes = std::size_t{8} << 20;  // kernels' host versions run on it

// A notice may come a little before its nominal time, so that what follows it is on time. Longer
// leads than this are not the server's.
constexpr std::uint64_t kLongestHoldNs = 1'000'000;
// A sleep ends late by about this much, so the rest is spun.
constexpr std::uint64_t kSpinNs = 50'000;

thread_local bool own_thread = false;

std::uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

void hold_until(std::uint64_t time_ns) {
    const std::uint64_t now = monotonic_ns();
    if (time_ns <= now || time_ns - now > kLongestHoldNs) return;
    if (time_ns - now > 2 * kSpinNs) {
        const std::uint64_t wake = time_ns - kSpinNs;
        const timespec until{static_cast<std::time_t>(wake / 1'000'000'000),
                             static_cast<long>(wake % 1'000'000'000)};
        clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &until, nullptr);
    }
    while (monotonic_ns() < time_ns) {
    }
}

// Starts a detached thread with every signal blocked: the program's handlers never run on it.
bool start_thread(void* (*body)(void*), void* argument, const char* name) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) return false;
    pthread_attr_setdetachstate(&attributes, PTHREAD_CREATE_DETACHED);
    pthread_attr_setstacksize(&attributes, kStackBytes);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pthread_t thread;
    const int rc = pthread_create(&thread, &attributes, body, argument);
    if (rc == 0) pthread_setname_np(thread, name);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return rc == 0;
}

}  // namespace

bool ValueWait::satisfied() const {
    // The program's memory, written by anybody at any time: an atomic load of its own width.
    if (wide) {
        const auto now =
            __atomic_load_n(static_cast<const std::uint64_t*>(address), __ATOMIC_ACQUIRE);
        switch (condition) {
            case ValueCondition::kGreaterOrEqual:
                return static_cast<std::int64_t>(now - value) >= 0;
            case ValueCondition::kEqual:
                return now == value;
            case ValueCondition::kAnd:
                return (now & value) != 0;
            case ValueCondition::kNor:
                return ~(now | value) != 0;
        }
        return false;
    }
    const auto now = __atomic_load_n(static_cast<const std::uint32_t*>(address), __ATOMIC_ACQUIRE);
    const auto narrow = static_cast<std::uint32_t>(value);
    switch (condition) {
        case ValueCondition::kGreaterOrEqual:
            return static_cast<std::int32_t>(now - narrow) >= 0;
        case ValueCondition::kEqual:
            return now == narrow;
        case ValueCondition::kAnd:
            return (now & narrow) != 0;
        case ValueCondition::kNor:
            return ~(now | narrow) != 0;
    }
    return false;
}

bool Connection::on_own_thread() { return own_thread; }

bool Connection::start_threads() {
    auto executor = [](void* self) -> void* {
        own_thread = true;
        static_cast<Connection*>(self)->executor_main();
        return nullptr;
    };
    auto host = [](void* self) -> void* {
        own_thread = true;
        static_cast<Connection*>(self)->host_main();
        return nullptr;
    };
    // The executor first: it sees the socket's end and tells the other one.
    return start_thread(executor, this, "simgpu-exec") && start_thread(host, this, "simgpu-host");
}

void Connection::executor_main() {
    // A device does not wait for the host's processors: where it may, this thread goes first.
    sched_param first{};
    first.sched_priority = 1;
    pthread_setschedparam(pthread_self(), SCHED_RR | SCHED_RESET_ON_FORK, &first);
    std::array<Notice, kMaxRecords> notices;
    while (!stopping_) {
        if (!value_waits_.empty()) {
            pollfd poller{fd_, POLLIN, 0};
            const timespec limit{0, kValuePollNs};
            const int ready = ::ppoll(&poller, 1, &limit, nullptr);
            check_value_waits();
            if (ready <= 0) continue;
        }
        const ssize_t got = ::recv(fd_, notices.data(), sizeof notices, 0);
        if (got < 0 && errno == EINTR) continue;
        if (got <= 0) break;
        const auto count = static_cast<std::size_t>(got) / sizeof(Notice);
        for (std::size_t i = 0; i < count && !stopping_; ++i) {
            try {
                handle(notices[i]);
            } catch (...) {
                fault();  // out of memory: what the notice was for never ends
            }
        }
        check_value_waits();
    }
    // At exit the program's memory may be gone: nothing of it is touched any more, and nobody is
    // told.
    if (!stopping_) lose();
}

void Connection::handle(const Notice& notice) {
    switch (notice.kind) {
        case NoticeKind::kStarted:
            handle_started(notice.op);
            return;
        case NoticeKind::kStaged:
            handle_staged(notice.op);
            return;
        case NoticeKind::kDone:
            handle_done(notice);
            return;
        case NoticeKind::kCommReady:
            handle_comm_ready(notice);
            return;
        case NoticeKind::kError: {
            std::fprintf(stderr, "simgpu: device server: %.*s\n",
                         static_cast<int>(sizeof notice.text), notice.text);
            fault();
            return;
        }
        case NoticeKind::kWelcome:
            return;
    }
}

void Connection::fault() {
    {
        const std::lock_guard lock(mutex_);
        Health good = Health::kGood;
        health_.compare_exchange_strong(good, Health::kFault);
    }
    changed_.notify_all();
}

void Connection::handle_started(OpId op) {
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(op);
    if (found == pending_.end()) return;
    PendingOp& pending =
        found->second;  // nodes of the table stay in place, and only this thread erases
    lock.unlock();
    if (pending.value_wait) {
        value_waits_.emplace_back(op, *pending.value_wait);
        return;
    }
    if (pending.host_function) {
        {
            const std::lock_guard host_lock(host_mutex_);
            host_queue_.emplace_back(op, std::move(pending.host_function));
        }
        host_changed_.notify_one();
        return;
    }
    if (pending.on_start) {
        const std::lock_guard effect(effect_mutex_);
        if (stopping_) return;
        pending.on_start();
    }
    acknowledge(op);
}

void Connection::handle_staged(OpId op) {
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(op);
    if (found == pending_.end()) return;
    PendingOp& pending = found->second;
    lock.unlock();
    if (!pending.on_staged) return;
    const std::lock_guard effect(effect_mutex_);
    if (!stopping_) pending.on_staged();
}

void Connection::handle_done(const Notice& notice) {
    std::unique_lock lock(mutex_);
    const auto found = pending_.find(notice.op);
    if (found == pending_.end()) return;
    PendingOp& pending = found->second;
    lock.unlock();
    if (pending.on_done) {
        const std::lock_guard effect(effect_mutex_);
        if (stopping_) return;
        pending.on_done(notice.status != 0);
    }
    if (pending.done_ns) pending.done_ns->store(notice.time_ns, std::memory_order_release);

    // What the operation held goes first: a program that sees it complete may count on that.
    pending.on_start = nullptr;
    pending.on_staged = nullptr;
    pending.on_done = nullptr;
    const Counter in_flight = std::move(pending.in_flight);
    if (notice.status == 0) hold_until(notice.time_ns);
    const std::uint64_t shown_ns = monotonic_ns();
    lock.lock();
    pending_.erase(notice.op);
    if (in_flight) in_flight->fetch_sub(1, std::memory_order_relaxed);
    const bool wake = waiters_ > 0;
    lock.unlock();
    if (wake) changed_.notify_all();
    shown_.add(notice.op, shown_ns);
}

void Connection::handle_comm_ready(const Notice& notice) {
    std::unique_lock lock(mutex_);
    const auto found = joins_.find({notice.op, notice.rank});
    if (found != joins_.end()) {
        found->second = {true, notice.status, notice.value};
        lock.unlock();
        changed_.notify_all();
        return;
    }
    lock.unlock();
    if (notice.status != 0) return;
    Request leave;  // whoever asked gave up waiting
    leave.kind = RequestKind::kCommDestroy;
    leave.comm_key = notice.value;
    leave.rank = notice.rank;
    send({&leave, 1});
}

void Connection::check_value_waits() {
    std::erase_if(value_waits_, [this](const auto& wait) {
        if (!wait.second.satisfied()) return false;
        acknowledge(wait.first);
        return true;
    });
}

void Connection::acknowledge(OpId op) {
    Request ack;
    ack.kind = RequestKind::kAck;
    ack.op = op;
    send({&ack, 1});
}

void Connection::lose() {
    std::unique_lock lock(mutex_);
    health_ = Health::kLost;
    std::vector<OpId> ops;
    ops.reserve(pending_.size());
    for (const auto& entry : pending_) ops.push_back(entry.first);
    lock.unlock();
    changed_.notify_all();
    {
        const std::lock_guard host_lock(host_mutex_);
    }  // the host thread is before its check or in its wait
    host_changed_.notify_all();
    std::sort(ops.begin(), ops.end());
    for (const OpId op : ops) {
        Notice aborted;
        aborted.kind = NoticeKind::kDone;
        aborted.op = op;
        aborted.status = 1;
        handle_done(aborted);
    }
}

void Connection::host_main() {
    std::unique_lock lock(host_mutex_);
    while (true) {
        host_changed_.wait(lock,
                           [this] { return !host_queue_.empty() || health() == Health::kLost; });
        if (health() == Health::kLost) return;
        auto [op, function] = std::move(host_queue_.front());
        host_queue_.pop_front();
        lock.unlock();
        function();
        acknowledge(op);
        lock.lock();
    }
}

}  // namespace simgpu
