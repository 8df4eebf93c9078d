// SPDX-License-Identifier: Apache-2.0
// Compute in CUDA graphs, collectives outside, as torch.cuda.make_graphed_callables() under
// DistributedDataParallel (forward and backward graphed, hooks not) and Megatron-LM's graphs of
// layers do: a graph of the forward and backward pass, the sums of the gradients, and a graph of
// the optimizer. Input is copied into the graph's fixed places before each launch.
#include "capture.hpp"
#include "data_parallel.hpp"

namespace patterns {
namespace {

class GraphedCompute final : public DataParallel {
  public:
    explicit GraphedCompute(const Settings& settings)
        : DataParallel(settings), side_(dp::new_stream()) {}

    void iteration(int number) override {
        if (number >= kEagerIterations && !passes_.captured()) {
            passes_.capture(side_, [this] { submit_passes(side_); });
            optimizer_.capture(side_, [this] { submit_optimizer(side_); });
        }
        model_.load(number, compute_);
        if (passes_.captured()) {
            passes_.launch(compute_);
        } else {
            submit_passes(compute_);
        }
        std::vector<Work> works;
        for (const dp::Bucket& bucket : model_.buckets) {
            works.push_back(group_.all_reduce(bucket.begin, bucket.size, compute_));
        }
        for (const Work& work : works) {
            work.wait(compute_);
        }
        if (optimizer_.captured()) {
            optimizer_.launch(compute_);
        } else {
            submit_optimizer(compute_);
        }
        model_.record_loss(number, options().world_size, compute_);
    }

  private:
    void submit_passes(cudaStream_t stream) {
        for (int l = 0; l < model_.count(); ++l) {
            model_.forward(l, stream);
        }
        model_.loss(stream);
        for (int l = model_.count() - 1; l >= 0; --l) {
            model_.backward(l, stream);
        }
    }
    void submit_optimizer(cudaStream_t stream) {
        for (int l = 0; l < model_.count(); ++l) {
            model_.step(l, options().world_size, stream);
        }
    }

    const cudaStream_t side_;
    CapturedGraph passes_;
    CapturedGraph optimizer_;
};

}  // namespace

std::unique_ptr<Pattern> make_graph_compute(const Settings& settings) {
    return std::make_unique<GraphedCompute>(settings);
}

}  // namespace patterns
