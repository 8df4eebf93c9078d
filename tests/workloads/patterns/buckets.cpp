// SPDX-License-Identifier: Apache-2.0
// DistributedDataParallel's buckets; see buckets.hpp.
#include "buckets.hpp"

namespace patterns {

BucketedDataParallel::BucketedDataParallel(const Settings& settings,
                                           ProcessGroup::Blocking blocking)
    : DataParallel(settings, blocking) {
    for (dp::Layer& layer : model_.layers) {
        in_bucket_.push_back(layer.gradient);
        layer.gradient = dp::device_array<float>(layer.size());
    }
}

void BucketedDataParallel::gradient_ready(int l) {
    const dp::Layer& layer = model_.layers[l];
    dp::launch(dp::Copy{layer.gradient, in_bucket_[l], static_cast<int>(layer.size())}, compute_);
    if (model_.buckets[layer.bucket].last_layer == l) {
        launch_bucket(layer.bucket);
    }
}

void BucketedDataParallel::launch_bucket(int number) {
    const dp::Bucket& bucket = model_.buckets[number];
    works_.push_back(group_.all_reduce(bucket.begin, bucket.size, compute_));
}

void BucketedDataParallel::finalize_backward() {
    for (const Work& work : works_) {
        work.wait(compute_);
    }
    works_.clear();
    for (int l = model_.count() - 1; l >= 0; --l) {
        const dp::Layer& layer = model_.layers[l];
        dp::launch(dp::Copy{in_bucket_[l], layer.gradient, static_cast<int>(layer.size())},
                   compute_);
    }
}

void BucketedDataParallel::backward() {
    for (int l = model_.count() - 1; l >= 0; --l) {
        model_.backward(l, compute_);
        gradient_ready(l);
    }
}

void BucketedDataParallel::iteration(int number) {
    forward(number);
    backward();
    finalize_backward();
    step(number);
}

}  // namespace patterns
