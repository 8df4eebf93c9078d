// SPDX-License-Identifier: Apache-2.0
// GpuEvents over the real driver. Every call runs under a relaxed capture mode of the calling
// thread, so that it cannot invalidate a capture of somebody else's.
#pragma once

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
};

}  // namespace crossover
