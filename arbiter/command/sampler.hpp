// SPDX-License-Identifier: Apache-2.0
// Adds up what the clients of a job told of themselves over a run, from snapshots taken while it
// ran. Pure.
#pragma once

#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>

#include "bound.hpp"
#include "snapshot.hpp"

namespace crossover::command {

struct JobSample {
    std::size_t clients = 0;  // processes times devices
    std::uint64_t crossings = 0;
    std::uint64_t turns = 0;
    std::uint64_t held_ns = 0;
    std::uint64_t waited_ns = 0;
    std::set<std::string> devices;
    JobTotals totals;  // mean over the clients
};

class Sampler {
  public:
    // `instance` tells a segment from the next one of the same device.
    void add(const std::string& instance, const DeviceSnapshot& snapshot);
    // What is known of a job that ran from `begin_ns` to `end_ns`. clients = 0: it was never seen.
    JobSample job(const std::string& name, std::uint64_t begin_ns, std::uint64_t end_ns) const;

  private:
    struct Seen {
        std::string job;
        std::string device;
        std::uint64_t crossings = 0;
        std::uint64_t exposed_ns = 0;
        std::uint64_t communicated_ns = 0;
    };
    struct Turns {
        std::string job;
        std::uint64_t turns = 0;
        std::uint64_t held_ns = 0;
        std::uint64_t waited_ns = 0;
    };
    static void update(Seen& seen, const ClientSnapshot& client);

    // A slot is used by one client after the other: when it attached tells them apart.
    std::map<std::tuple<std::string, std::uint32_t, std::uint64_t>, Seen> clients_;
    std::map<std::tuple<std::string, std::uint32_t, std::uint64_t>, Turns>
        turns_;  // by slot and key
};

}  // namespace crossover::command
