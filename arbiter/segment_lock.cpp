// SPDX-License-Identifier: Apache-2.0
// Robust mutexes by pthread. libc keeps links of its own inside a held robust mutex (the kernel
// walks them when the thread dies), so this file alone knows libc's fields, to check them.
#include "arbiter/segment_lock.hpp"

#include <errno.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include <atomic>
#include <cstring>
#include <new>

#include "arbiter/futex.hpp"

#ifndef __GLIBC__
#error "the checks of the lock's content know glibc's pthread_mutex_t only"
#endif

namespace crossover {
namespace {

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

LockResult lock_until(std::byte* storage, std::uint64_t deadline_ns, HeldLock& held) noexcept {
    LockResult result = try_lock(storage, held);
    if (result != LockResult::kBusy) return result;
#ifdef __SANITIZE_THREAD__
    // The sanitizer of GCC 12 does not see pthread_mutex_clocklock, nor owner death in a timed
    // lock.
    while (result == LockResult::kBusy) {
        if (monotonic_ns() >= deadline_ns) return LockResult::kTimedOut;
        const timespec step{0, 20'000};
        nanosleep(&step, nullptr);
        result = try_lock(storage, held);
    }
    return result;
#else
    const timespec deadline{static_cast<time_t>(deadline_ns / 1'000'000'000),
                            static_cast<long>(deadline_ns % 1'000'000'000)};
    return result_of(pthread_mutex_clocklock(mutex_of(storage), CLOCK_MONOTONIC, &deadline),
                     storage, held);
#endif
}

void mark_consistent(const HeldLock& held) noexcept {
    pthread_mutex_consistent(mutex_of(held.storage));
}

void note_links(HeldLock& held) noexcept {
    std::memcpy(static_cast<void*>(held.links), &mutex_of(held.storage)->__data.__list,
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
