// SPDX-License-Identifier: Apache-2.0
// Snapshots of a segment in heap memory, and the tables and JSON made of them.
#include <gtest/gtest.h>

#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <string_view>

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

// A call site that fills its field, without a closing zero.
std::unique_ptr<Segment> stalled() {
    auto segment = two_jobs();
    ClientSlot& client = segment->clients[100];
    std::memset(client.stall_site, 'y', sizeof client.stall_site);
    client.stalled_ns = 400 * kMs;
    std::strcpy(segment->jobs[1].name, "bert");
    return segment;
}

TEST(Snapshot, TextEndsInItsFieldAndHoldsNothingUnprintable) {
    const auto of = [](std::string_view bytes) { return text_of(bytes.data(), bytes.size()); };
    EXPECT_EQ(of(std::string_view("train.py:12\0behind", 18)), "train.py:12");
    EXPECT_EQ(of("a\x1b[31mb\x7f\tc"), "a?[31mb??c");
    EXPECT_EQ(of("Stra\xc3\x9f"
                 "e \xe4\xb8\xad \xf0\x9f\x99\x82"),
              "Stra\xc3\x9f"
              "e \xe4\xb8\xad \xf0\x9f\x99\x82");
    EXPECT_EQ(of("cut \xe4\xb8"), "cut ??");           // an unfinished character
    EXPECT_EQ(of("\x9b \xff \xc3("), "? ? ?(");        // no characters
    EXPECT_EQ(of("\xc2\x9b"), "??");                   // a control of 8-bit terminals
    EXPECT_EQ(of("\xc0\xaf \xe0\x80\xaf"), "?? ???");  // written longer than need be
    EXPECT_EQ(of("\xed\xa0\x80"), "???");              // half a pair
    EXPECT_EQ(of("\xf4\x90\x80\x80 \xf8"), "???? ?");  // beyond the last
    EXPECT_EQ(of("\xe2\x80\xae"), "???");              // turns the direction of a line
    EXPECT_EQ(of(""), "");
}

TEST(Status, TellsWhoStallsWhereAndWhoHasTheTurn) {
    const auto segment = stalled();
    const std::string site(kCallSiteBytes, 'y');
    const std::string text = status_text_of({snapshot_of(*segment, 1000 * kMs)});
    EXPECT_NE(text.find("\n  stalled: resnet, pid 4711: waits for its turn for 600.0 ms in " +
                        site + "; bert has it for 100.0 ms\n"),
              std::string::npos)
        << text;
    const nlohmann::ordered_json client =
        status_json_of({snapshot_of(*segment, 1000 * kMs)}).at("devices").at(0).at("clients").at(0);
    EXPECT_DOUBLE_EQ(client.at("stall").at("waits_ms").get<double>(), 600.0);
    EXPECT_EQ(client.at("stall").at("site"), site);
    EXPECT_EQ(client.at("stall").at("turn_of"), "bert");
    EXPECT_DOUBLE_EQ(client.at("stall").at("turn_ms").get<double>(), 100.0);
}

TEST(Status, AStallWithoutPlaceOrHolderSaysSo) {
    const auto segment = stalled();
    segment->clients[100].stall_site[0] = '\0';
    segment->clients[100].stalled_ns = 5000 * kMs;  // ahead of the clock: damage
    segment->arbitration.turn.word = 0;
    const DeviceSnapshot snapshot = snapshot_of(*segment, 1000 * kMs);
    EXPECT_NE(
        status_text_of({snapshot})
            .find("waits for its turn for 0.0 ms in a place that is not known; nobody has it\n"),
        std::string::npos)
        << status_text_of({snapshot});
    const nlohmann::ordered_json client =
        status_json_of({snapshot}).at("devices").at(0).at("clients").at(0);
    EXPECT_TRUE(client.at("stall").at("site").is_null());
    EXPECT_TRUE(client.at("stall").at("turn_of").is_null());
}

TEST(Status, WhoDoesNotStallIsNotListedWhateverTheTextSays) {
    const auto segment = stalled();
    segment->clients[100].stalled_ns = 0;
    segment->clients[102].stalled_ns = 5;  // of a client that has left
    const DeviceSnapshot snapshot = snapshot_of(*segment, 1000 * kMs);
    EXPECT_EQ(status_text_of({snapshot}).find("stalled"), std::string::npos);
    // A name of its own: a part of a temporary would not outlive the loop's first line.
    const nlohmann::ordered_json json = status_json_of({snapshot});
    const auto& clients = json.at("devices").at(0).at("clients");
    EXPECT_FALSE(clients.empty());
    for (const auto& client : clients) EXPECT_TRUE(client.at("stall").is_null());
}

TEST(Status, WeightsAreAColumnWhereOneWasGiven) {
    const auto segment = two_jobs();
    EXPECT_EQ(status_text_of({snapshot_of(*segment, 1000 * kMs)}).find("weight"),
              std::string::npos);
    segment->jobs[0].weight = 300;
    const DeviceSnapshot snapshot = snapshot_of(*segment, 1000 * kMs);
    const std::string text = status_text_of({snapshot});
    EXPECT_NE(text.find("   share   weight\n"), std::string::npos) << text;
    EXPECT_NE(text.find("   25.0 %      300\n"), std::string::npos) << text;
    EXPECT_NE(text.find("   75.0 %        -\n"), std::string::npos) << text;
    const auto jobs = status_json_of({snapshot}).at("devices").at(0).at("jobs");
    EXPECT_EQ(jobs.at(0).at("weight"), 300);
    EXPECT_DOUBLE_EQ(jobs.at(0).at("share").get<double>(), 0.25);
    EXPECT_TRUE(jobs.at(1).at("weight").is_null());
}

TEST(Status, BeforeTheFirstTurnNobodyHasAShare) {
    const auto segment = two_jobs();
    segment->arbitration.turn.word = 0;
    for (JobSlot& job : segment->jobs) job.held_ns = 0;
    const auto jobs =
        status_json_of({snapshot_of(*segment, 1000 * kMs)}).at("devices").at(0).at("jobs");
    EXPECT_TRUE(jobs.at(0).at("share").is_null());
}

TEST(Status, SegmentsThatWereLeftForGoodAreNotShown) {
    const auto segment = two_jobs();
    for (const SegmentEnd end : {SegmentEnd::kLeft, SegmentEnd::kGivenUp}) {
        segment->header.end = end;
        const DeviceSnapshot snapshot = snapshot_of(*segment, 1000 * kMs);
        EXPECT_EQ(status_text_of({snapshot}), "no jobs\n");
        EXPECT_TRUE(status_json_of({snapshot}).at("devices").empty());
        EXPECT_EQ(snapshot.jobs.size(), 2U);  // sums over what was are still to be had
    }
}

TEST(Status, WithoutJobsSaysSo) {
    EXPECT_EQ(status_text_of({}), "no jobs\n");
    const Segment empty{};
    EXPECT_EQ(status_text_of({snapshot_of(empty, 1)}), "no jobs\n");
}

}  // namespace
}  // namespace crossover::command
