// SPDX-License-Identifier: Apache-2.0
// The event ring: order, overwriting, half-written records, writers and a reader at once.
#include "arbiter/ring.hpp"

#include <gtest/gtest.h>

#include <atomic>
#include <thread>

#include "tests/unit/state_invariants.hpp"

namespace crossover {
namespace {

EventRecord event(std::uint64_t value) {
    EventRecord made;
    made.time_ns = 1000 + value;
    made.value = value;
    made.kind = EventKind::kGrant;
    made.client = static_cast<std::uint32_t>(value % 128 + 1);
    made.job = static_cast<std::uint16_t>(value % 32 + 1);
    made.job_key = ~value;
    return made;
}

void expect_whole(const EventRecord& record) {
    const EventRecord expected = event(record.value);
    EXPECT_EQ(record.time_ns, expected.time_ns);
    EXPECT_EQ(record.kind, expected.kind);
    EXPECT_EQ(record.client, expected.client);
    EXPECT_EQ(record.job, expected.job);
    EXPECT_EQ(record.job_key, expected.job_key);
}

TEST(Ring, GivesBackWhatWasWritten) {
    auto segment = make_segment();
    EXPECT_TRUE(read_events(*segment, 0).events.empty());
    for (std::uint64_t i = 0; i < 10; ++i) append_event(*segment, event(i));
    const EventBatch batch = read_events(*segment, 3);
    ASSERT_EQ(batch.events.size(), 7U);
    EXPECT_EQ(batch.next, 10U);
    EXPECT_EQ(batch.lost, 0U);
    for (std::size_t i = 0; i < batch.events.size(); ++i) {
        EXPECT_EQ(batch.events[i].place, i + 3);
        EXPECT_EQ(batch.events[i].value, i + 3);
        expect_whole(batch.events[i]);
    }
    EXPECT_TRUE(read_events(*segment, batch.next).events.empty());
    EXPECT_EQ(read_events(*segment, 1000).next, 10U) << "the ring was made anew";
}

TEST(Ring, TellsHowManyWereOverwritten) {
    auto segment = make_segment();
    for (std::uint64_t i = 0; i < kRingEvents + 100; ++i) append_event(*segment, event(i));
    const EventBatch batch = read_events(*segment, 40);
    EXPECT_EQ(batch.lost, 60U);
    ASSERT_EQ(batch.events.size(), kRingEvents);
    EXPECT_EQ(batch.events.front().value, 100U);
    EXPECT_EQ(batch.events.back().value, kRingEvents + 99);
}

TEST(Ring, DropsARecordThatIsBeingWritten) {
    auto segment = make_segment();
    for (std::uint64_t i = 0; i < 5; ++i) append_event(*segment, event(i));
    segment->ring.events[2].sequence.store(0);
    const EventBatch batch = read_events(*segment, 0);
    EXPECT_EQ(batch.lost, 1U);
    ASSERT_EQ(batch.events.size(), 4U);
    EXPECT_EQ(batch.events[2].value, 3U);
}

TEST(Ring, AnyCounterIsRead) {
    auto segment = make_segment();
    segment->ring.next.store(UINT64_MAX - 3);
    append_event(*segment, event(1));
    const EventBatch batch = read_events(*segment, 0);
    EXPECT_EQ(batch.events.size(), 1U);
    EXPECT_EQ(batch.events.size() + batch.lost, batch.next);
}

TEST(Ring, ReadersOnlySeeWholeRecords) {
    auto segment = make_segment();
    std::atomic<bool> stop{false};
    std::vector<std::thread> writers;
    for (std::uint64_t writer = 0; writer < 2; ++writer) {
        writers.emplace_back([&, writer] {
            for (std::uint64_t i = 0; !stop; ++i) append_event(*segment, event(i * 2 + writer));
        });
    }
    std::uint64_t from = 0;
    std::uint64_t seen = 0;
    while (seen < 200'000) {
        const EventBatch batch = read_events(*segment, from);
        ASSERT_EQ(batch.events.size() + batch.lost, batch.next - from);
        std::uint64_t last = 0;
        for (const EventRecord& record : batch.events) {
            ASSERT_GE(record.place, std::max(from, last));
            last = record.place + 1;
            expect_whole(record);
        }
        if (testing::Test::HasFailure()) break;
        seen += batch.events.size();
        from = batch.next;
    }
    stop = true;
    for (std::thread& writer : writers) writer.join();
}

}  // namespace
}  // namespace crossover
