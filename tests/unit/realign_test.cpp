// SPDX-License-Identifier: Apache-2.0
// What the order of turns does over several devices: devices that start out of step, and
// disturbances in the middle. The devices are cluster.hpp's, every turn is state.cpp's.
#include <gtest/gtest.h>

#include <algorithm>
#include <random>
#include <string>
#include <vector>

#include "tests/unit/cluster.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

struct Setting {
    std::string name;
    std::size_t devices;
    std::vector<JobModel> jobs;
};

std::string name_of(const testing::TestParamInfo<Setting>& row) { return row.param.name; }

enum class Disturbance {
    kDeath,      // a job's client on one device dies and comes back
    kStall,      // what computes on one device takes longer
    kCut,        // so long that its lease ends
    kExchange,   // a job leaves and another joins
    kJoinBelow,  // a job joins below all keys
    kJoinAbove,  // and above
};
constexpr Disturbance kDisturbances[] = {Disturbance::kDeath,     Disturbance::kStall,
                                         Disturbance::kCut,       Disturbance::kExchange,
                                         Disturbance::kJoinBelow, Disturbance::kJoinAbove};

class Trial {
  public:
    Trial(const Setting& setting, std::size_t devices, std::uint64_t seed)
        : cluster(devices, seed), random_(seed + 1000), setting_(setting), devices_(devices) {
        for (const JobModel& job : setting.jobs) {
            longest_ns_ = std::max(longest_ns_, job.compute_ns);
            here.push_back(cluster.join(job, key(), 2 * (job.compute_ns + job.communicate_ns)));
        }
    }

    // Job 0 stays in all of them, to count iterations by.
    void disturb(Disturbance kind) {
        const std::size_t other = 1 + random_() % (here.size() - 1);
        const JobModel model = setting_.jobs[other % setting_.jobs.size()];
        const std::size_t device = random_() % devices_;
        switch (kind) {
            case Disturbance::kDeath:
                cluster.die_and_rejoin(here[other], device, longest_ns_ * 7 / 2);
                break;
            case Disturbance::kStall:
                cluster.stall(device, longest_ns_ / 2);
                break;
            case Disturbance::kCut:
                cluster.stall(device, 5 * longest_ns_);
                break;
            case Disturbance::kExchange:
                cluster.leave(here[other], longest_ns_);
                here[other] = cluster.join(model, key(), longest_ns_);
                break;
            case Disturbance::kJoinBelow:
                here.push_back(cluster.join(model, 1, longest_ns_));
                break;
            case Disturbance::kJoinAbove:
                here.push_back(cluster.join(model, UINT64_MAX, longest_ns_));
                break;
        }
    }

    // Device time used by the job's turns, per device.
    double used_ns(std::size_t index) const {
        const JobModel& model = setting_.jobs[index % setting_.jobs.size()];
        return static_cast<double>(cluster.iterations(here[index]) * model.compute_ns);
    }

    Cluster cluster;
    std::vector<std::size_t> here;

  private:
    std::uint64_t key() { return (random_() >> 1) + 2; }

    std::mt19937_64 random_;
    const Setting& setting_;
    std::size_t devices_;
    std::uint64_t longest_ns_ = 0;
};

// ---- without weights: the same order, exactly ---------------------------------------------------

// Two, three and (after a join) four jobs, each back before its place comes round again.
constexpr std::size_t kRounds = 8;  // within which all devices agree again
class Realign : public testing::TestWithParam<Setting> {};

TEST_P(Realign, DevicesReachTheSameOrder) {
    const Setting& setting = GetParam();
    constexpr std::size_t kIterations = 40;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        Trial trial(setting, setting.devices, seed);
        ASSERT_TRUE(trial.cluster.run(0, kIterations)) << "stalled";
        const std::size_t jobs = setting.jobs.size();
        EXPECT_LE(trial.cluster.settled(0, jobs), kRounds * jobs);
        EXPECT_LE(trial.cluster.most_passes(), 1);
    }
}

TEST_P(Realign, DevicesReachTheSameOrderAgainAfterADisturbance) {
    const Setting& setting = GetParam();
    constexpr std::size_t kIterations = 60;
    bool cut = false;  // where somebody waited for the device that was stalled
    for (const Disturbance kind : kDisturbances) {
        for (std::uint64_t seed = 1; seed <= 5; ++seed) {
            SCOPED_TRACE("disturbance " + std::to_string(static_cast<int>(kind)) + ", seed " +
                         std::to_string(seed));
            Trial trial(setting, setting.devices, seed);
            ASSERT_TRUE(trial.cluster.run(0, 15 + seed)) << "stalled";
            const std::uint64_t cuts = trial.cluster.cuts();
            const std::uint64_t moment = trial.cluster.now();
            trial.disturb(kind);
            ASSERT_TRUE(trial.cluster.run(0, kIterations)) << "stalled";
            cut |= trial.cluster.cuts() > cuts;
            const std::size_t jobs = trial.here.size();
            EXPECT_LE(trial.cluster.settled(moment, jobs), kRounds * jobs);
            EXPECT_LE(trial.cluster.most_passes(), 1);
            for (const std::size_t job : trial.here) EXPECT_GT(trial.cluster.iterations(job), 40U);
        }
    }
    EXPECT_TRUE(cut) << "no lease ended a turn";
}

INSTANTIATE_TEST_SUITE_P(
    Settings, Realign,
    testing::Values(
        Setting{"two_jobs_alike", 4, {{100 * kMs, 80 * kMs}, {100 * kMs, 80 * kMs}}},
        Setting{
            "two_jobs_communication_bound", 4, {{100 * kMs, 150 * kMs}, {100 * kMs, 150 * kMs}}},
        Setting{"two_jobs_unlike", 4, {{60 * kMs, 150 * kMs}, {140 * kMs, 40 * kMs}}},
        Setting{
            "three_jobs", 4, {{100 * kMs, 60 * kMs}, {100 * kMs, 60 * kMs}, {100 * kMs, 60 * kMs}}},
        Setting{"three_jobs_long_windows",
                4,
                {{80 * kMs, 150 * kMs}, {100 * kMs, 170 * kMs}, {120 * kMs, 140 * kMs}}},
        Setting{"two_jobs_many_devices", 16, {{100 * kMs, 80 * kMs}, {90 * kMs, 100 * kMs}}}),
    name_of);

// ---- where the order cannot be the same ---------------------------------------------------------

// With weights each device decides by what it has measured itself. And with more jobs than fill the
// device, with or without weights, a device may stay some turns ahead of another for ever: a job
// that waits there for its peers, or comes back when its place is just reached, gets its turn on
// one device and misses it on the other. What stands then: no time is lost by it, every job goes
// on, and shares stay near those of one device alone.
class Unlike : public testing::TestWithParam<Setting> {};

TEST_P(Unlike, NoTimeIsLostAndNobodyStarves) {
    const Setting& setting = GetParam();
    constexpr std::size_t kIterations = 150;
    const auto busy = [&](std::size_t devices, std::uint64_t seed, std::vector<double>& shares) {
        Trial trial(setting, devices, seed);
        EXPECT_TRUE(trial.cluster.run(0, 50)) << "stalled";
        std::vector<double> used;
        for (std::size_t i = 0; i < trial.here.size(); ++i) used.push_back(trial.used_ns(i));
        const std::uint64_t begin = trial.cluster.now();
        EXPECT_TRUE(trial.cluster.run(0, kIterations)) << "stalled";
        double all = 0;
        for (std::size_t i = 0; i < used.size(); ++i) all += used[i] = trial.used_ns(i) - used[i];
        shares.clear();
        for (const double each : used) shares.push_back(each / all);
        return all / static_cast<double>(trial.cluster.now() - begin);
    };
    for (std::uint64_t seed = 1; seed <= 3; ++seed) {
        SCOPED_TRACE("seed " + std::to_string(seed));
        std::vector<double> alone, together;
        const double one = busy(1, seed, alone);
        const double many = busy(setting.devices, seed, together);
        EXPECT_GT(many, 0.97 * one) << "device time used";
        for (std::size_t i = 0; i < alone.size(); ++i) {
            EXPECT_GT(together[i], 0.55 * alone[i]) << "job " << i;
            EXPECT_LT(together[i], 1.9 * alone[i]) << "job " << i;
        }
    }
}

TEST_P(Unlike, ADisturbanceIsOverInTheEnd) {
    const Setting& setting = GetParam();
    for (const Disturbance kind : kDisturbances) {
        for (std::uint64_t seed = 1; seed <= 3; ++seed) {
            SCOPED_TRACE("disturbance " + std::to_string(static_cast<int>(kind)) + ", seed " +
                         std::to_string(seed));
            Trial trial(setting, setting.devices, seed);
            ASSERT_TRUE(trial.cluster.run(0, 30 + seed)) << "stalled";
            trial.disturb(kind);
            ASSERT_TRUE(trial.cluster.run(0, 20)) << "stalled";
            std::vector<std::size_t> before;
            for (const std::size_t job : trial.here)
                before.push_back(trial.cluster.iterations(job));
            ASSERT_TRUE(trial.cluster.run(0, 40)) << "stalled";
            for (std::size_t i = 0; i < before.size(); ++i) {
                EXPECT_GT(trial.cluster.iterations(trial.here[i]), before[i] + 2) << "job " << i;
            }
        }
    }
}

// A job is away at each of its hand-overs, and for longer on a device that is ahead of the others:
// here devices begin out of step by several turns. What is saved up meanwhile decides.
TEST(UnlikeShares, AWeightCountsOnSeveralDevicesToo) {
    for (std::uint64_t seed = 1; seed <= 10; ++seed) {
        Cluster cluster(4, seed);
        std::mt19937_64 random(seed);
        for (const std::uint32_t weight : {2U, 1U, 1U}) {
            cluster.join({20 * kMs, 5 * kMs, weight}, random() | 1, 200 * kMs);
        }
        ASSERT_TRUE(cluster.run(0, 400)) << "stalled";
        double all = 0;
        for (std::size_t job = 0; job < 3; ++job) {
            all += static_cast<double>(cluster.iterations(job));
        }
        EXPECT_NEAR(static_cast<double>(cluster.iterations(0)) / all, 0.5, 0.05 * 0.5)
            << "seed " << seed;
    }
}

INSTANTIATE_TEST_SUITE_P(Settings, Unlike,
                         testing::Values(Setting{"rounds_five_jobs",
                                                 8,
                                                 {{20 * kMs, 30 * kMs},
                                                  {60 * kMs, 100 * kMs},
                                                  {10 * kMs, 200 * kMs},
                                                  {100 * kMs, 20 * kMs},
                                                  {40 * kMs, 80 * kMs}}},
                                         Setting{"rounds_five_jobs_with_room",
                                                 8,
                                                 {{20 * kMs, 40 * kMs},
                                                  {60 * kMs, 30 * kMs},
                                                  {10 * kMs, 60 * kMs},
                                                  {100 * kMs, 20 * kMs},
                                                  {40 * kMs, 50 * kMs}}},
                                         Setting{"rounds_eight_jobs_with_room",
                                                 8,
                                                 {{20 * kMs, 60 * kMs},
                                                  {60 * kMs, 40 * kMs},
                                                  {30 * kMs, 30 * kMs},
                                                  {50 * kMs, 20 * kMs},
                                                  {40 * kMs, 50 * kMs},
                                                  {25 * kMs, 60 * kMs},
                                                  {30 * kMs, 25 * kMs},
                                                  {45 * kMs, 30 * kMs}}},
                                         Setting{"rounds_eight_jobs",
                                                 8,
                                                 {{20 * kMs, 100 * kMs},
                                                  {60 * kMs, 50 * kMs},
                                                  {10 * kMs, 180 * kMs},
                                                  {100 * kMs, 20 * kMs},
                                                  {40 * kMs, 80 * kMs},
                                                  {5 * kMs, 150 * kMs},
                                                  {30 * kMs, 5 * kMs},
                                                  {15 * kMs, 150 * kMs}}},
                                         Setting{"twice_the_weight",
                                                 4,
                                                 {{20 * kMs, 5 * kMs, 2},
                                                  {20 * kMs, 5 * kMs, 1},
                                                  {20 * kMs, 5 * kMs, 1}}},
                                         Setting{"one_important_job",
                                                 4,
                                                 {{20 * kMs, 40 * kMs, 4},
                                                  {20 * kMs, 40 * kMs},
                                                  {20 * kMs, 40 * kMs},
                                                  {20 * kMs, 40 * kMs}}},
                                         Setting{"five_weights",
                                                 8,
                                                 {{20 * kMs, 30 * kMs, 3},
                                                  {60 * kMs, 100 * kMs, 1},
                                                  {10 * kMs, 200 * kMs, 2},
                                                  {100 * kMs, 20 * kMs, 5},
                                                  {40 * kMs, 80 * kMs, 1}}},
                                         Setting{"eight_weights",
                                                 8,
                                                 {{20 * kMs, 30 * kMs, 3},
                                                  {60 * kMs, 100 * kMs, 1},
                                                  {10 * kMs, 200 * kMs, 2},
                                                  {100 * kMs, 20 * kMs, 5},
                                                  {40 * kMs, 80 * kMs, 1},
                                                  {5 * kMs, 5 * kMs, 1},
                                                  {30 * kMs, 300 * kMs, 4},
                                                  {15 * kMs, 60 * kMs, 7}}}),
                         name_of);

}  // namespace
}  // namespace crossover
