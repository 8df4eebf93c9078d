// SPDX-License-Identifier: Apache-2.0
// GpuEvents over the real driver. Every call runs under a relaxed capture mode of the calling
// thread, so that it cannot invalidate a capture of somebody else's.
#pragma once

#include <atomic>

#include "shim/inference/gpu_events.hpp"

namespace crossover {

class DriverEvents final : public GpuEvents {
  public:
    GpuEvent create() noexcept override;
    void destroy(GpuEvent event) noexcept override;
    bool record(GpuEvent event, std::uintptr_t stream) noexcept override;
    EventState query(GpuEvent event) noexcept override;
    std::int64_t elapsed_ns(GpuEvent from, GpuEvent to) noexcept override;
    bool capturing(std::uintptr_t stream) noexcept override;
    // The driver has refused a call because the process is ending: no fault of the device.
    bool ended() const noexcept { return ended_.load(std::memory_order_relaxed); }

  private:
    bool succeeded(int result) noexcept;
    std::atomic<bool> ended_{false};
};

}  // namespace crossover
