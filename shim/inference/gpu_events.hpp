// SPDX-License-Identifier: Apache-2.0
// What window inference needs of a GPU: events of its own. The driver's version stands in
// shim/driver_events.cpp; tests bring a model. No CUDA header here.
#pragma once

#include <cstdint>

namespace crossover {

using GpuEvent = void*;

enum class EventState : std::uint32_t { kPending, kDone, kFault };

class GpuEvents {
  public:
    virtual ~GpuEvents() = default;
    // A new event with timing, or nullptr. The calling thread has a current context.
    virtual GpuEvent create() noexcept = 0;
    virtual void destroy(GpuEvent event) noexcept = 0;
    // Records `event` at the end of the work on `stream`; false when refused.
    virtual bool record(GpuEvent event, std::uintptr_t stream) noexcept = 0;
    virtual EventState query(GpuEvent event) noexcept = 0;
    // GPU time from one finished event to another in ns, negative when `to` came first; 0 when
    // unknown.
    virtual std::int64_t elapsed_ns(GpuEvent from, GpuEvent to) noexcept = 0;
    // The stream takes part in a capture (or that cannot be told): nothing of ours may be recorded
    // on it.
    virtual bool capturing(std::uintptr_t stream) noexcept = 0;
};

}  // namespace crossover
