// SPDX-License-Identifier: Apache-2.0
// A model of a GPU for tests of window inference: every stream is a line of work with an end time,
// the clock moves when the test says so. No threads, no real time.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <set>
#include <vector>

#include "shim/inference/gpu_events.hpp"

namespace crossover {

class FakeGpu final : public GpuEvents {
  public:
    // --- the program's side
    // ---------------------------------------------------------------------------
    void work(std::uintptr_t stream, std::int64_t ns) {
        end_[stream] = std::max(end_[stream], now + launch_latency) + ns;
    }
    // `stream` waits for all work on `other` so far.
    void join(std::uintptr_t stream, std::uintptr_t other) {
        end_[stream] = std::max({end_[stream], end_[other], now});
    }
    std::int64_t end_of(std::uintptr_t stream) { return end_[stream]; }

    std::int64_t now = 0;
    std::int64_t launch_latency = 0;
    bool refuse_records = false;
    bool no_timing = false;  // elapsed times are unknown
    std::set<std::uintptr_t> captured;
    std::size_t alive = 0;    // events made and not destroyed
    std::size_t records = 0;  // events recorded

    // --- GpuEvents
    // ------------------------------------------------------------------------------------
    GpuEvent create() noexcept override {
        ++alive;
        events_.push_back(std::make_unique<std::int64_t>(0));
        return events_.back().get();
    }
    void destroy(GpuEvent) noexcept override { --alive; }
    bool record(GpuEvent event, std::uintptr_t stream) noexcept override {
        if (refuse_records || captured.contains(stream)) {
            return false;
        }
        ++records;
        *static_cast<std::int64_t*>(event) = std::max(end_[stream], now + launch_latency);
        return true;
    }
    EventState query(GpuEvent event) noexcept override {
        return *static_cast<std::int64_t*>(event) <= now ? EventState::kDone : EventState::kPending;
    }
    std::int64_t elapsed_ns(GpuEvent from, GpuEvent to) noexcept override {
        return no_timing ? 0 : *static_cast<std::int64_t*>(to) - *static_cast<std::int64_t*>(from);
    }
    bool capturing(std::uintptr_t stream) noexcept override { return captured.contains(stream); }

  private:
    std::map<std::uintptr_t, std::int64_t> end_;
    std::vector<std::unique_ptr<std::int64_t>> events_;
};

}  // namespace crossover
