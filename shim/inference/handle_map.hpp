// SPDX-License-Identifier: Apache-2.0
// A map from opaque handles (streams, events, functions) to values, read without a lock on the
// launch path. Fixed capacity, no allocation after construction: when it is full, find_or_add()
// returns nullptr and the handle stays untracked, which costs inference, never correctness.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <new>

#include <sys/mman.h>

namespace crossover {

template <class Value>
class HandleMap {
  public:
    using Key = std::uintptr_t;
    static constexpr Key kEmpty = 0;
    static constexpr Key kRemoved = ~Key{0};

    // `capacity` is a power of two. Memory comes from mmap, so untouched parts cost nothing.
    explicit HandleMap(std::size_t capacity) noexcept : mask_(capacity - 1) {
        void* memory = ::mmap(nullptr, capacity * sizeof(Slot), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        slots_ = memory == MAP_FAILED ? nullptr : static_cast<Slot*>(memory);
    }
    ~HandleMap() {
        if (slots_ != nullptr) {
            ::munmap(slots_, (mask_ + 1) * sizeof(Slot));
        }
    }
    HandleMap(const HandleMap&) = delete;
    HandleMap& operator=(const HandleMap&) = delete;

    // Any thread, no lock. The value stays at its address until the handle is removed.
    Value* find(Key key) noexcept {
        if (slots_ == nullptr) {
            return nullptr;
        }
        for (std::size_t probe = 0, at = hash(key); probe < kMaxProbes; ++probe, ++at) {
            Slot& slot = slots_[at & mask_];
            const Key present = slot.key.load(std::memory_order_acquire);
            if (present == key) {
                return &slot.value;
            }
            if (present == kEmpty) {
                return nullptr;
            }
        }
        return nullptr;
    }

    // `initialise(Value&)` runs before the value can be found. nullptr when there is no room near
    // its place.
    template <class Initialise>
    Value* find_or_add(Key key, Initialise&& initialise) noexcept {
        if (Value* found = find(key)) {
            return found;
        }
        const std::lock_guard<std::mutex> guard(mutex_);
        if (Value* found = find(key)) {
            return found;
        }
        if (slots_ == nullptr || key == kEmpty || key == kRemoved) {
            return nullptr;
        }
        for (std::size_t probe = 0, at = hash(key); probe < kMaxProbes; ++probe, ++at) {
            Slot& slot = slots_[at & mask_];
            const Key present = slot.key.load(std::memory_order_relaxed);
            if (present == kEmpty || present == kRemoved) {
                initialise(slot.value);
                slot.key.store(key, std::memory_order_release);
                return &slot.value;
            }
        }
        return nullptr;
    }

    // The caller makes sure that nobody still uses the value: the program has destroyed the handle.
    void remove(Key key) noexcept {
        const std::lock_guard<std::mutex> guard(mutex_);
        if (slots_ == nullptr) {
            return;
        }
        for (std::size_t probe = 0, at = hash(key); probe < kMaxProbes; ++probe, ++at) {
            Slot& slot = slots_[at & mask_];
            const Key present = slot.key.load(std::memory_order_relaxed);
            if (present == key) {
                slot.key.store(kRemoved, std::memory_order_release);
                return;
            }
            if (present == kEmpty) {
                return;
            }
        }
    }

  private:
    // Bounds every look-up, also in a table full of removed entries.
    static constexpr std::size_t kMaxProbes = 64;

    struct Slot {
        std::atomic<Key> key;
        Value value;
    };

    static std::size_t hash(Key key) noexcept {
        std::uint64_t bits = key;
        bits ^= bits >> 33;
        bits *= 0xFF51AFD7ED558CCDULL;
        return static_cast<std::size_t>(bits >> 32);
    }

    std::size_t mask_;
    Slot* slots_ = nullptr;
    std::mutex mutex_;
};

}  // namespace crossover
