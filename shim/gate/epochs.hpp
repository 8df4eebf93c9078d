// SPDX-License-Identifier: Apache-2.0
// The bookkeeping of a gate that stands in the GPU's queues: each time the job needs a turn that it
// has not got, streams are made to wait for an epoch, and the word that they wait on says up to
// which epoch they may go. Plain numbers: no GPU, no client, no clock, no lock of its own.
#pragma once

#include <atomic>
#include <cstdint>

namespace crossover {

// Changes are made by one thread at a time (the gate's turn_mutex_); any thread may read.
class Epochs {
  public:
    using Epoch = std::uint32_t;

    // The first one is the next after `passed`.
    explicit Epochs(Epoch passed = 0) noexcept : state_(std::uint64_t{passed} << 32 | passed) {}

    // The epoch that streams wait for, or 0: at most one at a time, so launching threads are at
    // most one turn ahead of the GPU.
    Epoch pending() const noexcept {
        const std::uint64_t both = state_.load(std::memory_order_seq_cst);
        const auto made = static_cast<Epoch>(both >> 32);
        return made == static_cast<Epoch>(both) ? 0 : made;
    }
    Epoch made() const noexcept {
        return static_cast<Epoch>(state_.load(std::memory_order_seq_cst) >> 32);
    }
    // Changes with every change.
    std::uint64_t snapshot() const noexcept { return state_.load(std::memory_order_seq_cst); }
    // Up to which one streams may go, as the GPU compares it: (int32)(word - epoch) >= 0. For ever
    // (half of all epochs ahead) while everything is open.
    Epoch word() const noexcept {
        const auto passed = static_cast<Epoch>(state_.load(std::memory_order_seq_cst));
        return all_open_ ? passed + kAhead : passed;
    }

    // A new one, or the one that is pending. 0 while everything is open.
    Epoch make() noexcept {
        if (all_open_) {
            return 0;
        }
        if (const Epoch now = pending(); now != 0) {
            return now;
        }
        Epoch next = made() + 1;
        next += next == 0 ? 1 : 0;  // 0 says "none"
        set(next, next - 1);
        return next;
    }
    // False: it is not the one that is pending.
    bool pass(Epoch epoch) noexcept {
        if (epoch == 0 || pending() != epoch) {
            return false;
        }
        set(epoch, epoch);
        return true;
    }
    // Nothing waits, and nothing is made to wait, until close(); what waited then has passed.
    void open_all() noexcept {
        all_open_ = true;
        set(made(), made());
    }
    void close() noexcept { all_open_ = false; }

  private:
    static constexpr Epoch kAhead = 0x4000'0000;

    void set(Epoch made, Epoch passed) noexcept {
        state_.store(std::uint64_t{made} << 32 | passed, std::memory_order_seq_cst);
    }

    std::atomic<std::uint64_t> state_;  // made, passed
    bool all_open_ = false;
};

}  // namespace crossover
