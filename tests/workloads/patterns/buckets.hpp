// SPDX-License-Identifier: Apache-2.0
// PyTorch's DistributedDataParallel (2.x, torch/csrc/distributed/c10d/reducer.cpp): each
// parameter's gradient is copied into its bucket as soon as it is there, on the current stream; a
// full bucket's asynchronous all-reduce starts at once; when the backward pass is over, each
// bucket's work is waited for by the stream, and the sums are copied back. Several patterns use it
// as such.
#pragma once

#include <vector>

#include "data_parallel.hpp"

namespace patterns {

class BucketedDataParallel : public DataParallel {
  public:
    explicit BucketedDataParallel(const Settings& settings,
                                  ProcessGroup::Blocking blocking = ProcessGroup::Blocking::kYes);
    void iteration(int number) override;

  protected:
    // The hook of a layer whose gradient is there: into its bucket, and off with a full one.
    void gradient_ready(int layer);
    void launch_bucket(int bucket);
    // Behind all buckets, sums back in the layers' own gradients.
    void finalize_backward();
    void backward();  // of all layers, with their hooks

    std::vector<float*> in_bucket_;  // where a layer's gradient lies in its bucket
    std::vector<Work> works_;        // of the buckets under way, in order
};

}  // namespace patterns
