// SPDX-License-Identifier: Apache-2.0
// Several devices, each with a segment of its own, and jobs whose collectives join them: a
// simulation in virtual time of what the order of turns does when devices start out of step.
// Decides nothing itself: every turn is state.cpp's.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <queue>
#include <random>
#include <string>
#include <vector>

#include "arbiter/state.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover {
namespace {

constexpr std::uint64_t kMs = 1'000'000;

struct JobModel {
    std::uint64_t compute_ns;      // on each device, under the turn
    std::uint64_t communicate_ns;  // once the last device has computed, for all devices together
};

struct Result {
    std::vector<std::vector<std::size_t>> order;  // per device: jobs in order of their turns
    std::vector<std::uint64_t> finished_ns;       // ends of job 0's iterations
};

class Cluster {
  public:
    Cluster(std::size_t devices, std::vector<JobModel> jobs, std::uint64_t seed)
        : jobs_(std::move(jobs)), random_(seed), computing_(jobs_.size(), 0) {
        result_.order.resize(devices);
        std::vector<std::uint64_t> keys;
        for (std::size_t i = 0; i < jobs_.size(); ++i) keys.push_back(random_() | 1);
        for (std::size_t device = 0; device < devices; ++device) {
            segments_.push_back(make_segment());
            for (std::size_t job = 0; job < jobs_.size(); ++job) {
                Wakes wakes;
                Joining joining;
                joining.job_key = keys[job];
                joining.fixed_lease_ns = 10'000 * kMs;
                EXPECT_EQ(attach_client(*segments_[device], slot_of(job), joining, 1, wakes),
                          Status::kOk);
            }
        }
    }

    // Each job asks on each device at a time of its own, so devices begin in different orders.
    Result run(std::size_t iterations) {
        std::uint64_t longest = 0;
        for (const JobModel& job : jobs_) {
            longest = std::max(longest, job.compute_ns + job.communicate_ns);
        }
        for (std::size_t job = 0; job < jobs_.size(); ++job) {
            for (std::size_t device = 0; device < segments_.size(); ++device) {
                push(1 + random_() % (2 * longest), Kind::kAsk, job, device);
            }
        }
        while (!events_.empty() && result_.finished_ns.size() < iterations) {
            const Event event = events_.top();
            events_.pop();
            step(event);
            if (testing::Test::HasFailure()) break;
        }
        return result_;
    }

  private:
    enum class Kind { kAsk, kComputed, kCommunicated };
    struct Event {
        std::uint64_t time_ns;
        std::uint64_t number;
        Kind kind;
        std::size_t job, device;
        bool operator>(const Event& other) const {
            return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
        }
    };

    static std::uint32_t slot_of(std::size_t job) { return static_cast<std::uint32_t>(job); }

    void push(std::uint64_t time_ns, Kind kind, std::size_t job, std::size_t device) {
        events_.push({time_ns, number_++, kind, job, device});
    }

    // ± 2 %
    std::uint64_t jittered(std::uint64_t ns) { return ns - ns / 50 + random_() % (ns / 25 + 1); }

    void begin_compute(std::uint64_t now, std::size_t job, std::size_t device) {
        result_.order[device].push_back(job);
        push(now + jittered(jobs_[job].compute_ns), Kind::kComputed, job, device);
    }

    void step(const Event& event) {
        Segment& segment = *segments_[event.device];
        Wakes wakes;
        switch (event.kind) {
            case Kind::kAsk:
                if (request(segment, slot_of(event.job), event.time_ns, wakes)) {
                    begin_compute(event.time_ns, event.job, event.device);
                }
                break;
            case Kind::kComputed:
                release(segment, slot_of(event.job), event.time_ns, wakes);
                for (std::size_t job = 0; job < jobs_.size(); ++job) {
                    if (wakes.grants.contains(slot_of(job))) {
                        begin_compute(event.time_ns, job, event.device);
                    }
                }
                if (++computing_[event.job] == segments_.size()) {
                    computing_[event.job] = 0;
                    push(event.time_ns + jittered(jobs_[event.job].communicate_ns),
                         Kind::kCommunicated, event.job, 0);
                }
                break;
            case Kind::kCommunicated:
                if (event.job == 0) result_.finished_ns.push_back(event.time_ns);
                // A collective ends everywhere at once, give or take some microseconds.
                for (std::size_t device = 0; device < segments_.size(); ++device) {
                    push(event.time_ns + random_() % 20'000, Kind::kAsk, event.job, device);
                }
                break;
        }
        expect_invariants(segment);
    }

    std::vector<JobModel> jobs_;
    std::mt19937_64 random_;
    std::vector<std::size_t> computing_;  // devices that have computed in this iteration
    std::vector<std::unique_ptr<Segment>> segments_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::uint64_t number_ = 0;
    Result result_;
};

struct Setting {
    std::string name;
    std::size_t devices;
    std::vector<JobModel> jobs;
};

class Realign : public testing::TestWithParam<Setting> {};

TEST_P(Realign, DevicesReachTheSameOrder) {
    const Setting& setting = GetParam();
    constexpr std::size_t kIterations = 60;
    for (std::uint64_t seed = 1; seed <= 20; ++seed) {
        Cluster cluster(setting.devices, setting.jobs, seed);
        const Result result = cluster.run(kIterations);
        ASSERT_EQ(result.finished_ns.size(), kIterations) << "seed " << seed << ": stalled";
        // The last third, compared from the end; devices may be one turn apart there.
        const std::size_t tail = kIterations / 3 * setting.jobs.size();
        const auto& reference = result.order[0];
        ASSERT_GT(reference.size(), tail + setting.jobs.size());
        for (const auto& order : result.order) {
            // Position by the job's own iteration: turn number i of all turns is the same job.
            const std::size_t common = std::min(order.size(), reference.size());
            for (std::size_t i = common - tail; i < common; ++i) {
                ASSERT_EQ(order[i], reference[i]) << "seed " << seed << ", turn " << i;
            }
        }
    }
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
    [](const testing::TestParamInfo<Setting>& row) { return row.param.name; });

}  // namespace
}  // namespace crossover
