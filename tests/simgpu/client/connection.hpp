// SPDX-License-Identifier: Apache-2.0
// The process's connection to the device server: the socket, the table of operations in flight, the
// executor thread that runs effects in notice order, and the thread for host functions. Plain C++:
// no CUDA header, no streams, no contexts here.
#pragma once

#include <pthread.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "../protocol.hpp"
#include "shown_log.hpp"

namespace simgpu {

enum class ValueCondition { kGreaterOrEqual, kEqual, kAnd, kNor };

// A stream's wait for a value in memory; compares as CUDA's cuStreamWaitValue32/64 do (cyclic >=).
struct ValueWait {
    const void* address = nullptr;  // aligned to its width
    std::uint64_t value = 0;
    bool wide = false;  // 64 bits, else 32
    ValueCondition condition = ValueCondition::kGreaterOrEqual;

    bool satisfied() const;
};

// Nominal device time in ns (CLOCK_MONOTONIC) of completion; 0 while incomplete.
using TimeStamp = std::shared_ptr<std::atomic<std::uint64_t>>;
using Counter = std::shared_ptr<std::atomic<std::uint32_t>>;

// The client's part of one operation on the wire. All callbacks may be empty.
struct PendingOp {
    std::function<void()> on_start;   // executor thread at kStarted; acknowledged on return
    std::function<void()> on_staged;  // executor thread at kStaged
    std::function<void()>
        host_function;  // host function thread after kStarted; acknowledged on return
    std::optional<ValueWait> value_wait;  // acknowledged once satisfied
    std::function<void(bool aborted)>
        on_done;  // executor thread, before the operation counts as complete
    TimeStamp done_ns;
    Counter in_flight;  // decremented at completion
};

enum class Health { kGood, kLost, kFault };  // kLost: server gone; kFault: it refused a request,
// or this process had no memory for what it told

enum class CommStatus { kReady, kDuplicateDevice, kBadRank, kAborted, kLost };

// All members are thread-safe unless they say otherwise. Never destroyed: threads of the program
// may be inside any call when the process ends.
class Connection {
  public:
    // Connects to the server of the machine in `dir` and starts both threads. Null on failure;
    // `error` then says why in one line.
    static Connection* open(const std::string& dir, std::string* error);

    int device_count() const { return device_count_; }
    Health health() const { return health_.load(std::memory_order_acquire); }
    const std::string& settings() const { return settings_; }

    // The caller serialises allocate, expect and send, so that numbers go out in order.
    OpId allocate() { return ++last_op_; }
    // Enters `op` in the table, before its request is sent. False when the server is gone: nothing
    // was entered. Once entered, on_done comes exactly once, whatever happens to the request.
    bool expect(OpId op, PendingOp pending);
    // False when the server is gone.
    bool send(std::span<const Request> requests);

    bool complete(OpId op) const;
    // Waits until `op` is complete; false when the server is gone or at fault. Bounded by the
    // server's life.
    bool wait(OpId op) const;
    bool wait_all(std::span<const OpId> ops) const;
    // Waits until `counter` is below `limit`; false as for wait().
    bool wait_below(const Counter& counter, std::uint32_t limit) const;

    // Joins a communicator; see simgpuCommInit. `comm` receives its number.
    CommStatus join(std::uint64_t key, std::uint32_t rank, std::uint32_t ranks, std::int32_t device,
                    std::uint64_t host, const volatile std::uint32_t* abort_flag,
                    std::uint64_t* comm);

    // At process exit: no effect starts any more; waits for the one that runs, at most two seconds.
    void quiesce();
    // In a forked child: drops the inherited descriptor, so that the parent's death stays visible
    // to the server.
    void drop_in_child();

    // True on the two threads of this connection, where the program's callbacks run.
    static bool on_own_thread();

  private:
    struct Join {
        bool answered = false;
        std::uint32_t status = 0;
        std::uint64_t comm = 0;
    };

    bool start_threads();
    void executor_main();
    void host_main();
    void handle(const Notice& notice);
    void handle_started(OpId op);
    void handle_staged(OpId op);
    void handle_done(const Notice& notice);
    void handle_comm_ready(const Notice& notice);
    void check_value_waits();
    void acknowledge(OpId op);
    void fault();
    void lose();

    int fd_ = -1;
    int device_count_ = 0;
    std::string settings_;
    OpId last_op_ = 0;
    std::atomic<Health> health_{Health::kGood};
    std::atomic<bool> stopping_{false};

    mutable std::mutex mutex_;  // pending_, joins_, abandoned_, waiters_
    mutable std::condition_variable changed_;
    mutable int waiters_ = 0;
    std::unordered_map<OpId, PendingOp> pending_;
    std::map<std::pair<std::uint64_t, std::uint32_t>, Join> joins_;

    std::mutex effect_mutex_;                              // held while an effect runs
    std::vector<std::pair<OpId, ValueWait>> value_waits_;  // executor thread only

    ShownLog shown_;

    std::mutex host_mutex_;
    std::condition_variable host_changed_;
    std::deque<std::pair<OpId, std::function<void()>>> host_queue_;
};

}  // namespace simgpu
