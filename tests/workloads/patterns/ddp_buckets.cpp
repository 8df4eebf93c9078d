// SPDX-License-Identifier: Apache-2.0
// PyTorch DistributedDataParallel, 2.x: torch/csrc/distributed/c10d/reducer.cpp launches each
// bucket's all-reduce from the backward pass's hooks, ProcessGroupNCCL::allreduce runs it on the
// group's stream behind an event, and finalize_backward() only puts the current stream behind the
// end events: the CPU runs ahead into the optimizer and the next iteration.
#include "buckets.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_ddp_buckets(const Settings& settings) {
    return std::make_unique<BucketedDataParallel>(settings);
}

}  // namespace patterns
