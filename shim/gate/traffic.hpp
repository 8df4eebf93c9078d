// SPDX-License-Identifier: Apache-2.0
// The launching threads of a gate, counted, and the handshake between them and the one thread that
// gives the turn back. Lock-free; a launch does two atomic additions to a cache line that it shares
// with few other threads or none. No turn, no client, no GPU.
//
// The handshake. A launching thread (L1) counts itself in, (L2) reads closing() and whether the
// turn is held, launches only if not closing and held, and (L3) counts itself out and its launch
// in, by one addition. The other thread (W1) sets closing, (W2) reads all counts, and only if
// nobody is in and no launch was counted since its earlier look (W3) gives the turn back, then (W4)
// clears closing. All of these are sequentially consistent, so they stand in one order, and:
//  - L1 before the reading of its counter in W2: W2 sees the thread in, or its launch, and W3 does
//    not happen;
//  - L1 after that reading: L2 is after W1. It sees closing, or it is after W4 too and sees the
//  turn
//    gone, because W3 came before W4.
// Counters of different threads are read one after another, but the argument is one of each thread
// with its own counter, which it keeps for life.
#pragma once

#include <sched.h>

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "arbiter/futex.hpp"

namespace crossover {

namespace traffic_detail {
inline constinit std::atomic<std::uint32_t> threads_seen{0};
// The calling thread's counter, from 1; 0: none yet.
[[gnu::tls_model("initial-exec")]] inline thread_local constinit std::uint32_t own_counter = 0;
}  // namespace traffic_detail

class Traffic {
  public:
    // A user may touch what the gate's end takes away; every launching thread is one.
    struct Sum {
        std::uint64_t launches = 0;  // taken by the driver; to be compared for equality only
        std::uint32_t launching = 0;
        std::uint32_t users = 0;
    };

    // --- launching threads: each begin has its end on the same thread

    void begin_use() noexcept { own().fetch_add(kUser, std::memory_order_seq_cst); }
    void end_use() noexcept { own().fetch_sub(kUser, std::memory_order_seq_cst); }
    // L1, and use.
    void begin_launch() noexcept { own().fetch_add(kUser + kLaunching, std::memory_order_seq_cst); }
    // L3.
    void end_launch(bool launched) noexcept {
        own().fetch_add((launched ? kLaunched : 0) - kUser - kLaunching, std::memory_order_seq_cst);
    }
    // L3 of a launch that was taken, still a user.
    void count_launch() noexcept {
        own().fetch_add(kLaunched - kLaunching, std::memory_order_seq_cst);
    }
    // Out to wait, still a user; and L1 again.
    void step_out() noexcept { own().fetch_sub(kLaunching, std::memory_order_seq_cst); }
    void step_in() noexcept { own().fetch_add(kLaunching, std::memory_order_seq_cst); }
    // L2.
    bool closing() const noexcept { return closing_.load(std::memory_order_seq_cst); }

    // --- the thread that gives the turn back

    Sum sum() const noexcept {
        Sum sum;
        for (const Counter& each : counters_) {
            const std::uint64_t value = each.value.load(std::memory_order_seq_cst);
            sum.launches += value / kLaunched;
            sum.users += static_cast<std::uint32_t>(value % kLaunched / kUser);
            sum.launching += static_cast<std::uint32_t>(value % kUser);
        }
        return sum;
    }
    // Every thread that was launching has counted itself out at some moment since the call, unless
    // that took longer than `deadline`. Who comes meanwhile is for the caller to stop.
    bool wait_out(std::uint64_t deadline) const noexcept {
        for (const Counter& each : counters_) {
            while (each.value.load(std::memory_order_seq_cst) % kUser != 0) {
                if (monotonic_ns() >= deadline) {
                    return false;
                }
                ::sched_yield();
            }
        }
        return true;
    }
    // W1 and W2. True: until open() no thread launches, and none has launched since sum() gave
    // `launches`. open() must follow either way.
    bool close(std::uint64_t launches) noexcept {
        closing_.store(true, std::memory_order_seq_cst);
        const Sum now = sum();
        return now.launching == 0 && now.launches == launches;
    }
    // W4.
    void open() noexcept { closing_.store(false, std::memory_order_seq_cst); }

  private:
    // Fields of one counter. More than 65535 threads cannot share one.
    static constexpr std::uint64_t kLaunching = 1;
    static constexpr std::uint64_t kUser = std::uint64_t{1} << 16;
    static constexpr std::uint64_t kLaunched = std::uint64_t{1} << 32;
    // So many threads launch without sharing a line; further ones share.
    static constexpr std::size_t kCounters = 32;

    struct alignas(64) Counter {
        std::atomic<std::uint64_t> value{0};
    };

    std::atomic<std::uint64_t>& own() noexcept {
        std::uint32_t number = traffic_detail::own_counter;
        if (number == 0) [[unlikely]] {
            number =
                traffic_detail::threads_seen.fetch_add(1, std::memory_order_relaxed) % kCounters +
                1;
            traffic_detail::own_counter = number;
        }
        return counters_[number - 1].value;
    }

    std::array<Counter, kCounters> counters_;
    alignas(64) std::atomic<bool> closing_{false};  // read by every launch
};

}  // namespace crossover
