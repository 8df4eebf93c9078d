// SPDX-License-Identifier: Apache-2.0
// Training over the Horovod-like engine of ../horovod_like, linked in with a shared NCCL (as with
// HOROVOD_NCCL_LINK=SHARED): gradients are handed over from the backward pass's hooks, a background
// thread negotiates, packs, sums and unpacks on a stream of its own, and step() synchronises every
// handle. How completion is told is the pattern's.
#pragma once

#include "../horovod_like/control.hpp"
#include "../horovod_like/engine.hpp"
#include "pattern.hpp"

namespace patterns {

class HorovodLike final : public Pattern {
  public:
    HorovodLike(const Settings& settings, hvd::Completion completion);

    void iteration(int number) override;
    cudaStream_t compute() const override { return compute_; }
    const float* history() const override { return model_.history; }
    void barrier() override;
    std::uint64_t parameters_hash() override { return dp::hash_parameters(model_.layers); }
    std::uint64_t communicated_bytes() const override {
        return model_.gradient_count * sizeof(float);
    }
    double burn_per_ms() const override { return model_.burner.per_ms(); }

  private:
    static cudaStream_t begin(const dp::Options& options);
    void connect();
    void submit(float* data, std::size_t count);
    void synchronize();

    const dp::Options options_;
    const cudaStream_t compute_;
    dp::Model model_;
    float* const scratch_;
    hvd::Control control_;
    std::unique_ptr<hvd::Engine> engine_;
    std::vector<std::int64_t> handles_;  // since the last synchronize()
};

}  // namespace patterns
