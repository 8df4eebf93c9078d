// SPDX-License-Identifier: Apache-2.0
// The two renderings of a timeline: that the JSON is what Perfetto reads, and that the page holds
// what it must and nothing else's markup.
#include "page.hpp"

#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>
#include <set>
#include <sstream>

#include "perfetto.hpp"

namespace crossover::command {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kBegin = 5'000'000'000;

Timeline alternating(std::size_t cycles) {
    Timeline timeline;
    timeline.source = "From a test";
    timeline.begin_ns = kBegin;
    DeviceTimeline device;
    device.name = "GPU <1>";
    device.jobs.resize(2);
    device.jobs[0].name = "A & \"co\"";
    device.jobs[1].name = "B";
    for (std::size_t turn = 0; turn < 2 * cycles; ++turn) {
        const std::uint64_t begin = kBegin + turn * 50 * kMs;
        const std::uint64_t end = begin + 50 * kMs;
        JobLanes& job = device.jobs[turn % 2];
        JobLanes& other = device.jobs[1 - turn % 2];
        job.compute.push_back({begin, end});
        other.in_flight.push_back({begin, end - 5 * kMs});
        other.window.push_back({begin, end - 5 * kMs});
        other.waiting.push_back({end - 5 * kMs, end});
        device.turns.push_back({turn % 2, {begin, end}, turn == 3});
        timeline.end_ns = end;
    }
    timeline.devices.push_back(std::move(device));
    return timeline;
}

std::size_t count(const std::string& text, const std::string& word) {
    std::size_t found = 0;
    for (std::size_t place = text.find(word); place != std::string::npos;
         place = text.find(word, place + 1)) {
        ++found;
    }
    return found;
}

std::string page_of(const Timeline& timeline, const PageLimits& limits = {}) {
    std::ostringstream out;
    write_page(out, timeline, limits);
    return out.str();
}

TEST(Perfetto, IsAChromeTraceWithALaneForEachThread) {
    std::ostringstream out;
    write_perfetto(out, alternating(3));
    const nlohmann::json json = nlohmann::json::parse(out.str());
    EXPECT_EQ(json.at("displayTimeUnit"), "ms");
    EXPECT_EQ(json.at("otherData").at("begin_monotonic_ns"), kBegin);
    std::map<std::pair<int, int>, std::string> names;
    std::map<std::pair<int, int>, double> ends;
    std::map<std::string, std::size_t> slices;
    std::string process;
    for (const auto& event : json.at("traceEvents")) {
        const std::pair<int, int> lane{event.at("pid").get<int>(), event.at("tid").get<int>()};
        if (event.at("ph") == "M") {
            if (event.at("name") == "thread_name") {
                names[lane] = event.at("args").at("name");
            } else if (event.at("name") == "process_name") {
                process = event.at("args").at("name");
            }
            continue;
        }
        ASSERT_EQ(event.at("ph"), "X");
        ASSERT_TRUE(names.contains(lane)) << "a slice in a lane without a name";
        const double begin = event.at("ts").get<double>();
        const double length = event.at("dur").get<double>();
        EXPECT_GE(begin, ends[lane]) << "slices of a lane must not overlap";
        EXPECT_GT(length, 0);
        ends[lane] = begin + length;
        ++slices[names[lane]];
    }
    EXPECT_EQ(process, "GPU <1>");
    EXPECT_EQ(slices["whose turn"], 6U);
    EXPECT_EQ(slices["A & \"co\": compute"], 3U);
    EXPECT_EQ(slices["B: collective in flight"], 3U);
    EXPECT_EQ(slices["B: communication window"], 3U);
    EXPECT_EQ(slices["B: waits for its turn"], 3U);
    EXPECT_EQ(slices["B: has the turn"], 3U);
    EXPECT_DOUBLE_EQ(ends[std::make_pair(1, 1)], 300'000.0);
}

TEST(Perfetto, SurvivesANameThatIsNoText) {
    Timeline timeline = alternating(1);
    timeline.devices[0].jobs[0].name = "\xff\xfe";
    std::ostringstream out;
    write_perfetto(out, timeline);
    EXPECT_TRUE(nlohmann::json::accept(out.str()));
}

TEST(Page, ShowsTheLastTurnsWithoutAnyScript) {
    const std::string page = page_of(alternating(20));
    // 40 turns of 50 ms, the last one left out; 8 of the others, and 4 % of room at both ends.
    EXPECT_NE(page.find("viewBox=\"1534.0000 0 432.0000"), std::string::npos);
    EXPECT_NE(page.find("data-whole=\"[0.0000,2000.0000]\""), std::string::npos);
    EXPECT_NE(page.find("<text class=\"soft\" x=\"385.11"), std::string::npos)
        << "a tick at 1600 ms";
    EXPECT_NE(page.find("1600 ms</text>"), std::string::npos);
    EXPECT_EQ(count(page, "http"), count(page, "http://www.w3.org/2000/svg"))
        << "nothing from elsewhere";
    EXPECT_NE(page.find("data-what=\"B only communicates\""), std::string::npos);
    EXPECT_NE(page.find("until its lease runs out"), std::string::npos);
    EXPECT_NE(page.find("waits for its turn"), std::string::npos);
}

TEST(Page, EscapesNames) {
    const std::string page = page_of(alternating(2));
    EXPECT_NE(page.find("A &amp; &quot;co&quot; computes"), std::string::npos);
    EXPECT_NE(page.find("GPU &lt;1&gt;"), std::string::npos);
    EXPECT_EQ(page.find("GPU <1>"), std::string::npos);
    EXPECT_EQ(escaped("<&>\"'"), "&lt;&amp;&gt;&quot;'");
}

TEST(Page, TellsShares) {
    const std::string page = page_of(alternating(10));
    EXPECT_NE(
        page.find("<td>50.0 %</td><td>45.0 %</td><td>45.0 %</td><td>100.0 %</td><td>5.0 %</td>"),
        std::string::npos)
        << page.substr(page.find("<table"));
}

TEST(Page, DrawsTheLastPartOfALongTraceAndSaysSo) {
    const std::string page = page_of(alternating(100), {2'000 * kMs, 100'000, 6});
    EXPECT_NE(page.find("Only the last 2.0 s of 10.0 s are drawn."), std::string::npos);
    EXPECT_NE(page.find("data-whole=\"[8000.0000,10000.0000]\""), std::string::npos);
    const std::string few = page_of(alternating(100), {100'000 * kMs, 100, 6});
    EXPECT_NE(few.find("Only the last 0.6 s of 10.0 s are drawn."), std::string::npos);
}

TEST(Page, MarksWhatIsUnknown) {
    Timeline timeline = alternating(2);
    timeline.devices[0].lost = {{kBegin + 10 * kMs, kBegin + 20 * kMs}};
    timeline.devices[0].lost_events = 17;
    const std::string page = page_of(timeline);
    EXPECT_NE(page.find("<g data-what=\"unknown, events were overwritten,\" class=\"lost\"><rect"),
              std::string::npos);
    EXPECT_NE(page.find("17 events of GPU &lt;1&gt; were overwritten"), std::string::npos);
}

TEST(Page, TimesUpToTheEndOfTheirRangeHaveAFewTicks) {
    // As damaged events may tell.
    constexpr std::uint64_t kLast = ~std::uint64_t{0};
    for (const std::uint64_t begin : {std::uint64_t{0}, std::uint64_t{1}, kLast - 7, kBegin}) {
        Timeline timeline = alternating(2);
        timeline.begin_ns = begin;
        timeline.end_ns = kLast;
        timeline.devices[0].jobs[0].compute = {{begin, begin + 1}, {kLast - 1, kLast}};
        const std::string page = page_of(timeline, {kLast, 100'000, 6});
        const std::size_t ticks = count(page, "class=\"tick\"");
        EXPECT_GE(ticks, 1U) << begin;
        EXPECT_LE(ticks, 100U) << begin;
    }
}

TEST(Page, OfNothingIsStillAPage) {
    const std::string page = page_of(Timeline{});
    EXPECT_NE(page.find("</html>"), std::string::npos);
    EXPECT_EQ(page.find("nan"), std::string::npos);
    EXPECT_EQ(page.find("inf"), page.find("info"));
}

TEST(Ticks, AreRoundAndFewEnough) {
    EXPECT_EQ(tick_ns(450 * kMs, 12), 50 * kMs);
    EXPECT_EQ(tick_ns(120 * kMs, 12), 10 * kMs);
    EXPECT_EQ(tick_ns(700, 12), 100U);
    for (std::uint64_t span = 3; span < 4'000'000'000; span = span * 3 + 1) {
        EXPECT_LE(span / tick_ns(span, 12), 12U);
        EXPECT_GE(span / tick_ns(span, 12), span < 12 ? 0U : 4U);
    }
}

}  // namespace
}  // namespace crossover::command
