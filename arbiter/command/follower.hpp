// SPDX-License-Identifier: Apache-2.0
// Reads the event rings of open segments again and again and feeds a timeline's builders. No file,
// no clock.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "segments.hpp"
#include "timeline.hpp"

namespace crossover::command {

class Follower {
  public:
    // `with_past`: take what the rings hold from before `begin_ns` too.
    Follower(std::uint64_t begin_ns, bool with_past);

    // Reads what is new, at the time `now_ns`. A segment that has left the list is read to its end
    // once more. Returns whether a job is attached to one of them.
    bool follow(const std::vector<std::shared_ptr<OpenSegment>>& segments, std::uint64_t now_ns);
    // The follower is spent.
    Timeline finish(std::uint64_t now_ns);

  private:
    struct Source {
        std::shared_ptr<OpenSegment> open;
        std::string device;
        std::uint64_t next = 0;
    };
    void read(Source& source, std::uint64_t now_ns);
    DeviceBuilder& builder_of(const std::string& device);

    std::uint64_t begin_ns_;
    bool with_past_;
    bool first_look_ = true;
    bool active_ = false;
    std::uint64_t first_event_ns_ = 0;  // 0: none yet
    std::uint64_t last_event_ns_ = 0;
    std::vector<Source> sources_;
    std::vector<std::pair<std::string, DeviceBuilder>>
        builders_;  // one a device, over all its segments
};

}  // namespace crossover::command
