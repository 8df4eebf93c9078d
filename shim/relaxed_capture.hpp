// SPDX-License-Identifier: Apache-2.0
// The capture mode under which our own calls to the driver run. Nothing else.
#pragma once

#include "shim/real_driver.hpp"

namespace crossover {

[[gnu::tls_model("initial-exec")]] inline thread_local constinit bool relaxed_for_life = false;

// Of a thread of our own: spares each of its calls the two that change the mode and back.
inline void relax_this_thread(const RealDriver& driver) noexcept {
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_RELAXED;
    relaxed_for_life = driver.exchange_capture_mode != nullptr &&
                       driver.exchange_capture_mode(&mode) == CUDA_SUCCESS;
}

// While it lives, unsafe calls of this thread are legal during other threads' captures.
class RelaxedCaptureMode {
  public:
    explicit RelaxedCaptureMode(const RealDriver& driver) noexcept : driver_(driver) {
        exchanged_ = !relaxed_for_life && driver_.exchange_capture_mode != nullptr &&
                     driver_.exchange_capture_mode(&mode_) == CUDA_SUCCESS;
    }
    ~RelaxedCaptureMode() {
        if (exchanged_) {
            driver_.exchange_capture_mode(&mode_);
        }
    }
    RelaxedCaptureMode(const RelaxedCaptureMode&) = delete;
    RelaxedCaptureMode& operator=(const RelaxedCaptureMode&) = delete;

  private:
    const RealDriver& driver_;
    CUstreamCaptureMode mode_ = CU_STREAM_CAPTURE_MODE_RELAXED;
    bool exchanged_ = false;
};

}  // namespace crossover
