// SPDX-License-Identifier: Apache-2.0
// What patterns of data-parallel training with PyTorch's process group have in common: one model,
// one compute stream. How gradients are summed is the pattern's.
#pragma once

#include "pattern.hpp"
#include "process_group.hpp"

namespace patterns {

class DataParallel : public Pattern {
  public:
    // Selects the device.
    explicit DataParallel(const Settings& settings,
                          ProcessGroup::Blocking blocking = ProcessGroup::Blocking::kYes);

    cudaStream_t compute() const override { return compute_; }
    const float* history() const override { return model_.history; }
    void barrier() override { group_.barrier(); }
    std::uint64_t parameters_hash() override { return dp::hash_parameters(model_.layers); }
    std::uint64_t communicated_bytes() const override {
        return model_.gradient_count * sizeof(float);
    }
    double burn_per_ms() const override { return model_.burner.per_ms(); }

  protected:
    const dp::Options& options() const { return settings_.options; }
    // All of them on the compute stream.
    void forward(int number);  // with the loss
    void step(int number);     // with the loss's record

    const Settings settings_;

  private:
    // Before the rest, which it is for.
    struct Device {
        explicit Device(const dp::Options& options);
    };
    const Device device_;

  protected:
    cudaStream_t compute_;  // the current stream
    ProcessGroup group_;
    dp::Model model_;
};

}  // namespace patterns
