// SPDX-License-Identifier: Apache-2.0
// Snapshots of a segment in heap memory, and the tables and JSON made of them.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>

#include "snapshot.hpp"
#include "status_view.hpp"

namespace crossover::command {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

std::unique_ptr<Segment> two_jobs() {
    auto segment = std::make_unique<Segment>();
    for (std::uint8_t place = 0; place < 16; ++place) {
        segment->header.device_uuid[place] = place;
    }
    segment->arbitration.round = 5;
    segment->arbitration.turn_count = 9;
    segment->arbitration.expired_count = 1;
    segment->arbitration.turn.word = 9U << 16U | 2U;  // slot 1
    JobSlot& waits = segment->jobs[0];
    waits.key = 7;
    std::strcpy(waits.name, "resnet");
    waits.state = JobState::kWaiting;
    waits.clients = 1;
    waits.turns = 4;
    waits.held_ns = 200 * kMs;
    waits.waited_ns = 100 * kMs;
    JobSlot& holds = segment->jobs[1];
    holds.key = 8;
    std::memset(holds.name, 'x', sizeof(holds.name));  // no closing zero: damage
    holds.name[0] = '\n';
    holds.state = JobState::kHolding;
    holds.turns = 4;
    holds.held_ns = 500 * kMs;
    holds.turn_since_ns = 900 * kMs;
    holds.lease_from_ns = 950 * kMs;
    holds.lease_ns = 80 * kMs;
    ClientSlot& client = segment->clients[100];
    client.attached = 1;
    client.job = 0;
    client.pid = 4711;
    client.ordinal = 3;
    client.attached_ns = 10 * kMs;
    client.phase = ClientPhase::kWaiting;
    client.phase_ns = 940 * kMs;
    client.mode = 1;
    client.windows = 12;
    client.crossings = 11;
    ClientSlot& lost = segment->clients[101];
    lost.attached = 1;
    lost.job = 0xFFFF;  // damage
    ClientSlot& departed = segment->clients[102];
    departed.attached_ns = 5;
    return segment;
}

TEST(Snapshot, CopiesWhatIsThereAndMakesDamageHarmless) {
    const auto segment = two_jobs();
    const DeviceSnapshot snapshot = snapshot_of(*segment, 1000 * kMs);
    EXPECT_EQ(snapshot.uuid, "GPU-00010203-0405-0607-0809-0a0b0c0d0e0f");
    ASSERT_EQ(snapshot.jobs.size(), 2U);
    EXPECT_EQ(snapshot.jobs[0].name, "resnet");
    EXPECT_EQ(snapshot.jobs[1].name, "?" + std::string(kJobNameBytes - 1, 'x'));
    EXPECT_TRUE(snapshot.turn_held);
    EXPECT_EQ(snapshot.holder, 1U);
    ASSERT_EQ(snapshot.clients.size(), 2U);
    EXPECT_EQ(snapshot.clients[0].slot, 100U);
    EXPECT_EQ(snapshot.job_in(snapshot.clients[1].job), nullptr);
    ASSERT_EQ(snapshot.departed.size(), 1U);
    EXPECT_EQ(snapshot.departed[0].slot, 102U);

    segment->arbitration.turn.word = 0xFFFF;  // damage
    EXPECT_FALSE(snapshot_of(*segment, 0).turn_held);
}

TEST(Status, TellsWhoseTurnItIsAndWhatIsLeft) {
    const std::string text = status_text_of({snapshot_of(*two_jobs(), 1000 * kMs)});
    EXPECT_NE(
        text.find(
            "'s turn for 100.0 ms, lease left 30.0 ms; round 5, 9 turns, 1 ended by their lease, "
            "0 clients died\n"),
        std::string::npos)
        << text;
    // 200 of 200 + 500 + 100 ms; mean turn 200/4, mean wait 100/4.
    EXPECT_NE(
        text.find(
            "  resnet                   waits                 4          50.00          25.00   "
            "25.0 %\n"),
        std::string::npos)
        << text;
    EXPECT_NE(
        text.find("    4711       3 waits                  60.0 on               12         11\n"),
        std::string::npos)
        << text;
}

TEST(Status, JsonHasTheSame) {
    const nlohmann::ordered_json json = status_json_of({snapshot_of(*two_jobs(), 1000 * kMs)});
    const auto& device = json.at("devices").at(0);
    EXPECT_EQ(device.at("round"), 5);
    EXPECT_DOUBLE_EQ(device.at("turn").at("since_ms").get<double>(), 100.0);
    EXPECT_DOUBLE_EQ(device.at("turn").at("lease_left_ms").get<double>(), 30.0);
    EXPECT_EQ(device.at("jobs").at(0).at("name"), "resnet");
    EXPECT_EQ(device.at("jobs").at(0).at("state"), "waits");
    EXPECT_DOUBLE_EQ(device.at("jobs").at(1).at("held_ms").get<double>(), 600.0);
    EXPECT_EQ(device.at("clients").at(0).at("pid"), 4711);
    EXPECT_EQ(device.at("clients").at(0).at("job"), "resnet");
}

TEST(Status, ALeaseThatRanOutHasNothingLeft) {
    const auto segment = two_jobs();
    const DeviceSnapshot snapshot = snapshot_of(*segment, 5000 * kMs);
    EXPECT_EQ(lease_left_ns(snapshot, *snapshot.job_in(1)), 0U);
    segment->jobs[1].lease_from_ns = 0;
    EXPECT_NE(status_text_of({snapshot_of(*segment, 1000 * kMs)}).find("nobody waits"),
              std::string::npos);
    segment->arbitration.turn.word = 0;
    EXPECT_NE(status_text_of({snapshot_of(*segment, 1000 * kMs)}).find("nobody's turn"),
              std::string::npos);
    EXPECT_TRUE(status_json_of({snapshot_of(*segment, 1000 * kMs)})
                    .at("devices")
                    .at(0)
                    .at("turn")
                    .is_null());
}

TEST(Status, WithoutJobsSaysSo) {
    EXPECT_EQ(status_text_of({}), "no jobs\n");
    const Segment empty{};
    EXPECT_EQ(status_text_of({snapshot_of(empty, 1)}), "no jobs\n");
}

}  // namespace
}  // namespace crossover::command
