// SPDX-License-Identifier: Apache-2.0
// Sums over snapshots: see sampler.hpp.
#include "sampler.hpp"

#include <algorithm>

namespace crossover::command {
namespace {

void raise(std::uint64_t& value, std::uint64_t to) { value = std::max(value, to); }

}  // namespace

void Sampler::update(Seen& seen, const ClientSnapshot& client) {
    raise(seen.crossings, client.crossings);
    raise(seen.exposed_ns, client.exposed_ns);
    raise(seen.communicated_ns, client.communicated_ns);
}

void Sampler::add(const std::string& instance, const DeviceSnapshot& snapshot) {
    for (const ClientSnapshot& client : snapshot.clients) {
        const JobSnapshot* job = snapshot.job_in(client.job);
        if (job == nullptr) {
            continue;  // it is leaving or moving at this moment
        }
        Seen& seen = clients_[{instance, client.slot, client.attached_ns}];
        seen.job = job->name;
        seen.device = snapshot.uuid;
        update(seen, client);
    }
    // The last figures of those that left since they were seen.
    for (const ClientSnapshot& client : snapshot.departed) {
        const auto known = clients_.find({instance, client.slot, client.attached_ns});
        if (known != clients_.end()) {
            update(known->second, client);
        }
    }
    for (const JobSnapshot& job : snapshot.jobs) {
        Turns& turns = turns_[{instance, job.slot, job.key}];
        turns.job = job.name;
        raise(turns.turns, job.turns);
        raise(turns.held_ns, job.held_ns);
        raise(turns.waited_ns, job.waited_ns);
    }
}

JobSample Sampler::job(const std::string& name, std::uint64_t begin_ns,
                       std::uint64_t end_ns) const {
    JobSample sample;
    JobTotals sum;
    for (const auto& [key, seen] : clients_) {
        if (seen.job != name) {
            continue;
        }
        const std::uint64_t attached_ns = std::clamp(std::get<2>(key), begin_ns, end_ns);
        const std::uint64_t used_ns = end_ns - attached_ns;
        const std::uint64_t exposed_ns = std::min(seen.exposed_ns, used_ns);
        ++sample.clients;
        sample.crossings += seen.crossings;
        sample.devices.insert(seen.device);
        sum.start_ns += attached_ns - begin_ns;
        sum.compute_ns += used_ns - exposed_ns;
        sum.communicate_ns += seen.communicated_ns;
        sum.exposed_ns += exposed_ns;
    }
    for (const auto& [key, turns] : turns_) {
        if (turns.job == name) {
            sample.turns += turns.turns;
            sample.held_ns += turns.held_ns;
            sample.waited_ns += turns.waited_ns;
        }
    }
    if (sample.clients != 0) {
        sample.totals = {sum.start_ns / sample.clients, sum.compute_ns / sample.clients,
                         sum.communicate_ns / sample.clients, sum.exposed_ns / sample.clients};
    }
    return sample;
}

}  // namespace crossover::command
