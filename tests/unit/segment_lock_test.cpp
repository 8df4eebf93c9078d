// SPDX-License-Identifier: Apache-2.0
// The segment's locks within one process: owner death (of a thread), bounds, and damage before,
// while and after they are held. Death of processes is in tests/process.
#include "arbiter/segment_lock.hpp"

#include <gtest/gtest.h>
#include <linux/futex.h>

#include <atomic>
#include <cstring>
#include <memory>
#include <random>
#include <thread>

#include "arbiter/futex.hpp"
#include "arbiter/transaction.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

struct Storage {
    alignas(64) std::byte bytes[64] = {};
    Storage() { EXPECT_TRUE(make_lock(bytes)); }
};

TEST(SegmentLock, ExcludesAndIsBounded) {
    Storage lock;
    HeldLock held;
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
    std::thread([&] {
        HeldLock other;
        EXPECT_EQ(try_lock(lock.bytes, other), LockResult::kBusy);
        const std::uint64_t deadline = monotonic_ns() + 20 * kMs;
        EXPECT_EQ(lock_until(lock.bytes, deadline, other), LockResult::kTimedOut);
        EXPECT_GE(monotonic_ns(), deadline);
    }).join();
    EXPECT_TRUE(unlock(held));
    EXPECT_EQ(lock_until(lock.bytes, 0, held), LockResult::kLocked) << "free: no waiting";
    EXPECT_TRUE(unlock(held));
}

TEST(SegmentLock, CountsTogether) {
    Storage lock;
    std::uint64_t count = 0;
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
        threads.emplace_back([&] {
            for (int i = 0; i < 2'000; ++i) {
                HeldLock held;
                ASSERT_EQ(lock_until(lock.bytes, monotonic_ns() + 30'000 * kMs, held),
                          LockResult::kLocked);
                ++count;
                ASSERT_TRUE(unlock(held));
            }
        });
    }
    for (std::thread& thread : threads) thread.join();
    EXPECT_EQ(count, 8'000U);
}

void die_holding(std::byte* storage) {
    std::thread([storage] {
        HeldLock held;
        ASSERT_EQ(try_lock(storage, held), LockResult::kLocked);
    }).join();
}

TEST(SegmentLock, OwnerDeathIsAResult) {
    Storage lock;
    for (int i = 0; i < 3; ++i) {
        die_holding(lock.bytes);
        HeldLock held;
        ASSERT_EQ(lock_until(lock.bytes, monotonic_ns() + kMs, held), LockResult::kOwnerDied);
        mark_consistent(held);
        EXPECT_TRUE(unlock(held));
        EXPECT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
        EXPECT_TRUE(unlock(held));
    }
    die_holding(lock.bytes);
    HeldLock held;
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kOwnerDied);
    EXPECT_TRUE(unlock(held)) << "not repaired";
    EXPECT_EQ(try_lock(lock.bytes, held), LockResult::kCorrupt);
}

std::uint32_t word_of(const Storage& lock) {
    std::uint32_t word = 0;
    std::memcpy(&word, lock.bytes, sizeof word);
    return word;
}

// What a sleeper relies on: its mark in the word is kept by libc and the kernel until somebody is
// woken for it, and disturbs neither the holder nor the checks.
TEST(SegmentLock, AWatcherIsWokenWhenTheLockIsGivenBack) {
    Storage lock;
    FutexWord word;
    EXPECT_EQ(watch(lock.bytes, word), LockWatch::kFree);
    EXPECT_EQ(word_of(lock), 0U) << "a free lock is left as it is";
    for (const bool long_held : {false, true}) {
        HeldLock held;
        ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
        std::atomic<bool> woken{false};
        ASSERT_EQ(watch(lock.bytes, word), LockWatch::kHeld);
        EXPECT_NE(word_of(lock) & FUTEX_WAITERS, 0U);
        EXPECT_EQ(word.seen, word_of(lock));
        std::thread sleeper([&] {
            EXPECT_EQ(futex_wait(*word.word, word.seen, monotonic_ns() + 60'000 * kMs),
                      FutexWait::kWoken);
            woken = true;
        });
        HeldLock other;
        std::thread([&] { EXPECT_EQ(try_lock(lock.bytes, other), LockResult::kBusy); }).join();
        EXPECT_NE(word_of(lock) & FUTEX_WAITERS, 0U);
        EXPECT_FALSE(woken);
        EXPECT_TRUE(long_held ? unlock_long_held(held) : unlock(held));
        sleeper.join();
        EXPECT_EQ(word_of(lock), 0U);
    }
}

TEST(SegmentLock, AWatcherIsWokenWhenTheOwnerDies) {
    Storage lock;
    std::atomic<int> step{0};
    std::thread owner([&] {
        HeldLock held;
        ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
        step = 1;
        while (step != 2) std::this_thread::yield();
    });
    while (step != 1) std::this_thread::yield();
    FutexWord word;
    ASSERT_EQ(watch(lock.bytes, word), LockWatch::kHeld);
    std::thread sleeper([&] {
        EXPECT_EQ(futex_wait(*word.word, word.seen, monotonic_ns() + 60'000 * kMs),
                  FutexWait::kWoken);
    });
    step = 2;
    owner.join();
    sleeper.join();
    EXPECT_NE(word_of(lock) & FUTEX_OWNER_DIED, 0U);
    EXPECT_EQ(watch(lock.bytes, word), LockWatch::kFree) << "nothing to wait for";
    HeldLock held;
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kOwnerDied);
    mark_consistent(held);
    EXPECT_TRUE(unlock(held));
    alignas(64) std::byte foreign[64];
    std::memset(foreign, 0xA5, sizeof foreign);
    EXPECT_EQ(watch(foreign, word), LockWatch::kCorrupt);
}

TEST(SegmentLock, ForeignBytesNeverHangOrCrash) {
    std::mt19937 random(11);
    for (int trial = 0; trial < 500; ++trial) {
        alignas(64) std::byte bytes[64];
        for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
        HeldLock held;
        const LockResult result = lock_until(bytes, monotonic_ns() + kMs, held);
        EXPECT_EQ(result, LockResult::kCorrupt);
    }
    alignas(64) std::byte zero[64] = {};
    HeldLock held;
    EXPECT_EQ(try_lock(zero, held), LockResult::kCorrupt) << "zero bytes are no lock";
}

TEST(SegmentLock, AForeignOwnerWordIsWaitedForNoLongerThanTheBound) {
    Storage lock;
    const std::uint32_t nobody = 0x3FFFFFF0;
    std::memcpy(lock.bytes, &nobody, sizeof nobody);
    HeldLock held;
    EXPECT_EQ(lock_until(lock.bytes, monotonic_ns() + 5 * kMs, held), LockResult::kTimedOut);
}

TEST(SegmentLock, OverwrittenWhileHeldIsNoticedAndSurvived) {
    std::mt19937 random(12);
    for (int trial = 0; trial < 200; ++trial) {
        Storage lock;
        Storage outer;
        HeldLock held, outer_held;
        ASSERT_EQ(try_lock(outer.bytes, outer_held), LockResult::kLocked);
        ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
        for (std::byte& byte : lock.bytes) {
            byte = trial == 0 ? std::byte{0} : static_cast<std::byte>(random());
        }
        EXPECT_FALSE(unlock(held));
        EXPECT_TRUE(unlock(outer_held)) << "this thread's other locks are untouched";
    }
}

TEST(SegmentLock, LongHeldLocksMayBeTakenAndGivenBackInsideOne) {
    Storage lock, life, second_life;
    HeldLock held, life_held, second_held;
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
    ASSERT_EQ(try_lock(life.bytes, life_held), LockResult::kLocked);
    note_links(held);
    ASSERT_TRUE(unlock(held));
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
    ASSERT_EQ(try_lock(second_life.bytes, second_held), LockResult::kLocked);
    note_links(held);
    ASSERT_TRUE(unlock(held));
    ASSERT_EQ(try_lock(lock.bytes, held), LockResult::kLocked);
    ASSERT_TRUE(unlock_long_held(life_held)) << "not in the order they were taken";
    note_links(held);
    EXPECT_TRUE(unlock(held));
    std::thread([&] {
        HeldLock other;
        EXPECT_EQ(try_lock(life.bytes, other), LockResult::kLocked);
        EXPECT_TRUE(unlock(other));
        EXPECT_EQ(try_lock(second_life.bytes, other), LockResult::kBusy);
        EXPECT_FALSE(unlock_long_held(second_held)) << "another thread's";
    }).join();
    EXPECT_TRUE(unlock_long_held(second_held));
}

std::unique_ptr<Segment> make_locked_segment() {
    auto segment = make_segment();
    EXPECT_TRUE(make_lock(segment->arbitration.lock));
    for (ClientSlot& client : segment->clients) EXPECT_TRUE(make_lock(client.life));
    return segment;
}

TEST(TransactionTest, RepairsAfterAnOwnersDeath) {
    auto segment = make_locked_segment();
    Wakes wakes;
    Joining joining;
    joining.job_key = 5;
    ASSERT_EQ(attach_client(*segment, 0, joining, 1, wakes), Status::kOk);
    HeldLock life;
    ASSERT_EQ(try_lock(segment->clients[0].life, life), LockResult::kLocked);
    ASSERT_TRUE(request(*segment, 0, 1, wakes));
    std::thread([&] {
        HeldLock held;
        ASSERT_EQ(try_lock(segment->arbitration.lock, held), LockResult::kLocked);
        segment->clients[0].claims.store(0);  // half of a release
        segment->arbitration.turn.waiting_jobs.store(17);
    }).join();
    {
        Transaction transaction(*segment);
        ASSERT_EQ(transaction.status(), Status::kOk);
        expect_invariants(*segment);
        EXPECT_EQ(turn_holder(*segment), static_cast<std::size_t>(-1));
        EXPECT_TRUE(transaction.wakes().grants.contains(0)) << "everybody looks anew";
    }
    EXPECT_EQ(Transaction(*segment).status(), Status::kOk);
    EXPECT_TRUE(unlock_long_held(life));
}

TEST(TransactionTest, AGivenUpSegmentIsNobodys) {
    auto segment = make_locked_segment();
    Wakes wakes;
    Joining joining;
    joining.job_key = 5;
    ASSERT_EQ(attach_client(*segment, 0, joining, 1, wakes), Status::kOk);
    Transaction late(*segment);
    ASSERT_EQ(late.status(), Status::kOk);
    const std::uint32_t grant = segment->clients[0].grant;
    const std::uint32_t notice = segment->clients[0].notice;
    // By somebody who has waited for the lock in vain.
    std::thread([&] {
        EXPECT_EQ(Transaction(*segment, kNoSlot, kMs).status(), Status::kTimedOut);
        give_up(*segment);
        EXPECT_EQ(Transaction(*segment, kNoSlot, kMs).status(), Status::kGivenUp) << "at once";
    }).join();
    EXPECT_NE(segment->clients[0].grant, grant);
    EXPECT_NE(segment->clients[0].notice, notice);
    ASSERT_TRUE(request(*segment, 0, 2, late.wakes())) << "a turn, but of what?";
    EXPECT_EQ(late.finish(), Status::kGivenUp);
    EXPECT_EQ(Transaction(*segment).status(), Status::kGivenUp) << "for good";
}

TEST(TransactionTest, SeesDamageAndStaysOut) {
    const auto status_after = [](auto&& damage) {
        auto segment = make_locked_segment();
        damage(*segment);
        Transaction transaction(*segment, kNoSlot, kMs);
        return transaction.status();
    };
    EXPECT_EQ(status_after([](Segment&) {}), Status::kOk);
    EXPECT_EQ(status_after([](Segment& s) { s.header.magic = 0; }), Status::kCorrupt);
    EXPECT_EQ(status_after([](Segment& s) { s.header.version = 9; }), Status::kCorrupt);
    EXPECT_EQ(status_after([](Segment& s) { s.arbitration.turn.word = 999; }), Status::kCorrupt);
    EXPECT_EQ(status_after([](Segment& s) { std::memset(s.arbitration.lock, 0xFF, 64); }),
              Status::kCorrupt);
    const std::uint32_t nobody = 0x3FFFFFF0;
    EXPECT_EQ(status_after([&](Segment& s) { std::memcpy(s.arbitration.lock, &nobody, 4); }),
              Status::kTimedOut);
}

}  // namespace
}  // namespace crossover
