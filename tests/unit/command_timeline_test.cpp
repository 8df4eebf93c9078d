// SPDX-License-Identifier: Apache-2.0
// Events to intervals, sets of intervals, the truth log and the part of a timeline that is shown
// first.
#include <gtest/gtest.h>

#include <sstream>

#include "command.hpp"
#include "timeline.hpp"
#include "truth.hpp"

namespace crossover::command {

bool operator==(const Interval& left, const Interval& right) {
    return left.begin_ns == right.begin_ns && left.end_ns == right.end_ns;
}

void PrintTo(const Interval& interval, std::ostream* out) {
    *out << interval.begin_ns << "-" << interval.end_ns;
}

namespace {

constexpr std::uint64_t kA = 11;
constexpr std::uint64_t kB = 22;

class Story {
  public:
    explicit Story(std::uint64_t begin_ns = 1000) : builder("gpu", begin_ns) {
        builder.name_job(kA, "A");
        builder.name_job(kB, "B");
    }
    Story& at(std::uint64_t time_ns, EventKind kind, std::uint64_t job, std::uint32_t client,
              std::uint64_t value = 0) {
        builder.add({time_ns, kind, value, client, job});
        return *this;
    }
    DeviceBuilder builder;
};

TEST(Timeline, AlternatingJobsBecomeLanesAndTurns) {
    Story story;
    // The events of a hand-over carry the client that made it, here B's grant by A's client.
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1000, EventKind::kAttach, kB, 2)
        .at(1100, EventKind::kWait, kA, 1)
        .at(1100, EventKind::kGrant, kA, 1)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1150, EventKind::kWait, kB, 2)
        .at(1180, EventKind::kCollectiveBegin, kA, 1, 1)
        .at(1200, EventKind::kWindowOpen, kA, 1, 1)
        .at(1200, EventKind::kRelease, kA, 1, 100)
        .at(1200, EventKind::kGrant, kB, 1, 50)
        .at(1205, EventKind::kCompute, kB, 2)
        .at(1290, EventKind::kCollectiveEnd, kA, 1, 110)
        .at(1290, EventKind::kWindowClose, kA, 1, 90)
        .at(1290, EventKind::kWait, kA, 1)
        .at(1300, EventKind::kExpire, kB, 1, 100)
        .at(1300, EventKind::kGrant, kA, 1, 10)
        .at(1310, EventKind::kCompute, kA, 1);
    const DeviceTimeline device = story.builder.finish(1400);

    ASSERT_EQ(device.jobs.size(), 2U);
    const JobLanes& a = device.jobs[0];
    const JobLanes& b = device.jobs[1];
    EXPECT_EQ(a.name, "A");
    EXPECT_EQ(b.name, "B");
    EXPECT_EQ(a.compute, (Intervals{{1100, 1200}, {1310, 1400}})) << "still open at the end";
    EXPECT_EQ(a.in_flight, (Intervals{{1180, 1290}}));
    EXPECT_EQ(a.window, (Intervals{{1200, 1290}}));
    EXPECT_EQ(a.waiting, (Intervals{{1290, 1300}}));
    EXPECT_EQ(b.compute, (Intervals{{1205, 1300}}));
    EXPECT_EQ(b.waiting, (Intervals{{1150, 1200}}));
    ASSERT_EQ(device.turns.size(), 3U);
    EXPECT_EQ(device.turns[0].job, 0U);
    EXPECT_EQ(device.turns[0].time, (Interval{1100, 1200}));
    EXPECT_FALSE(device.turns[0].cut_by_lease);
    EXPECT_EQ(device.turns[1].job, 1U);
    EXPECT_EQ(device.turns[1].time, (Interval{1200, 1300}));
    EXPECT_TRUE(device.turns[1].cut_by_lease);
    EXPECT_EQ(device.turns[2].time, (Interval{1300, 1400}));
    EXPECT_TRUE(device.lost.empty());
    EXPECT_EQ(device.lost_events, 0U);
}

TEST(Timeline, ClientsOfOneJobShareItsLanes) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1000, EventKind::kAttach, kA, 2)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1150, EventKind::kCompute, kA, 2)
        .at(1200, EventKind::kWindowOpen, kA, 1, 1)
        .at(1300, EventKind::kWindowOpen, kA, 2, 1)
        .at(1350, EventKind::kWindowClose, kA, 1, 150)
        .at(1360, EventKind::kWindowClose, kA, 2, 60);
    const DeviceTimeline device = story.builder.finish(1400);
    ASSERT_EQ(device.jobs.size(), 2U);
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{1100, 1300}}));
    EXPECT_EQ(device.jobs[0].window, (Intervals{{1200, 1360}}));
}

TEST(Timeline, CollectivesTellWhenTheyEndHowLongTheyRan) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1050, EventKind::kCollectiveBegin, kA, 1, 1)
        .at(1060, EventKind::kCollectiveBegin, kA, 1, 2)
        .at(1150, EventKind::kCollectiveEnd, kA, 1, 50)
        .at(1180, EventKind::kCollectiveEnd, kA, 1, 30)
        .at(1220, EventKind::kCollectiveEnd, kA, 1, 20)
        .at(1230, EventKind::kCollectiveEnd, kA, 1, 0);
    EXPECT_EQ(story.builder.finish(1250).jobs[0].in_flight,
              (Intervals{{1100, 1180}, {1200, 1220}}));
}

TEST(Timeline, ALeaseThatRanOutEndsComputeUntilTheNextTurn) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1100, EventKind::kGrant, kA, 1)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1200, EventKind::kExpire, kA, 0, 100)
        .at(1300, EventKind::kGrant, kA, 1, 90)
        .at(1310, EventKind::kCompute, kA, 1);
    EXPECT_EQ(story.builder.finish(1400).jobs[0].compute, (Intervals{{1100, 1200}, {1310, 1400}}));
}

TEST(Timeline, AJobLeftAloneIsNotFollowedAnyMore) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1000, EventKind::kAttach, kB, 2)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1200, EventKind::kDetach, kB, 2);
    EXPECT_EQ(story.builder.finish(9000).jobs[0].compute, (Intervals{{1100, 1200}}));
}

TEST(Timeline, IdleEndsComputeWhenTheSilenceBegan) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1500, EventKind::kIdle, kA, 1, 300);
    EXPECT_EQ(story.builder.finish(2000).jobs[0].compute, (Intervals{{1100, 1200}}));
}

TEST(Timeline, DeathEndsWhatTheClientDid) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1000, EventKind::kAttach, kB, 2)
        .at(1050, EventKind::kCompute, kA, 1)
        .at(1060, EventKind::kWait, kB, 2)
        .at(1200, EventKind::kReap, kA, 1)
        .at(1300, EventKind::kDetach, kB, 2);
    const DeviceTimeline device = story.builder.finish(2000);
    EXPECT_EQ(device.jobs[1].waiting, (Intervals{{1060, 1300}}));
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{1050, 1200}}));
}

TEST(Timeline, ATraceThatBeginsInTheMiddleTakesWhatTheEventsTell) {
    Story story(1000);
    // Granted at 600, the window open since 800: known from the values, shown from 1000 on.
    story.at(1100, EventKind::kRelease, kA, 1, 500)
        .at(1200, EventKind::kWindowClose, kA, 1, 400)
        .at(1250, EventKind::kWindowOpen, kB, 2, 7)
        .at(1300, EventKind::kWindowClose, kB, 2, 50)
        .at(1350, EventKind::kWindowOpen, kB, 2, 8);
    const DeviceTimeline device = story.builder.finish(1400);
    ASSERT_EQ(device.turns.size(), 1U);
    EXPECT_EQ(device.turns[0].time, (Interval{1000, 1100}));
    EXPECT_EQ(device.jobs[0].window, (Intervals{{1000, 1200}}));
    EXPECT_EQ(device.jobs[1].compute, (Intervals{{1000, 1250}}))
        << "computed before its first window only";
    EXPECT_EQ(device.jobs[1].window, (Intervals{{1250, 1300}, {1350, 1400}}));
}

TEST(Timeline, TheSnapshotTellsWhatGoesOnAtTheBeginning) {
    DeviceSnapshot snapshot;
    snapshot.now_ns = 1000;
    snapshot.turn_held = true;
    snapshot.holder = 3;
    snapshot.jobs.resize(2);
    snapshot.jobs[0].slot = 3;
    snapshot.jobs[0].key = kA;
    snapshot.jobs[0].name = "first";
    snapshot.jobs[0].turn_since_ns = 700;
    snapshot.jobs[1].slot = 4;
    snapshot.jobs[1].key = kB;
    snapshot.jobs[1].name = "second";
    snapshot.jobs[1].state = JobState::kWaiting;
    snapshot.jobs[1].wait_since_ns = 900;
    snapshot.clients.resize(1);
    snapshot.clients[0].slot = 0;
    snapshot.clients[0].job = 3;
    snapshot.clients[0].phase = ClientPhase::kComputing;
    snapshot.clients[0].phase_ns = 800;
    DeviceBuilder builder("gpu", 1000);
    builder.begin_with(snapshot);
    builder.add({1500, EventKind::kWindowOpen, 1, 1, kA});
    const DeviceTimeline device = builder.finish(2000);
    ASSERT_EQ(device.jobs.size(), 2U);
    EXPECT_EQ(device.jobs[0].name, "first");
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{1000, 1500}}));
    EXPECT_EQ(device.jobs[1].waiting, (Intervals{{1000, 2000}}));
    ASSERT_EQ(device.turns.size(), 1U);
    EXPECT_EQ(device.turns[0].time, (Interval{1000, 2000}));
}

TEST(Timeline, LostEventsLeaveAnUnknownPartAndNoInventedIntervals) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1100, EventKind::kGrant, kA, 1)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1150, EventKind::kCollectiveBegin, kA, 1, 1);
    story.builder.lost(40);
    story.at(1600, EventKind::kCompute, kA, 1).at(1700, EventKind::kWindowOpen, kA, 1, 9);
    const DeviceTimeline device = story.builder.finish(1800);
    EXPECT_EQ(device.lost_events, 40U);
    EXPECT_EQ(device.lost, (Intervals{{1150, 1600}}));
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{1100, 1150}, {1600, 1700}}));
    EXPECT_EQ(device.jobs[0].window, (Intervals{{1700, 1800}}));
    ASSERT_EQ(device.turns.size(), 1U);
    EXPECT_EQ(device.turns[0].time, (Interval{1100, 1150}));
}

TEST(Timeline, AMovedClientEndsInItsFirstJob) {
    Story story;
    story.at(1000, EventKind::kAttach, kA, 1)
        .at(1100, EventKind::kCompute, kA, 1)
        .at(1200, EventKind::kAttach, kB, 1)
        .at(1300, EventKind::kCompute, kB, 1);
    const DeviceTimeline device = story.builder.finish(1400);
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{1100, 1200}}));
    EXPECT_EQ(device.jobs[1].compute, (Intervals{{1300, 1400}}));
}

TEST(Timeline, UnnamedJobsGetNumbers) {
    DeviceBuilder builder("gpu", 1000);
    builder.add({1000, EventKind::kCompute, 0, 1, 99});
    EXPECT_EQ(builder.finish(1100).jobs.at(0).name, "job 1");
}

TEST(Intervals, SetOperations) {
    EXPECT_EQ(united({{5, 8}, {1, 3}, {3, 4}, {7, 10}, {20, 20}}), (Intervals{{1, 4}, {5, 10}}));
    const Intervals left{{0, 10}, {20, 30}};
    const Intervals right{{2, 4}, {8, 22}, {29, 40}};
    EXPECT_EQ(intersection(left, right), (Intervals{{2, 4}, {8, 10}, {20, 22}, {29, 30}}));
    EXPECT_EQ(difference(left, right), (Intervals{{0, 2}, {4, 8}, {22, 29}}));
    EXPECT_EQ(difference(left, {}), left);
    EXPECT_EQ(difference(left, {{0, 100}}), Intervals{});
    EXPECT_EQ(total_ns(left), 20U);
}

TEST(Intervals, SharesCountWhatOtherJobsCover) {
    DeviceTimeline device;
    device.jobs = {{"A", {{0, 50}}, {{40, 100}}, {{50, 100}}, {{100, 110}}},
                   {"B", {{60, 90}}, {}, {}, {}},
                   {"C", {{80, 95}}, {}, {}, {}}};
    const JobShare share = share_of(device, 0);
    EXPECT_EQ(share.compute_ns, 50U);
    EXPECT_EQ(share.in_flight_ns, 60U);
    EXPECT_EQ(share.window_ns, 50U);
    EXPECT_EQ(share.covered_ns, 35U);
    EXPECT_EQ(share.waiting_ns, 10U);
}

TEST(TellingPart, IsTheLastTurnsInWhichJobsAlternate) {
    Timeline timeline;
    timeline.begin_ns = 0;
    timeline.end_ns = 100'000;
    DeviceTimeline device;
    device.jobs.resize(2);
    for (std::size_t turn = 0; turn < 10; ++turn) {
        device.turns.push_back({turn % 2, {turn * 1000, turn * 1000 + 1000}, false});
    }
    device.turns.push_back({0, {10'000, 100'000}, false});  // alone at the end
    timeline.devices.push_back(device);
    const Interval part = telling_part(timeline, 4);
    EXPECT_EQ(part, (Interval{6000 - 160, 10'000 + 160}));
}

TEST(TellingPart, WithoutTurnsIsAStretchOfWindows) {
    Timeline timeline;
    timeline.begin_ns = 0;
    timeline.end_ns = 10'000;
    DeviceTimeline device;
    device.jobs.resize(1);
    for (std::uint64_t cycle = 0; cycle < 10; ++cycle) {
        device.jobs[0].compute.push_back({cycle * 1000, cycle * 1000 + 500});
        device.jobs[0].window.push_back({cycle * 1000 + 500, cycle * 1000 + 990});
        device.jobs[0].window.push_back(
            {cycle * 1000 + 995, cycle * 1000 + 1000});  // a gap, no window
    }
    timeline.devices.push_back(device);
    const Interval part = telling_part(timeline, 6);
    EXPECT_EQ(part, (Interval{4990 - 160, 8990 + 160}));
}

TEST(TellingPart, OfNothingIsTheWhole) {
    Timeline timeline;
    timeline.begin_ns = 5;
    timeline.end_ns = 9;
    EXPECT_EQ(telling_part(timeline, 6), (Interval{5, 9}));
}

TEST(Truth, BecomesTheSameLanes) {
    std::istringstream in(
        R"({"device":0,"pid":7,"stream":1,"kind":"compute","start_ns":100,"end_ns":200})"
        "\n"
        R"({"device":0,"pid":7,"stream":2,"kind":"communicate","start_ns":150,"end_ns":300,"comm":1})"
        "\n"
        R"({"device":0,"pid":7,"stream":3,"kind":"copy","start_ns":1,"end_ns":900})"
        "\n"
        R"({"device":0,"pid":8,"stream":1,"kind":"compute","start_ns":200,"end_ns":280})"
        "\n"
        R"({"device":1,"pid":9,"stream":1,"kind":"compute","start_ns":90,"end_ns":120})"
        "\n"
        R"({"device":1,"pid":9,"str)");
    JobOfPid jobs;
    add_job_pids("A=7,9", jobs);
    const Timeline timeline = read_truth(in, jobs);
    ASSERT_EQ(timeline.devices.size(), 2U);
    EXPECT_EQ(timeline.begin_ns, 90U);
    EXPECT_EQ(timeline.end_ns, 300U);
    const DeviceTimeline& device = timeline.devices[0];
    EXPECT_EQ(device.name, "device 0");
    ASSERT_EQ(device.jobs.size(), 2U);
    EXPECT_EQ(device.jobs[0].name, "A");
    EXPECT_EQ(device.jobs[0].compute, (Intervals{{100, 200}}));
    EXPECT_EQ(device.jobs[0].in_flight, (Intervals{{150, 300}}));
    EXPECT_EQ(device.jobs[0].window, (Intervals{{200, 300}}));
    EXPECT_EQ(device.jobs[1].name, "pid 8");
    EXPECT_EQ(timeline.devices[1].jobs.at(0).name, "A");
    EXPECT_EQ(share_of(device, 0).covered_ns, 80U);
}

TEST(Truth, NamesTheLineThatCannotBeRead) {
    const auto fault_of = [](const std::string& text) {
        std::istringstream in(text);
        try {
            read_truth(in, {});
        } catch (const Failure& failure) {
            return std::string(failure.what());
        }
        return std::string("no fault");
    };
    EXPECT_TRUE(fault_of("\n{\"device\":0}\n").starts_with("line 2: "))
        << fault_of("\n{\"device\":0}\n");
    EXPECT_EQ(fault_of("{\"device\":0,\"pid\":1,\"kind\":\"x\",\"start_ns\":1,\"end_ns\":2}\n"),
              "line 1: kind 'x' is not compute, copy or communicate");
}

TEST(Truth, JobsAreGivenAsNameAndProcesses) {
    const auto fault_of = [](const std::string& text) {
        JobOfPid jobs{{5, "other"}};
        try {
            add_job_pids(text, jobs);
        } catch (const UsageError& error) {
            return std::string(error.what());
        }
        return std::string("no fault");
    };
    EXPECT_EQ(fault_of("A=1,2"), "no fault");
    EXPECT_EQ(fault_of("A"), "--job 'A': no name; allowed: NAME=pid or NAME=pid,pid");
    EXPECT_EQ(fault_of("A="),
              "--job 'A=': '' is not a process id; allowed: NAME=pid or NAME=pid,pid");
    EXPECT_EQ(fault_of("A=1,"),
              "--job 'A=1,': '' is not a process id; allowed: NAME=pid or NAME=pid,pid");
    EXPECT_EQ(fault_of("A=1,x"),
              "--job 'A=1,x': 'x' is not a process id; allowed: NAME=pid or NAME=pid,pid");
    EXPECT_EQ(fault_of("A=5"),
              "--job 'A=5': process 5 is named twice; allowed: NAME=pid or NAME=pid,pid");
}

}  // namespace
}  // namespace crossover::command
