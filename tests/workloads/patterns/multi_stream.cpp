// SPDX-License-Identifier: Apache-2.0
// Compute on several streams of the program's own, joined by events, as NVIDIA's examples (the
// data_prefetcher of Apex's imagenet example: input copied on a side stream one iteration ahead)
// and schedulers that part weight from data gradients (torch.cuda.Stream around the weights'
// gradients; TransformerEngine's delayed weight gradients) do. Then DistributedDataParallel's
// buckets, whose collectives wait for more than one compute stream.
#include <array>

#include "buckets.hpp"

namespace patterns {
namespace {

class MultiStream final : public BucketedDataParallel {
  public:
    explicit MultiStream(const Settings& settings)
        : BucketedDataParallel(settings),
          copy_(dp::new_stream()),
          loaded_(dp::new_event()),
          used_(dp::new_event()),
          fork_(dp::new_event()) {
        const auto batch = static_cast<std::size_t>(options().batch);
        next_input_ = dp::device_array<float>(batch * dp::kInputs);
        next_target_ = dp::device_array<float>(batch * dp::kOutputs);
        for (std::size_t i = 0; i < weights_.size(); ++i) {
            weights_[i] = dp::new_stream();
            joins_[i] = dp::new_event();
        }
        dp::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
        prefetch(0);
    }

    void iteration(int number) override {
        dp::check(cudaStreamWaitEvent(compute_, loaded_, 0), "cudaStreamWaitEvent");
        dp::launch(dp::Copy{next_input_, model_.input, options().batch * dp::kInputs}, compute_);
        dp::launch(dp::Copy{next_target_, model_.target, options().batch * dp::kOutputs}, compute_);
        dp::check(cudaEventRecord(used_, compute_), "cudaEventRecord");
        prefetch(number + 1);
        for (int l = 0; l < model_.count(); ++l) {
            model_.forward(l, compute_);
        }
        model_.loss(compute_);
        for (int l = model_.count() - 1; l >= 0; --l) {
            // The weights' gradients of neighbouring layers side by side, and beside the data's.
            const std::size_t side = static_cast<std::size_t>(l) % weights_.size();
            dp::order(compute_, fork_, weights_[side]);
            model_.backward_weights(l, weights_[side]);
            model_.burner.burn(model_.backward_ms() / 2.0, weights_[side]);
            model_.backward_data(l, compute_);
            model_.burner.burn(model_.backward_ms() / 2.0, compute_);
            dp::check(cudaEventRecord(joins_[side], weights_[side]), "cudaEventRecord");
            // A full bucket needs all of its layers.
            if (model_.buckets[model_.layers[l].bucket].last_layer == l) {
                for (const cudaEvent_t join : joins_) {
                    dp::check(cudaStreamWaitEvent(compute_, join, 0), "cudaStreamWaitEvent");
                }
                fill_bucket(model_.layers[l].bucket);
            }
        }
        finalize_backward();
        step(number);
    }

  private:
    void prefetch(int number) {
        dp::check(cudaStreamWaitEvent(copy_, used_, 0), "cudaStreamWaitEvent");
        model_.data.load(number, next_input_, next_target_, copy_);
        dp::check(cudaEventRecord(loaded_, copy_), "cudaEventRecord");
    }

    void fill_bucket(int bucket) {
        for (int l = model_.count() - 1; l >= 0; --l) {
            if (model_.layers[l].bucket == bucket) {
                gradient_ready(l);
            }
        }
    }

    const cudaStream_t copy_;
    const cudaEvent_t loaded_;
    const cudaEvent_t used_;  // what the last copy brought
    const cudaEvent_t fork_;
    std::array<cudaStream_t, 2> weights_{};
    std::array<cudaEvent_t, 2> joins_{};
    float* next_input_ = nullptr;
    float* next_target_ = nullptr;
};

}  // namespace

std::unique_ptr<Pattern> make_multi_stream(const Settings& settings) {
    return std::make_unique<MultiStream>(settings);
}

}  // namespace patterns
