// SPDX-License-Identifier: Apache-2.0
// Events to intervals: see timeline.hpp.
#include "timeline.hpp"

#include <algorithm>
#include <iterator>

namespace crossover::command {

DeviceBuilder::DeviceBuilder(std::string name, std::uint64_t begin_ns)
    : known_from_ns_(begin_ns), last_ns_(begin_ns) {
    result_.name = std::move(name);
}

std::uint64_t DeviceBuilder::clipped(std::uint64_t time_ns) const noexcept {
    return std::max(time_ns, known_from_ns_);
}

std::size_t DeviceBuilder::job_index(std::uint64_t key) {
    const auto found =
        std::find_if(jobs_.begin(), jobs_.end(), [key](const Job& job) { return job.key == key; });
    if (found != jobs_.end()) {
        return static_cast<std::size_t>(found - jobs_.begin());
    }
    jobs_.emplace_back();
    jobs_.back().key = key;
    return jobs_.size() - 1;
}

void DeviceBuilder::name_job(std::uint64_t job_key, const std::string& name) {
    if (job_key != 0 && !name.empty()) {
        jobs_[job_index(job_key)].name = name;
    }
}

DeviceBuilder::ClientState& DeviceBuilder::client_of(std::uint32_t number, std::size_t job,
                                                     std::uint64_t now_ns) {
    const auto [place, added] = clients_.try_emplace(number);
    ClientState& client = place->second;
    if (!added &&
        client.job != job) {  // the slot's next user, or the client has moved to another job
        close_all(client, now_ns);
        client = ClientState{};
    }
    client.job = job;
    return client;
}

void DeviceBuilder::open(ClientState& client, Lane lane, std::uint64_t now_ns) {
    client.known[lane] = true;
    if (!client.open[lane]) {
        client.open[lane] = true;
        client.since_ns[lane] = clipped(now_ns);
    }
}

void DeviceBuilder::close(ClientState& client, Lane lane, std::uint64_t now_ns,
                          std::uint64_t began_ns) {
    if (!client.open[lane] && client.known[lane]) {
        return;  // ended before, by another sign
    }
    const std::uint64_t begin_ns = client.open[lane] ? client.since_ns[lane] : clipped(began_ns);
    client.open[lane] = false;
    client.known[lane] = true;
    if (begin_ns < now_ns) {
        jobs_[client.job].raw[lane].push_back({begin_ns, now_ns});
    }
}

void DeviceBuilder::close_all(ClientState& client, std::uint64_t now_ns) {
    for (std::size_t lane = 0; lane < kLanes; ++lane) {
        close(client, static_cast<Lane>(lane), now_ns, now_ns);
    }
}

void DeviceBuilder::end_turn(std::uint64_t now_ns, bool cut_by_lease) {
    if (turn_.open && turn_.since_ns < now_ns) {
        result_.turns.push_back({turn_.job, {turn_.since_ns, now_ns}, cut_by_lease});
    }
    turn_.open = false;
}

void DeviceBuilder::turn_begins(std::size_t job, std::uint64_t now_ns) {
    end_turn(now_ns, false);  // its end was not seen
    turn_ = {true, job, clipped(now_ns)};
}

void DeviceBuilder::turn_ends(std::size_t job, const TraceEvent& event, bool cut_by_lease) {
    if (!turn_.open) {  // granted before the first event that is known
        const std::uint64_t held_ns = std::min(event.value, event.time_ns);
        std::uint64_t begin_ns = clipped(event.time_ns - held_ns);
        if (!result_.turns.empty()) {
            begin_ns = std::max(begin_ns, result_.turns.back().time.end_ns);
        }
        turn_ = {true, job, begin_ns};
    }
    if (turn_.job == job) {
        end_turn(event.time_ns, cut_by_lease);
    }
}

void DeviceBuilder::add(const TraceEvent& event) {
    if (known_from_ns_ == 0) {
        known_from_ns_ = event.time_ns;
        last_ns_ = event.time_ns;
    }
    if (gap_) {
        const std::uint64_t end_ns = std::max(event.time_ns, last_ns_);
        if (last_ns_ < end_ns) {
            result_.lost.push_back({last_ns_, end_ns});
        }
        known_from_ns_ = end_ns;
        gap_ = false;
    }
    last_ns_ = std::max(last_ns_, event.time_ns);
    if (event.job_key == 0) {
        return;
    }
    switch (event.kind) {
        case EventKind::kWait:
        case EventKind::kGrant:
        case EventKind::kRelease:
        case EventKind::kExpire:
            turn_event(event);
            break;
        default:
            client_event(event);
    }
}

// Turns are the job's. The event's client is whoever made the transition, perhaps another job's: a
// job that gives the turn back grants it to the next one.
void DeviceBuilder::turn_event(const TraceEvent& event) {
    const std::size_t index = job_index(event.job_key);
    Job& job = jobs_[index];
    if (event.kind == EventKind::kWait) {
        // Still waiting by our books: it gave up meanwhile, which is no event. The grant tells how
        // long.
        job.waits = true;
        job.wait_since_ns = clipped(event.time_ns);
    } else if (event.kind == EventKind::kGrant) {
        job.waits = true;
        job.wait_since_ns = clipped(event.time_ns - std::min(event.value, event.time_ns));
        stop_waiting(index, event.time_ns);
        turn_begins(index, event.time_ns);
    } else {
        const bool cut_by_lease = event.kind == EventKind::kExpire;
        turn_ends(index, event, cut_by_lease);
        if (cut_by_lease) {
            // What it submits next waits for its next turn and is told then; that what it submitted
            // before has drained is not told at all.
            for (auto& [number, client] : clients_) {
                if (client.job == index) {
                    close(client, kCompute, event.time_ns, event.time_ns);
                }
            }
        }
    }
}

void DeviceBuilder::stop_waiting(std::size_t index, std::uint64_t now_ns) {
    Job& job = jobs_[index];
    if (job.waits && job.wait_since_ns < now_ns) {
        job.raw_waiting.push_back({job.wait_since_ns, now_ns});
    }
    job.waits = false;
}

void DeviceBuilder::client_event(const TraceEvent& event) {
    const std::uint64_t now_ns = event.time_ns;
    const std::uint64_t before_ns = now_ns - std::min(event.value, now_ns);
    const std::size_t job = job_index(event.job_key);
    ClientState& client = client_of(event.client, job, now_ns);
    switch (event.kind) {
        case EventKind::kAttach:
            close_all(client, now_ns);  // a slot's earlier user whose end was not seen
            client = ClientState{};
            client.job = job;
            std::fill(std::begin(client.known), std::end(client.known), true);
            break;
        case EventKind::kDetach:
        case EventKind::kReap:
            close_all(client, now_ns);
            clients_.erase(event.client);
            if (std::none_of(clients_.begin(), clients_.end(),
                             [job](const auto& other) { return other.second.job == job; })) {
                stop_waiting(job, now_ns);
            }
            stop_if_alone(now_ns);
            break;
        case EventKind::kCompute:
            close(client, kWindow, now_ns, now_ns);
            open(client, kCompute, now_ns);
            break;
        case EventKind::kCollectiveEnd:
            if (clipped(before_ns) < now_ns) {
                jobs_[job].raw_in_flight.push_back({clipped(before_ns), now_ns});
            }
            break;
        case EventKind::kWindowOpen:
            close(client, kCompute, now_ns, known_from_ns_);
            open(client, kWindow, now_ns);
            break;
        case EventKind::kWindowClose:
            close(client, kWindow, now_ns, before_ns);
            break;
        case EventKind::kIdle:  // drained since `value` ns
            close(client, kCompute, before_ns, known_from_ns_);
            break;
        default:  // kCrossing: a thread waits for its own collective, which the window tells
                  // already
            break;
    }
}

void DeviceBuilder::begin_with(const DeviceSnapshot& snapshot) {
    for (const JobSnapshot& job : snapshot.jobs) {
        const std::size_t index = job_index(job.key);
        jobs_[index].name = job.name;
        jobs_[index].waits = job.state == JobState::kWaiting;
        jobs_[index].wait_since_ns = clipped(job.wait_since_ns);
        if (snapshot.turn_held && snapshot.holder == job.slot) {
            turn_ = {true, index, clipped(job.turn_since_ns)};
        }
    }
    for (const ClientSnapshot& client : snapshot.clients) {
        const JobSnapshot* job = snapshot.job_in(client.job);
        if (job == nullptr) {
            continue;
        }
        ClientState& state = client_of(client.slot + 1, job_index(job->key), snapshot.now_ns);
        if (client.phase == ClientPhase::kComputing) {
            open(state, kCompute, client.phase_ns);
        } else if (client.phase == ClientPhase::kCommunicating) {
            open(state, kWindow, client.phase_ns);
        }
    }
}

// A job that is alone takes no turns and tells no phases: what it did last must not seem to go on.
void DeviceBuilder::stop_if_alone(std::uint64_t now_ns) {
    const bool alone = std::all_of(clients_.begin(), clients_.end(), [this](const auto& other) {
        return other.second.job == clients_.begin()->second.job;
    });
    if (alone) {
        for (auto& [number, client] : clients_) {
            close_all(client, now_ns);
        }
    }
}

void DeviceBuilder::stop_everything(std::uint64_t now_ns) {
    for (auto& [number, client] : clients_) {
        close_all(client, now_ns);
    }
    clients_.clear();
    for (std::size_t job = 0; job < jobs_.size(); ++job) {
        stop_waiting(job, now_ns);
    }
    end_turn(now_ns, false);
}

void DeviceBuilder::lost(std::uint64_t count) {
    if (count == 0) {
        return;
    }
    result_.lost_events += count;
    stop_everything(last_ns_);
    gap_ = true;
}

DeviceTimeline DeviceBuilder::finish(std::uint64_t end_ns) {
    end_ns = std::max(end_ns, last_ns_);
    stop_everything(end_ns);
    if (gap_ && last_ns_ < end_ns) {
        result_.lost.push_back({last_ns_, end_ns});
    }
    for (Job& job : jobs_) {
        JobLanes lanes;
        lanes.name = job.name.empty() ? "job " + std::to_string(result_.jobs.size() + 1) : job.name;
        lanes.compute = united(std::move(job.raw[kCompute]));
        lanes.in_flight = united(std::move(job.raw_in_flight));
        lanes.window = united(std::move(job.raw[kWindow]));
        lanes.waiting = united(std::move(job.raw_waiting));
        result_.jobs.push_back(std::move(lanes));
    }
    return std::move(result_);
}

}  // namespace crossover::command
