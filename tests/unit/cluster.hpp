// SPDX-License-Identifier: Apache-2.0
// Several devices in virtual time, each with a segment of its own, and jobs whose collectives join
// them. Decides no turn itself (state.cpp does), and judges nothing: see realign_test.cpp.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <queue>
#include <random>
#include <utility>
#include <vector>

#include "arbiter/state.hpp"
#include "tests/unit/state_invariants.hpp"

namespace crossover {

struct JobModel {
    std::uint64_t compute_ns;      // on each device, under the turn
    std::uint64_t communicate_ns;  // once the last device has computed, for all devices together
    std::uint32_t weight = 0;
};

// One compute phase that a job has finished on a device.
struct Phase {
    std::size_t job;
    std::size_t iteration;
    std::uint64_t end_ns;
};

class Cluster {
  public:
    Cluster(std::size_t devices, std::uint64_t seed) : random_(seed), orders_(devices) {
        for (std::size_t device = 0; device < devices; ++device) {
            segments_.push_back(make_segment());
            lease_events_.push_back(0);
            stalls_.push_back(0);
        }
    }

    // The job comes to each device at a moment of its own within `skew_ns` from now.
    std::size_t join(const JobModel& model, std::uint64_t key, std::uint64_t skew_ns) {
        jobs_.push_back({model, key, 0, false, true, std::vector<Rank>(segments_.size())});
        for (std::size_t device = 0; device < segments_.size(); ++device) {
            at(now_ + 1 + random_() % skew_ns,
               [this, job = jobs_.size() - 1, device] { attach(job, device); });
        }
        return jobs_.size() - 1;
    }

    void leave(std::size_t job, std::uint64_t skew_ns) {
        jobs_[job].there = false;
        for (std::size_t device = 0; device < segments_.size(); ++device) {
            at(now_ + 1 + random_() % skew_ns,
               [this, job, device] { drop(job, device, detach_client); });
        }
    }

    // The job's process on one device dies and comes back after `away_ns`; it computes the present
    // iteration again.
    void die_and_rejoin(std::size_t job, std::size_t device, std::uint64_t away_ns) {
        drop(job, device, reap_client);
        at(now_ + away_ns, [this, job, device] { attach(job, device); });
    }

    // What computes on the device, or does so next, takes `for_ns` longer.
    void stall(std::size_t device, std::uint64_t for_ns) {
        stalls_[device] = for_ns;
        for (std::size_t job = 0; job < jobs_.size(); ++job) {
            Rank& rank = jobs_[job].ranks[device];
            if (!rank.computing) continue;
            compute_until(job, device, rank.end_ns + for_ns);
            stalls_[device] = 0;
        }
    }

    // Until the job has finished so many iterations more; false if it never does.
    bool run(std::size_t job, std::size_t iterations) {
        const std::size_t goal = jobs_[job].iteration + iterations;
        while (jobs_[job].iteration < goal) {
            if (events_.empty() || testing::Test::HasFailure()) return false;
            const Event event = events_.top();
            events_.pop();
            now_ = event.time_ns;
            event.action();
            if (++steps_ % 64 == 0) expect_invariants(*segments_[steps_ / 64 % segments_.size()]);
        }
        return true;
    }

    std::uint64_t now() const { return now_; }
    std::size_t iterations(std::size_t job) const { return jobs_[job].iteration; }
    std::uint64_t cuts() const {
        std::uint64_t cuts = 0;
        for (const auto& segment : segments_) cuts += segment->arbitration.expired_count;
        return cuts;
    }
    // The most turns that any one job has begun while another waited all the time.
    int most_passes() const { return most_passes_; }

    // The least number of phases, begun with the first after `since_ns`, after which all devices
    // have the jobs in the same order to the end, which one may go through up to `shift` phases
    // ahead of another. SIZE_MAX: they do not agree on the last 2 * shift either.
    std::size_t settled(std::uint64_t since_ns, std::size_t shift) const {
        std::vector<std::vector<std::size_t>> jobs(orders_.size());
        for (std::size_t device = 0; device < orders_.size(); ++device) {
            for (const Phase& phase : orders_[device]) {
                if (phase.end_ns >= since_ns) jobs[device].push_back(phase.job);
            }
            if (jobs[device].size() < 4 * shift) return SIZE_MAX;
        }
        std::size_t settled = 0;
        for (std::size_t device = 1; device < jobs.size(); ++device) {
            std::size_t best = SIZE_MAX;
            for (std::size_t ahead = 0; ahead <= shift; ++ahead) {
                best = std::min({best, last_difference(jobs[0], jobs[device], ahead, shift),
                                 last_difference(jobs[device], jobs[0], ahead, shift)});
            }
            settled = std::max(settled, best);
        }
        return settled;
    }

  private:
    struct Rank {
        bool attached = false;
        bool done = false;  // has computed in this iteration
        bool computing = false;
        std::uint64_t left_ns = 0;  // still to compute
        std::uint64_t end_ns = 0;   // while computing
        std::uint64_t number = 0;   // of the computation, so that an end put off is not taken
        std::map<std::size_t, int> passed;  // by whom, since it waits
    };
    struct Job {
        JobModel model;
        std::uint64_t key;
        std::size_t iteration;
        bool communicating;
        bool there;
        std::vector<Rank> ranks;
    };
    struct Event {
        std::uint64_t time_ns;
        std::uint64_t number;
        std::function<void()> action;
        bool operator>(const Event& other) const {
            return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
        }
    };

    static std::size_t last_difference(const std::vector<std::size_t>& a,
                                       const std::vector<std::size_t>& b, std::size_t ahead,
                                       std::size_t shift) {
        const std::size_t common = std::min(a.size() - ahead, b.size());
        for (std::size_t i = common; i-- > 0;) {
            if (a[i + ahead] == b[i]) continue;
            return common - i > 2 * shift ? i + 1 : SIZE_MAX;
        }
        return 0;
    }

    static std::uint32_t slot_of(std::size_t job) { return static_cast<std::uint32_t>(job); }

    void at(std::uint64_t time_ns, std::function<void()> action) {
        events_.push({time_ns, number_++, std::move(action)});
    }

    // +- 3 %
    std::uint64_t jittered(std::uint64_t ns) {
        return ns - ns * 3 / 100 + random_() % (ns * 6 / 100 + 1);
    }

    void attach(std::size_t job, std::size_t device) {
        if (!jobs_[job].there) return;
        Wakes wakes;
        Joining joining;
        joining.job_key = jobs_[job].key;
        joining.weight = jobs_[job].model.weight;
        ASSERT_EQ(attach_client(*segments_[device], slot_of(job), joining, now_, wakes),
                  Status::kOk);
        Rank& rank = jobs_[job].ranks[device];
        rank = Rank{};
        rank.attached = true;
        rank.number = number_++;
        rank.left_ns = jittered(jobs_[job].model.compute_ns);
        if (!jobs_[job].communicating) ask(job, device);
    }

    template <class Leave>
    void drop(std::size_t job, std::size_t device, Leave&& leave_by) {
        Wakes wakes;
        Rank& rank = jobs_[job].ranks[device];
        rank.attached = rank.computing = rank.done = false;
        rank.number = number_++;
        leave_by(*segments_[device], slot_of(job), now_, wakes);
        look(device, wakes);
    }

    void ask(std::size_t job, std::size_t device) {
        Rank& rank = jobs_[job].ranks[device];
        if (!rank.attached || rank.done || rank.computing) return;
        Wakes wakes;
        rank.passed.clear();
        request(*segments_[device], slot_of(job), now_, wakes);
        look(device, wakes);
    }

    // After each transition: whoever has got the turn computes.
    void look(std::size_t device, const Wakes& wakes) {
        Segment& segment = *segments_[device];
        for (std::size_t job = 0; job < jobs_.size(); ++job) {
            Rank& rank = jobs_[job].ranks[device];
            if (!wakes.grants.contains(slot_of(job)) || !rank.attached || rank.computing) continue;
            compute_until(job, device, now_ + rank.left_ns + stalls_[device]);
            stalls_[device] = 0;
            for (std::size_t other = 0; other < jobs_.size(); ++other) {
                if (segment.clients[slot_of(other)].waits.load() == 0) continue;
                int& passes = jobs_[other].ranks[device].passed[job];
                most_passes_ = std::max(most_passes_, ++passes);
            }
        }
        const std::uint64_t lease_end = lease_end_ns(segment);
        if (lease_end == UINT64_MAX || lease_end == lease_events_[device]) return;
        lease_events_[device] = lease_end;
        at(std::max(lease_end, now_), [this, device] { cut(device); });
    }

    void compute_until(std::size_t job, std::size_t device, std::uint64_t end_ns) {
        Rank& rank = jobs_[job].ranks[device];
        rank.computing = true;
        rank.end_ns = end_ns;
        rank.number = number_++;
        at(end_ns, [this, job, device, number = rank.number] {
            if (jobs_[job].ranks[device].number == number) computed(job, device);
        });
    }

    void computed(std::size_t job, std::size_t device) {
        Job& which = jobs_[job];
        Rank& rank = which.ranks[device];
        rank.computing = false;
        rank.done = true;
        orders_[device].push_back({job, which.iteration, now_});
        Wakes wakes;
        release(*segments_[device], slot_of(job), now_, wakes);
        look(device, wakes);
        if (!std::all_of(which.ranks.begin(), which.ranks.end(),
                         [](const Rank& each) { return each.done; })) {
            return;
        }
        which.communicating = true;
        at(now_ + jittered(which.model.communicate_ns), [this, job] { communicated(job); });
    }

    void communicated(std::size_t job) {
        Job& which = jobs_[job];
        which.communicating = false;
        ++which.iteration;
        for (std::size_t device = 0; device < segments_.size(); ++device) {
            Rank& rank = which.ranks[device];
            rank.done = false;
            rank.left_ns = jittered(which.model.compute_ns);
            // A collective ends everywhere at once, give or take some microseconds.
            at(now_ + random_() % 20'000, [this, job, device] { ask(job, device); });
        }
    }

    // What a cut turn has not computed is computed in the job's next one.
    void cut(std::size_t device) {
        Wakes wakes;
        if (!expire(*segments_[device], now_, wakes)) return;
        for (std::size_t job = 0; job < jobs_.size(); ++job) {
            Rank& rank = jobs_[job].ranks[device];
            if (!rank.computing || segments_[device]->clients[slot_of(job)].claims.load() != 0) {
                continue;
            }
            rank.computing = false;
            rank.left_ns = std::max<std::uint64_t>(rank.end_ns - now_, 1);
            rank.number = number_++;
            at(now_ + 10'000, [this, job, device] { ask(job, device); });
        }
        look(device, wakes);
    }

    std::mt19937_64 random_;
    std::uint64_t now_ = 1;
    std::uint64_t number_ = 0;
    std::uint64_t steps_ = 0;
    int most_passes_ = 0;
    std::vector<Job> jobs_;
    std::vector<std::unique_ptr<Segment>> segments_;
    std::vector<std::uint64_t> lease_events_;
    std::vector<std::uint64_t> stalls_;
    std::vector<std::vector<Phase>> orders_;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
};

}  // namespace crossover
