// SPDX-License-Identifier: Apache-2.0
// Robust mutexes by pthread. libc keeps links of its own inside a held robust mutex (the kernel
// walks them when the thread dies), so this file alone knows libc's fields, to check them.
#include "arbiter/segment_lock.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstring>
#include <new>

#include "arbiter/futex.hpp"

#ifndef __GLIBC__
#error "the checks of the lock's content know glibc's pthread_mutex_t only"
#endif

namespace crossover {
namespace {

constexpr std::uint64_t kLookPeriodNs = 20'000'000;

static_assert(sizeof(pthread_mutex_t) <= 64 && alignof(pthread_mutex_t) <= 64);

pthread_mutex_t* mutex_of(std::byte* storage) noexcept {
    return std::launder(reinterpret_cast<pthread_mutex_t*>(storage));
}

bool make_mutex(pthread_mutex_t* mutex) noexcept {
    pthread_mutexattr_t attributes;
    if (pthread_mutexattr_init(&attributes) != 0) return false;
    const bool made = pthread_mutexattr_setpshared(&attributes, PTHREAD_PROCESS_SHARED) == 0 &&
                      pthread_mutexattr_setrobust(&attributes, PTHREAD_MUTEX_ROBUST) == 0 &&
                      pthread_mutex_init(mutex, &attributes) == 0;
    pthread_mutexattr_destroy(&attributes);
    return made;
}

// The kind that make_mutex() gives, asked of libc once; kinds other than this one (priority
// inheritance, elision, …) would take libc down paths that assert.
int expected_kind() noexcept {
    static const int kind = [] {
        pthread_mutex_t probe;
        return make_mutex(&probe) ? probe.__data.__kind : -1;
    }();
    return kind;
}

bool kind_is_ours(const pthread_mutex_t* mutex) noexcept {
    return mutex->__data.__kind == expected_kind();
}

std::uint32_t lock_word(pthread_mutex_t* mutex) noexcept {
    return static_cast<std::uint32_t>(
        std::atomic_ref<int>(mutex->__data.__lock).load(std::memory_order_relaxed));
}

void remember(std::byte* storage, HeldLock& held) noexcept {
    pthread_mutex_t* mutex = mutex_of(storage);
    held.storage = storage;
    held.thread = lock_word(mutex) & FUTEX_TID_MASK;
    note_links(held);
}
static_assert(sizeof(static_cast<pthread_mutex_t*>(nullptr)->__data.__list) == 2 * sizeof(void*));

LockResult result_of(int rc, std::byte* storage, HeldLock& held) noexcept {
    switch (rc) {
        case 0:
            remember(storage, held);
            return LockResult::kLocked;
        case EOWNERDEAD:
            remember(storage, held);
            return LockResult::kOwnerDied;
        case EBUSY:
            return LockResult::kBusy;
        case ETIMEDOUT:
            return LockResult::kTimedOut;
        default:
            return LockResult::kCorrupt;  // ENOTRECOVERABLE, EINVAL
    }
}

}  // namespace

bool make_lock(std::byte* storage) noexcept {
    std::memset(storage, 0, 64);
    return make_mutex(new (storage) pthread_mutex_t);
}

LockResult try_lock(std::byte* storage, HeldLock& held) noexcept {
    pthread_mutex_t* mutex = mutex_of(storage);
    if (!kind_is_ours(mutex)) return LockResult::kCorrupt;
    return result_of(pthread_mutex_trylock(mutex), storage, held);
}

LockWatch watch(std::byte* storage, FutexWord& word) noexcept {
    pthread_mutex_t* mutex = mutex_of(storage);
    if (!kind_is_ours(mutex)) return LockWatch::kCorrupt;
    static_assert(sizeof mutex->__data.__lock == sizeof(std::atomic<std::uint32_t>));
    auto* shared = reinterpret_cast<std::atomic<std::uint32_t>*>(&mutex->__data.__lock);
    std::uint32_t value = shared->load(std::memory_order_relaxed);
    for (;;) {
        // A bit set on a word that nobody owns would never be cleared by its owner.
        if ((value & FUTEX_TID_MASK) == 0 || (value & FUTEX_OWNER_DIED) != 0) {
            return LockWatch::kFree;
        }
        if ((value & FUTEX_WAITERS) != 0 ||
            shared->compare_exchange_weak(value, value | FUTEX_WAITERS)) {
            word = {shared, value | FUTEX_WAITERS};
            return LockWatch::kHeld;
        }
    }
}

// Not libc's own timed lock: that aborts the process when the memory goes while it waits.
LockResult lock_until(std::byte* storage, std::uint64_t deadline_ns, HeldLock& held) noexcept {
    bool slept = false;
    for (;;) {
        const LockResult result = try_lock(storage, held);
        if (result == LockResult::kLocked || result == LockResult::kOwnerDied) {
            if (slept) {
                // Others may sleep still, and whoever woke this thread woke no other.
                std::atomic_ref<int>(mutex_of(storage)->__data.__lock)
                    .fetch_or(static_cast<int>(FUTEX_WAITERS), std::memory_order_relaxed);
            }
            return result;
        }
        if (result != LockResult::kBusy) return result;
        const std::uint64_t now_ns = monotonic_ns();
        if (now_ns >= deadline_ns) return LockResult::kTimedOut;
        FutexWord word;
        const LockWatch watched = watch(storage, word);
        if (watched == LockWatch::kCorrupt) return LockResult::kCorrupt;
        if (watched == LockWatch::kFree) continue;
        // In steps, since the one sleeper that was woken may have died or been stopped.
        const FutexWait ended =
            futex_wait(*word.word, word.seen, std::min(deadline_ns, now_ns + kLookPeriodNs));
        if (ended == FutexWait::kGone || !futex_reachable(*word.word)) return LockResult::kGone;
        slept = true;
    }
}

void mark_consistent(const HeldLock& held) noexcept {
    pthread_mutex_consistent(mutex_of(held.storage));
}

void note_links(HeldLock& held) noexcept {
    std::memcpy(static_cast<void*>(held.links), &mutex_of(held.storage)->__data.__list,
                sizeof held.links);
}

bool links_are_as_noted(const HeldLock& held) noexcept {
    return std::memcmp(static_cast<const void*>(held.links), &mutex_of(held.storage)->__data.__list,
                       sizeof held.links) == 0;
}

void restore_links(const HeldLock& held) noexcept {
    std::memcpy(&mutex_of(held.storage)->__data.__list, static_cast<const void*>(held.links),
                sizeof held.links);
}

bool unlock(HeldLock& held) noexcept {
    pthread_mutex_t* mutex = mutex_of(held.storage);
    bool intact = true;
    if (!kind_is_ours(mutex)) {
        mutex->__data.__kind = expected_kind();
        intact = false;
    }
    if ((lock_word(mutex) & FUTEX_TID_MASK) != held.thread) {
        // Waiters may have been forgotten with the word: let the kernel look for them.
        std::atomic_ref<int>(mutex->__data.__lock)
            .store(static_cast<int>(held.thread | FUTEX_WAITERS), std::memory_order_relaxed);
        intact = false;
    }
    if (std::memcmp(static_cast<const void*>(held.links), &mutex->__data.__list,
                    sizeof held.links) != 0) {
        std::memcpy(&mutex->__data.__list, static_cast<const void*>(held.links), sizeof held.links);
        intact = false;
    }
    intact = pthread_mutex_unlock(mutex) == 0 && intact;
    held.storage = nullptr;
    return intact;
}

bool unlock_long_held(HeldLock& held) noexcept {
    pthread_mutex_t* mutex = mutex_of(held.storage);
    if (!kind_is_ours(mutex) || (lock_word(mutex) & FUTEX_TID_MASK) != held.thread ||
        static_cast<std::uint32_t>(syscall(SYS_gettid)) != held.thread ||
        pthread_mutex_unlock(mutex) != 0) {
        return false;
    }
    held.storage = nullptr;
    return true;
}

}  // namespace crossover
