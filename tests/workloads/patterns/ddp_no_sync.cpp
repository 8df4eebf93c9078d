// SPDX-License-Identifier: Apache-2.0
// Gradient accumulation under DistributedDataParallel.no_sync() (torch/nn/parallel/distributed.py):
// the hooks of all micro-batches but the last only accumulate (AccumulateGrad adds in place), and
// the last one's backward pass reduces the buckets. So communication comes once in k backward
// passes, and the same compute is followed by a collective only every k-th time.
#include "buckets.hpp"

namespace patterns {
namespace {

class Accumulating final : public BucketedDataParallel {
  public:
    explicit Accumulating(const Settings& settings)
        : BucketedDataParallel(settings), loss_(dp::device_array<float>(1)) {
        for (const dp::Layer& layer : model_.layers) {
            fresh_.push_back(dp::device_array<float>(layer.size()));
        }
    }

    void iteration(int number) override {
        const int micros = settings_.micro_batches;
        dp::check(cudaMemsetAsync(loss_, 0, sizeof(float), compute_), "cudaMemsetAsync");
        for (int micro = 0; micro < micros; ++micro) {
            forward(number * micros + micro);
            dp::launch(dp::Add{model_.loss_sum, loss_, 1}, compute_);
            const bool last = micro + 1 == micros;
            if (last) {
                // The loss travels with the last bucket, as a sum over all.
                dp::launch(dp::Copy{loss_, model_.loss_sum, 1}, compute_);
            }
            for (int l = model_.count() - 1; l >= 0; --l) {
                accumulate(l, micro == 0);
                if (last) {
                    gradient_ready(l);
                }
            }
        }
        finalize_backward();
        const int parts = options().world_size * micros;
        for (int l = 0; l < model_.count(); ++l) {
            model_.step(l, parts, compute_);
        }
        model_.record_loss(number, parts, compute_);
    }

  private:
    // The first micro-batch's gradient becomes the sum, those of the others are added.
    void accumulate(int l, bool first) {
        dp::Layer& layer = model_.layers[l];
        float* const sum = layer.gradient;
        layer.gradient = first ? sum : fresh_[l];
        model_.backward(l, compute_);
        layer.gradient = sum;
        if (!first) {
            dp::launch(dp::Add{fresh_[l], sum, static_cast<int>(layer.size())}, compute_);
        }
    }

    std::vector<float*> fresh_;  // the micro-batch's own gradient
    float* const loss_;          // sum over the micro-batches
};

}  // namespace

std::unique_ptr<Pattern> make_ddp_no_sync(const Settings& settings) {
    // The extra device time is an iteration's, whatever its micro-batches.
    Settings own = settings;
    own.options.compute_ms /= own.micro_batches;
    return std::make_unique<Accumulating>(own);
}

}  // namespace patterns
