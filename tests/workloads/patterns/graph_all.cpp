// SPDX-License-Identifier: Apache-2.0
// A whole training step in one CUDA graph, collectives included, as the PyTorch documentation's
// "Usage with DistributedDataParallel" (CUDA semantics, NCCL 2.9.6 and later) and NVIDIA's MLPerf
// entries capture it: the hooks' all-reduces on the group's own stream become part of the capture
// by their events. An iteration is one launch; no call tells of a collective any more.
#include <utility>

#include "buckets.hpp"
#include "capture.hpp"

namespace patterns {
namespace {

class GraphedStep final : public BucketedDataParallel {
  public:
    explicit GraphedStep(const Settings& settings)
        : BucketedDataParallel(settings), side_(dp::new_stream()) {}

    void iteration(int number) override {
        if (number >= kEagerIterations && !graph_.captured()) {
            const cudaStream_t current = std::exchange(compute_, side_);
            graph_.capture(side_, [this] { submit(); });
            compute_ = current;
        }
        model_.load(number, compute_);
        if (graph_.captured()) {
            graph_.launch(compute_);
        } else {
            submit();
        }
        model_.record_loss(number, options().world_size, compute_);
    }

  private:
    void submit() {
        for (int l = 0; l < model_.count(); ++l) {
            model_.forward(l, compute_);
        }
        model_.loss(compute_);
        backward();
        finalize_backward();
        for (int l = 0; l < model_.count(); ++l) {
            model_.step(l, options().world_size, compute_);
        }
    }

    const cudaStream_t side_;
    CapturedGraph graph_;
};

}  // namespace

std::unique_ptr<Pattern> make_graph_all(const Settings& settings) {
    return std::make_unique<GraphedStep>(settings);
}

}  // namespace patterns
