// SPDX-License-Identifier: Apache-2.0
// torch.distributed.all_reduce(gradient) of one tensor after the other when the backward pass is
// over, as hand-written training loops do. Since PyTorch 2.8 ProcessGroupNCCL submits a collective
// with async_op=False to the current stream itself (ProcessGroupNCCL.cpp, `asyncOp`): neither a
// stream nor an event lies between it and compute.
#include "data_parallel.hpp"

namespace patterns {
namespace {

class Synchronous final : public DataParallel {
  public:
    using DataParallel::DataParallel;

    void iteration(int number) override {
        forward(number);
        for (int l = model_.count() - 1; l >= 0; --l) {
            model_.backward(l, compute_);
        }
        for (const dp::Bucket& bucket : model_.buckets) {
            group_.all_reduce_now(bucket.begin, bucket.size, compute_);
        }
        step(number);
    }
};

}  // namespace

std::unique_ptr<Pattern> make_ddp_sync(const Settings& settings) {
    return std::make_unique<Synchronous>(settings);
}

}  // namespace patterns
