// SPDX-License-Identifier: Apache-2.0
// The bound, the sums over snapshots, and what a comparison says of them.
#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "bound.hpp"
#include "compare_report.hpp"
#include "sampler.hpp"

namespace crossover::command {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;

TEST(Bound, IsTheLargestOfComputeLinkAndLongestJob) {
    const JobTotals compute_bound[] = {{0, 60, 20, 20}, {0, 50, 30, 30}};
    EXPECT_EQ(bound_ns(compute_bound, false), 110U);
    EXPECT_EQ(serial_ns(compute_bound), 160U);
    const JobTotals link_bound[] = {{0, 10, 60, 55}, {0, 20, 70, 65}};
    EXPECT_EQ(bound_ns(link_bound, false), 130U);
    EXPECT_EQ(bound_ns(link_bound, true), 85U) << "separate links: the longest job";
    const JobTotals long_job[] = {{5, 10, 100, 100}, {0, 20, 10, 10}};
    EXPECT_EQ(bound_ns(long_job, false), 115U) << "with its start";
    EXPECT_EQ(bound_ns({}, false), 0U);
}

DeviceSnapshot snapshot(std::uint64_t now_ns, std::uint64_t exposed_ns,
                        std::uint64_t communicated_ns) {
    DeviceSnapshot result;
    result.uuid = "GPU-1";
    result.now_ns = now_ns;
    result.jobs.resize(1);
    result.jobs[0].slot = 2;
    result.jobs[0].key = 77;
    result.jobs[0].name = "A";
    result.jobs[0].turns = now_ns / kSecond;
    result.jobs[0].held_ns = now_ns / 2;
    result.clients.resize(2);
    for (std::uint32_t slot = 0; slot < 2; ++slot) {
        ClientSnapshot& client = result.clients[slot];
        client.slot = slot;
        client.job = 2;
        client.attached_ns = kSecond * (slot + 1);
        client.exposed_ns = exposed_ns * (slot + 1);
        client.communicated_ns = communicated_ns * (slot + 1);
        client.crossings = slot;
    }
    return result;
}

TEST(Sampler, TakesTheLastFiguresAndTheMeanOverClients) {
    Sampler sampler;
    sampler.add("s#1", snapshot(3 * kSecond, kSecond / 4, kSecond / 2));
    sampler.add("s#1", snapshot(8 * kSecond, kSecond, 2 * kSecond));
    DeviceSnapshot last = snapshot(9 * kSecond, 3 * kSecond / 2, 2 * kSecond);
    last.departed = last.clients;  // left, and told more before
    last.clients.clear();
    last.jobs.clear();
    sampler.add("s#1", last);
    const JobSample sample = sampler.job("A", 0, 10 * kSecond);
    EXPECT_EQ(sample.clients, 2U);
    EXPECT_EQ(sample.crossings, 1U);
    EXPECT_EQ(sample.turns, 8U);
    EXPECT_EQ(sample.devices, (std::set<std::string>{"GPU-1"}));
    EXPECT_EQ(sample.totals.start_ns, 3 * kSecond / 2);
    EXPECT_EQ(sample.totals.exposed_ns, 9 * kSecond / 4);
    EXPECT_EQ(sample.totals.communicate_ns, 3 * kSecond);
    EXPECT_EQ(sample.totals.compute_ns, 10 * kSecond - 3 * kSecond / 2 - 9 * kSecond / 4);
    EXPECT_EQ(sampler.job("B", 0, kSecond).clients, 0U);
}

TEST(Sampler, TellsSegmentsAndUsersOfASlotApart) {
    Sampler sampler;
    sampler.add("s#1", snapshot(3 * kSecond, kSecond, kSecond));
    sampler.add("s#2", snapshot(3 * kSecond, kSecond, kSecond));
    DeviceSnapshot later = snapshot(4 * kSecond, kSecond, kSecond);
    later.clients[0].attached_ns = 7 * kSecond / 2;
    sampler.add("s#2", later);
    EXPECT_EQ(sampler.job("A", 0, 10 * kSecond).clients, 5U);
    // A slot's former user that was never seen attached belongs to nobody.
    DeviceSnapshot unseen = snapshot(4 * kSecond, kSecond, kSecond);
    unseen.departed = unseen.clients;
    unseen.clients.clear();
    sampler.add("s#3", unseen);
    EXPECT_EQ(sampler.job("A", 0, 10 * kSecond).clients, 5U);
}

Comparison comparison() {
    Comparison result;
    result.jobs.resize(2);
    for (std::size_t index = 0; index < 2; ++index) {
        ComparedJob& job = result.jobs[index];
        job.name = index == 0 ? "A" : "B";
        job.command = {"train", std::to_string(index)};
        JobSample alone;
        alone.clients = 4;
        alone.devices = {"GPU-1"};
        alone.totals = {0, 6 * kSecond, 4 * kSecond, 4 * kSecond};
        JobSample shared = alone;
        shared.turns = 100;
        shared.held_ns = 6 * kSecond;
        job.alone_ns = {10 * kSecond, 12 * kSecond, 10 * kSecond};
        job.alone = {alone, alone, alone};
        job.crossover_ns = {13 * kSecond};
        job.crossover = {shared};
    }
    result.uncoordinated_ns = {20 * kSecond, 18 * kSecond};
    result.crossover_ns = {15 * kSecond};
    return result;
}

TEST(Comparison, PutsTimesBesideTheBound) {
    const Comparison result = comparison();
    EXPECT_EQ(measured_bound_ns(result), 12 * kSecond);
    const nlohmann::ordered_json json = compare_json(result);
    EXPECT_DOUBLE_EQ(json.at("bound_seconds").get<double>(), 12.0);
    const auto& modes = json.at("modes");
    ASSERT_EQ(modes.size(), 3U);
    EXPECT_EQ(modes[0].at("mode"), "serial");
    EXPECT_DOUBLE_EQ(modes[0].at("seconds").get<double>(), 20.0);
    EXPECT_DOUBLE_EQ(modes[0].at("rounds_seconds")[1].get<double>(), 24.0);
    EXPECT_DOUBLE_EQ(modes[1].at("seconds").get<double>(), 19.0);
    EXPECT_DOUBLE_EQ(modes[2].at("speed_up").get<double>(), 20.0 / 15.0);
    EXPECT_DOUBLE_EQ(modes[2].at("efficiency").get<double>(), 0.8);
    EXPECT_DOUBLE_EQ(json.at("jobs")[0].at("alone").at("exposed_seconds").get<double>(), 4.0);
    EXPECT_TRUE(compare_doubts(result).empty());
    const std::string text = compare_text(result);
    EXPECT_NE(text.find("crossover            15.000      1.333       0.800"), std::string::npos)
        << text;
    EXPECT_NE(text.find("bound T*             12.000      1.667       1.000"), std::string::npos)
        << text;
}

TEST(Comparison, WithoutAMeasurementThereIsNoBound) {
    Comparison result = comparison();
    result.jobs[1].alone[1] = JobSample{};
    EXPECT_EQ(measured_bound_ns(result), 0U);
    EXPECT_TRUE(compare_json(result).at("bound_seconds").is_null());
    EXPECT_TRUE(compare_json(result).at("modes")[2].at("efficiency").is_null());
    EXPECT_EQ(compare_text(result).find("bound"), std::string::npos);
    ASSERT_EQ(compare_doubts(result).size(), 1U);
    EXPECT_TRUE(compare_doubts(result)[0].starts_with("job B used no device"));
}

TEST(Comparison, DoubtsJobsThatShareNothing) {
    Comparison result = comparison();
    for (JobSample& sample : result.jobs[1].alone) {
        sample.devices = {"GPU-2"};
    }
    for (JobSample& sample : result.jobs[0].crossover) {
        sample.turns = 0;
    }
    const std::vector<std::string> doubts = compare_doubts(result);
    ASSERT_EQ(doubts.size(), 2U);
    EXPECT_EQ(doubts[0], "job A took no turn beside the others");
    EXPECT_TRUE(doubts[1].starts_with("the jobs share no device"));
}

TEST(Median, OfOddEvenAndNone) {
    EXPECT_EQ(median_ns({3, 1, 2}), 2U);
    EXPECT_EQ(median_ns({4, 1, 2, 3}), 2U);
    EXPECT_EQ(median_ns({10, 20}), 15U);
    EXPECT_EQ(median_ns({}), 0U);
}

}  // namespace
}  // namespace crossover::command
