// SPDX-License-Identifier: Apache-2.0
// The planner: descriptions and their mistakes, pairing, and predictions that can be told by hand.
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>

#include "command.hpp"
#include "plan_jobs.hpp"
#include "plan_pairs.hpp"
#include "plan_simulation.hpp"

namespace crossover::command {
namespace {

PlannedJob job(double compute_ms, double communicate_ms, const char* name = "job") {
    PlannedJob made;
    made.name = name;
    made.compute_ms = compute_ms;
    made.communicate_ms = communicate_ms;
    return made;
}

PlanSetting ideal() {
    PlanSetting setting;
    setting.handover_ns = 0;
    setting.late_ns = 0;
    setting.separate_links = true;
    return setting;
}

std::vector<double> periods(const std::vector<PlannedJob>& jobs, const PlanSetting& setting,
                            PlanMode mode = PlanMode::kCrossover) {
    return simulate(jobs, setting, mode).period_ms;
}

class PlanFiles : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "/plan-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        folder_ = pattern;
    }
    void TearDown() override { std::filesystem::remove_all(folder_); }

    std::string write(const std::string& text, const char* name = "jobs.json") const {
        const std::string path = folder_ + "/" + name;
        std::ofstream(path) << text;
        return path;
    }

    std::string fault_of(const std::string& text) const {
        try {
            read_planned_jobs(write(text));
        } catch (const UsageError& error) {
            const std::string said = error.what();
            EXPECT_EQ(said.find('\n'), std::string::npos) << "one line";
            return said.substr(said.rfind("jobs.json'") + 11);
        }
        return "";
    }

    std::string folder_;
};

// -------------------------------------------------------------------------------- descriptions

TEST_F(PlanFiles, AJobIsReadWholeAndCopied) {
    const auto jobs = read_planned_jobs(write(
        R"({"jobs": [{"name": "a", "compute_ms": 40.5, "communicate_ms": 20, "buckets": 4,
                      "first_bucket": 0.25, "jitter": 0.1, "weight": 3, "count": 2},
                     {"name": "b", "compute_ms": 1}]})"));
    ASSERT_EQ(jobs.size(), 3U);
    EXPECT_EQ(jobs[0].name, "a-1");
    EXPECT_EQ(jobs[1].name, "a-2");
    EXPECT_EQ(jobs[1].compute_ms, 40.5);
    EXPECT_EQ(jobs[1].communicate_ms, 20);
    EXPECT_EQ(jobs[1].buckets, 4U);
    EXPECT_EQ(jobs[1].first_bucket, 0.25);
    EXPECT_EQ(jobs[1].jitter, 0.1);
    EXPECT_EQ(jobs[1].weight, 3U);
    EXPECT_EQ(jobs[2].name, "b");
    EXPECT_EQ(jobs[2].communicate_ms, 0);
    EXPECT_EQ(jobs[2].buckets, 1U);
}

TEST_F(PlanFiles, AJobInStepsIsReadWhole) {
    const auto jobs = read_planned_jobs(write(
        R"({"jobs": [{"name": "a", "jitter": 0.1, "weight": 2, "steps": [
              {"compute_ms": 10, "communicate_ms": 4, "wait": false}, {"compute_ms": 3},
              {"compute_ms": 20, "communicate_ms": 5}]}]})"));
    ASSERT_EQ(jobs.size(), 1U);
    EXPECT_EQ(jobs[0].compute_ms, 33);
    EXPECT_EQ(jobs[0].communicate_ms, 9);
    EXPECT_EQ(jobs[0].jitter, 0.1);
    EXPECT_EQ(jobs[0].weight, 2U);
    const auto course = course_of(jobs[0]);
    ASSERT_EQ(course.size(), 3U);
    EXPECT_FALSE(course[0].waits);
    EXPECT_EQ(course[0].window_ms, PerRank{0});
    EXPECT_TRUE(course[1].waits) << "waiting is the rule";
    EXPECT_EQ(course[1].window_ms, PerRank{1}) << "of the first step's 4 ms, after 3 ms of compute";
    EXPECT_EQ(course[2].window_ms, PerRank{5});
    EXPECT_EQ(exposed_ms(jobs[0]), 6);
}

TEST_F(PlanFiles, StagesComputeWhatTheListsSay) {
    const auto jobs = read_planned_jobs(write(
        R"({"jobs": [{"name": "a", "steps": [{"compute_ms": [10, 0], "communicate_ms": 2},
              {"compute_ms": [0, 15], "communicate_ms": 2}, {"compute_ms": 1}]}]})"));
    ASSERT_EQ(jobs.size(), 1U);
    EXPECT_EQ(jobs[0].compute_ms, 16) << "the longer one's";
    EXPECT_EQ(exposed_ms(jobs[0]), 14) << "while the first stage computes and each message is sent";
    const auto course = course_of(jobs[0]);
    EXPECT_EQ(course[0].window_ms, (PerRank{2, 12}));
    EXPECT_EQ(course[1].window_ms, (PerRank{17, 2}));
    EXPECT_EQ(course[2].window_ms, (PerRank{0, 0}));
}

TEST_F(PlanFiles, AMeasuredJobIsWhatCompareSaw) {
    write(R"({"jobs": [{"name": "A", "alone": {"start_seconds": 1, "compute_seconds": 4,
              "communicate_seconds": 2, "exposed_seconds": 0.5}}]})",
          "compare.json");
    const auto jobs = read_planned_jobs(write(
        R"({"jobs": [{"name": "a", "measured": "compare.json", "job": "A", "iterations": 100}]})"));
    ASSERT_EQ(jobs.size(), 1U);
    EXPECT_DOUBLE_EQ(jobs[0].compute_ms, 40);
    EXPECT_DOUBLE_EQ(jobs[0].communicate_ms, 20);
    EXPECT_NEAR(exposed_ms(jobs[0]), 5, 1e-9) << "as much stays exposed as was measured";
}

TEST_F(PlanFiles, AMistakeIsOneLineThatNamesIt) {
    EXPECT_EQ(fault_of("{"), "is no JSON (at byte 2)");
    EXPECT_EQ(fault_of("[]"), "needs \"jobs\", a list of at least one job");
    EXPECT_EQ(fault_of(R"({"jobs": []})"), "needs \"jobs\", a list of at least one job");
    EXPECT_EQ(fault_of(R"({"jobs": [3]})"), " job 1 is no object");
    EXPECT_EQ(fault_of(R"({"jobs": [{"compute_ms": 1}]})"), " job 1 needs \"name\", a text");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a"}]})"), " job 1 needs \"compute_ms\"");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "compute_ms": 0}]})"),
              " job 1 \"compute_ms\" is 0; allowed: a number above 0 to 3600000");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "compute_ms": 1, "jitter": "x"}]})"),
              " job 1 \"jitter\" is \"x\"; allowed: a number from 0 to 1");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "compute_ms": 1, "buckets": 1.5}]})"),
              " job 1 \"buckets\" is 1.5; allowed: a whole number from 1 to 1000");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": []}]})"),
              " job 1 needs \"steps\", a list of 1 to 1000");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": 1}, 4]}]})"),
              " job 1 \"steps\" 2 is no object");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": 1, "wait": 1}]}]})"),
              " job 1 \"steps\" 1 \"wait\" is 1; allowed: true, false");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"communicate_ms": 1}]}]})"),
              " job 1 \"steps\" 1 needs \"compute_ms\"");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": 1, "x": 1}]}]})"),
              " job 1 \"steps\" 1 has 'x'; allowed: compute_ms, communicate_ms, wait");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": [1, -1]}]}]})"),
              " job 1 \"steps\" 1 \"compute_ms\" is [1,-1]; allowed in a list: 1 to 1000 numbers "
              "from 0 to 3600000");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": []}]}]})"),
              " job 1 \"steps\" 1 \"compute_ms\" is []; allowed in a list: 1 to 1000 numbers "
              "from 0 to 3600000");
    EXPECT_EQ(
        fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": [1, 2]}, {"compute_ms": 3},
                         {"compute_ms": [1, 2, 3]}]}]})"),
        " job 1 \"steps\" 3 \"compute_ms\" is a list of 3; allowed, as before: 2");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "steps": [{"compute_ms": [1, 0]}]}]})"),
              " job 1 has \"steps\" in which a rank computes nothing");
    EXPECT_EQ(fault_of(R"({"jobs": [{"name": "a", "compute_ms": 1, "steps": []}]})"),
              " job 1 has 'compute_ms'; allowed: name, steps, jitter, weight, count");
    EXPECT_EQ(
        fault_of(R"({"jobs": [{"name": "a", "compute_ms": 1, "comm": 2}]})"),
        " job 1 has 'comm'; allowed: name, compute_ms, communicate_ms, buckets, first_bucket, "
        "jitter, weight, count");
    EXPECT_EQ(
        fault_of(R"({"jobs": [{"name": "a", "compute_ms": 1}, {"name": "a", "compute_ms": 1}]})"),
        "has two jobs named 'a'");
    EXPECT_NE(fault_of(R"({"jobs": [{"name": "a", "measured": "none.json", "job": "A"}]})"), "");
    EXPECT_THROW(read_planned_jobs(folder_ + "/missing.json"), UsageError);
}

TEST(PlannedJob, ExposesWhatComputeDoesNotHide) {
    EXPECT_DOUBLE_EQ(exposed_ms(job(40, 20)), 20);
    PlannedJob overlapping = job(40, 20);
    overlapping.buckets = 4;
    overlapping.first_bucket = 0.5;  // submitted at 20, 26.7, 33.3 and 40 ms; 5 ms each
    EXPECT_DOUBLE_EQ(exposed_ms(overlapping), 5);
    overlapping.communicate_ms = 80;  // 20 ms each: the link is behind from the first on
    EXPECT_DOUBLE_EQ(exposed_ms(overlapping), 60);
    EXPECT_EQ(exposed_ms(job(40, 0)), 0);
}

// -------------------------------------------------------------------------------------- pairing

TEST(Pairs, HaveTheGreatestSumNotTheGreatestFirst) {
    // 0-1 is the best pair of all, but 0-2 and 1-3 gain more together.
    const std::vector<std::vector<double>> gain{
        {0, 0.50, 0.45, 0}, {0, 0, 0, 0.40}, {0, 0, 0, 0.1}, {0, 0, 0, 0}};
    using Pairs = std::vector<std::pair<std::size_t, std::size_t>>;
    EXPECT_EQ(best_pairs(gain), (Pairs{{0, 2}, {1, 3}}));
    EXPECT_EQ(best_pairs({{0, -0.1}, {0, 0}}), Pairs{}) << "a loss is no pair";
    EXPECT_EQ(best_pairs({{0}}), Pairs{});
    EXPECT_EQ(best_pairs({}), Pairs{});
}

// ----------------------------------------------------------------------------------- prediction

TEST(Simulation, AJobAloneTakesComputeAndExposedCommunication) {
    for (const PlanMode mode : {PlanMode::kCrossover, PlanMode::kUncoordinated}) {
        EXPECT_NEAR(periods({job(40, 20)}, ideal(), mode)[0], 60, 0.01);
        PlannedJob overlapping = job(40, 20);
        overlapping.buckets = 4;
        overlapping.first_bucket = 0.5;
        EXPECT_NEAR(periods({overlapping}, ideal(), mode)[0], 45, 0.01);
    }
}

TEST(Simulation, TwoEqualJobsCrossOverAtTheBound) {
    const std::vector<PlannedJob> jobs{job(40, 20), job(40, 20)};
    EXPECT_DOUBLE_EQ(plan_bound_ms(jobs, true), 80);
    const auto together = periods(jobs, ideal());
    EXPECT_NEAR(together[0], 80, 0.01);
    EXPECT_NEAR(together[1], 80, 0.01);
    const std::vector<double> alone{60, 60};
    EXPECT_NEAR(combined_speed(alone, together), 1.5, 0.001);
    PlanSetting late = ideal();
    late.handover_ns = 1'000'000;
    EXPECT_NEAR(periods(jobs, late)[0], 82, 0.01) << "two hand-overs a cycle";
}

TEST(Simulation, BucketsAreStepsOfWhichOnlyTheLastIsWaitedFor) {
    PlannedJob buckets = job(40, 24);
    buckets.buckets = 4;
    buckets.first_bucket = 0.25;
    PlannedJob steps = job(40, 24);
    steps.steps.assign(4, PlannedStep{{10}, 6, false, {0}});
    EXPECT_EQ(exposed_ms(steps), exposed_ms(buckets));
    for (const PlanMode mode : {PlanMode::kCrossover, PlanMode::kUncoordinated}) {
        EXPECT_EQ(periods({steps, job(20, 40)}, ideal(), mode),
                  periods({buckets, job(20, 40)}, ideal(), mode));
    }
}

TEST(Simulation, EveryWindowOfAnIterationGivesTheTurnBack) {
    PlannedJob layers = job(40, 20);
    layers.steps.assign(4, PlannedStep{{10}, 5, true, {0}});
    PlanSetting setting = ideal();
    EXPECT_NEAR(periods({layers}, setting)[0], 60, 0.01);
    EXPECT_NEAR(periods({layers, layers}, setting)[0], 80, 0.01) << "each beside the other's";
    setting.handover_ns = 1'000'000;
    EXPECT_NEAR(periods({layers, layers}, setting)[0], 88, 0.01) << "four turns of each job";
    setting.min_window_ns = 6'000'000;
    setting.lease_ns = 60'000'000;
    setting.iterations = 600;
    EXPECT_NEAR(periods({layers, layers}, setting)[0], 120, 4) << "no window is used";
}

TEST(Simulation, StagesWaitForEachOtherAndTakeNoTurnToCommunicate) {
    PlannedJob stages = job(15, 4);
    stages.steps = {{{15, 0}, 2, true, {0}}, {{0, 10}, 2, true, {0}}};
    PlanSetting setting = ideal();
    for (const PlanMode mode : {PlanMode::kCrossover, PlanMode::kUncoordinated}) {
        EXPECT_NEAR(periods({stages}, setting, mode)[0], 29, 0.01);
    }
    EXPECT_NEAR(periods({stages, stages}, setting)[0], 30, 0.01)
        << "the first stages' device is busy";
    setting.handover_ns = 1'000'000;
    EXPECT_NEAR(periods({stages, stages}, setting)[0], 32, 0.01) << "two turns there";
    setting.devices = 3;  // the third rank is like the first
    EXPECT_NEAR(periods({stages, stages}, setting)[0], 32, 0.01);
}

TEST(Simulation, CollectivesThatComputeHidesKeepTheTurn) {
    PlannedJob hidden = job(40, 10);
    hidden.steps = {{{10}, 8, false, {0}}, {{20}, 0, true, {0}}, {{10}, 2, true, {0}}};
    EXPECT_DOUBLE_EQ(exposed_ms(hidden), 2);
    EXPECT_NEAR(periods({hidden}, ideal())[0], 42, 0.01);
    PlanSetting setting = ideal();
    setting.handover_ns = 1'000'000;
    EXPECT_NEAR(periods({hidden, hidden}, setting)[0], 82, 0.01) << "one turn an iteration";
}

TEST(Simulation, ASharedLinkBoundsJobsThatCommunicateLong) {
    const std::vector<PlannedJob> jobs{job(10, 40), job(10, 40)};
    PlanSetting setting = ideal();
    EXPECT_NEAR(periods(jobs, setting)[0], 50, 0.01) << "each link idle only while it computes";
    setting.separate_links = false;
    EXPECT_DOUBLE_EQ(plan_bound_ms(jobs, false), 80);
    EXPECT_NEAR(periods(jobs, setting)[0], 80, 0.01) << "the link never rests";
}

TEST(Simulation, InPhaseUncoordinatedJobsGainOnlyTheOverlapTheyHappenToHave) {
    // Both compute at half speed side by side, then both communicate.
    const auto together = periods({job(40, 20), job(40, 20)}, ideal(), PlanMode::kUncoordinated);
    EXPECT_NEAR(together[0], 100, 0.1);
}

TEST(Simulation, WindowsTooShortToPayKeepTheTurnUntilTheLeaseEndsIt) {
    PlanSetting setting = ideal();
    setting.min_window_ns = 1'000'000;
    setting.lease_ns = 100'000'000;
    setting.iterations = 1000;
    // Turns last their 100 ms leases: ten iterations of ten ms at a time, half of the device each.
    const auto together = periods({job(9.5, 0.5), job(9.5, 0.5)}, setting);
    EXPECT_NEAR(together[0], 20, 0.8);
    EXPECT_NEAR(together[1], 20, 0.8);
}

TEST(Simulation, WeightsCountWhereSeveralJobsWait) {
    PlanSetting setting = ideal();
    setting.iterations = 400;
    setting.lease_ns = 50'000'000;
    PlannedJob heavy = job(10, 0, "heavy");
    heavy.weight = 2;
    const auto together = periods({job(10, 0), heavy, job(10, 0)}, setting);
    EXPECT_NEAR(together[0], 40, 2);
    EXPECT_NEAR(together[1], 20, 1);
    EXPECT_NEAR(together[2], 40, 2);
}

TEST(Simulation, APieceThatEndsWithItsLeaseIsNotComputedAgain) {
    PlanSetting setting = ideal();
    setting.iterations = 400;
    setting.lease_ns = 50'000'000;  // five iterations to the nanosecond
    const auto together = periods({job(10, 0), job(10, 0)}, setting);
    EXPECT_NEAR(10 / together[0] + 10 / together[1], 1, 0.01);
}

TEST(Simulation, TheSlowestOfManyRanksSetsThePace) {
    PlanSetting setting = ideal();
    setting.devices = 64;
    PlannedJob noisy = job(40, 20);
    noisy.jitter = 0.1;
    const double period = periods({noisy}, setting)[0];
    EXPECT_GT(period, 60 + 40 * 0.08) << "of 64 ranks one is nearly always close to the worst";
    EXPECT_LE(period, 60 + 40 * 0.1);
}

TEST(Simulation, LateRanksDecideWhoComesFirstAndCostAWindowNothing) {
    PlanSetting setting = ideal();
    setting.late_ns = 2'000'000;
    EXPECT_NEAR(periods({job(40, 20), job(40, 20)}, setting)[0], 80, 0.01) << "time enough";
    EXPECT_NEAR(periods({job(40, 20)}, setting)[0], 60, 0.01) << "alone it is no other time";
    // On one link the collectives of both end nearly together.
    PlannedJob buckets = job(40, 20);
    buckets.buckets = 4;
    buckets.first_bucket = 0.5;
    setting.separate_links = false;
    setting.handover_ns = 300'000;
    setting.iterations = 400;
    const std::vector<PlannedJob> jobs{buckets, job(20, 40)};
    const auto late = periods(jobs, setting);
    setting.late_ns = 0;
    const auto prompt = periods(jobs, setting);
    EXPECT_NEAR(prompt[0], prompt[1], 0.1) << "an iteration each in turn";
    EXPECT_LT(late[0], 0.95 * prompt[0]) << "the first comes back first now and then";
    EXPECT_GT(late[1], 1.05 * prompt[1]);
}

TEST(Simulation, IsTheSameEveryTimeAndDiffersByItsSeed) {
    PlannedJob noisy = job(40, 20);
    noisy.jitter = 0.2;
    const std::vector<PlannedJob> jobs{noisy, noisy, job(25, 30)};
    PlanSetting setting = ideal();
    const auto first = periods(jobs, setting);
    EXPECT_EQ(first, periods(jobs, setting));
    setting.seed = 2;
    EXPECT_NE(first, periods(jobs, setting));
}

}  // namespace
}  // namespace crossover::command
