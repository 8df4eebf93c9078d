// SPDX-License-Identifier: Apache-2.0
// The layout as other builds of the same version see it: offsets are part of the contract, so a
// change here asks for a new kLayoutVersion.
#include "crossover/layout.hpp"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "crossover/events.hpp"

namespace crossover {
namespace {

TEST(Layout, VersionThreeHasTheseOffsets) {
    ASSERT_EQ(kLayoutVersion, 3U) << "write down the new version's offsets here";
    EXPECT_EQ(offsetof(Header, magic), 0U);
    EXPECT_EQ(offsetof(Header, total_bytes), 8U);
    EXPECT_EQ(offsetof(Header, device_uuid), 16U);
    EXPECT_EQ(offsetof(Header, version), 32U);
    EXPECT_EQ(offsetof(Header, end), 36U);
    EXPECT_EQ(offsetof(Header, boot), 40U);
    EXPECT_EQ(offsetof(Header, identity), 48U);
    EXPECT_EQ(offsetof(Header, home), 56U);
    EXPECT_EQ(offsetof(Locator, memory), 12U);
    EXPECT_EQ(offsetof(Locator, identity), 16U);
    EXPECT_EQ(offsetof(Locator, ipc_namespace), 24U);
    EXPECT_EQ(offsetof(Locator, boot), 32U);
    EXPECT_EQ(offsetof(Locator, check), 56U);
    EXPECT_EQ(offsetof(Segment, arbitration), 64U);
    EXPECT_EQ(offsetof(Arbitration, turn), 64U);
    EXPECT_EQ(offsetof(Arbitration, round), 128U);
    EXPECT_EQ(offsetof(Arbitration, client_set), 176U);
    EXPECT_EQ(offsetof(Segment, jobs), 256U);
    EXPECT_EQ(offsetof(JobSlot, last_round), 24U);
    EXPECT_EQ(offsetof(JobSlot, lease_from_ns), 48U);
    EXPECT_EQ(offsetof(JobSlot, name), 96U);
    EXPECT_EQ(offsetof(JobSlot, fixed_lease_ns), 144U);
    EXPECT_EQ(offsetof(JobSlot, debt_ns), 152U);
    EXPECT_EQ(offsetof(JobSlot, weight), 160U);
    EXPECT_EQ(offsetof(Segment, clients), 256U + 192 * kMaxJobs);
    EXPECT_EQ(offsetof(ClientSlot, attached), 64U);
    EXPECT_EQ(offsetof(ClientSlot, claims), 88U);
    EXPECT_EQ(offsetof(ClientSlot, grant), 96U);
    EXPECT_EQ(offsetof(ClientSlot, notice), 100U);
    EXPECT_EQ(offsetof(ClientSlot, phase), 104U);
    EXPECT_EQ(offsetof(ClientSlot, exposed_ns), 136U);
    EXPECT_EQ(offsetof(ClientSlot, released_turn), 152U);
    EXPECT_EQ(offsetof(ClientSlot, stalled_ns), 160U);
    EXPECT_EQ(offsetof(ClientSlot, stall_site), 168U);
    EXPECT_EQ(offsetof(Segment, ring), 256U + 192 * kMaxJobs + 320 * kMaxClients);
    EXPECT_EQ(offsetof(EventRing, events), 64U);
    EXPECT_EQ(sizeof(Segment), 256U + 192 * kMaxJobs + 320 * kMaxClients + 64 + 40 * kRingEvents);
}

TEST(Layout, TheTurnLineIsOneCacheLineOfItsOwn) {
    EXPECT_EQ(offsetof(Segment, arbitration) % 64, 0U);
    EXPECT_EQ(sizeof(Turn), 64U);
    EXPECT_EQ(alignof(Turn), 64U);
    EXPECT_GE(kTurnJobMask, kMaxJobs) << "index + 1 fits";
}

TEST(Events, NumbersAndNamesAreDistinct) {
    std::set<int> numbers;
    std::set<std::string> names;
    int rows = 0;
#define CX_EVENT(identifier, number, name, value)          \
    numbers.insert(number);                                \
    names.insert(name);                                    \
    EXPECT_STREQ(event_name(EventKind::identifier), name); \
    ++rows;
#include "crossover/events.def"
#undef CX_EVENT
    EXPECT_EQ(numbers.size(), static_cast<std::size_t>(rows));
    EXPECT_EQ(names.size(), static_cast<std::size_t>(rows));
    EXPECT_EQ(numbers.count(0), 0U);
    EXPECT_STREQ(event_name(static_cast<EventKind>(60000)), "unknown");
}

}  // namespace
}  // namespace crossover
