// SPDX-License-Identifier: Apache-2.0
// PyTorch's fully_shard (FSDP2, 2.6 and later; torch/distributed/fsdp/_fully_shard,
// _fsdp_collectives .py and _fsdp_param_group.py), a group of parameters a layer, resharded after
// forward. Streams of high priority beside the current one: copy-in, all-gather, reduce-scatter.
// The next layer's all-gather runs beside this layer's compute, forward because the CPU runs ahead,
// backward because it is prefetched. Copy-out is on the current stream behind an event; a
// reduce-scatter starts from a copy-in on the current stream; the optimizer waits for the events of
// all of them. Collectives are synchronous ones on these streams themselves (PyTorch 2.8 and
// later).
#include <algorithm>

#include "data_parallel.hpp"

namespace patterns {
namespace {

struct Shards {
    std::size_t part = 0;        // floats a rank, padded
    float* weights = nullptr;    // this rank's part, which the optimizer keeps
    float* gradient = nullptr;   // likewise
    float* gathered = nullptr;   // all parts, from the all-gather
    float* scattered = nullptr;  // all parts, for the reduce-scatter
    float* received = nullptr;   // this rank's part, from it
    cudaEvent_t gather_done = nullptr;
    cudaEvent_t copied_out = nullptr;
    cudaEvent_t reduce_done = nullptr;
};

cudaStream_t urgent_stream() {
    int least = 0;
    int greatest = 0;
    dp::check(cudaDeviceGetStreamPriorityRange(&least, &greatest),
              "cudaDeviceGetStreamPriorityRange");
    cudaStream_t stream = nullptr;
    dp::check(cudaStreamCreateWithPriority(&stream, cudaStreamNonBlocking, greatest),
              "cudaStreamCreateWithPriority");
    return stream;
}

class FullySharded final : public DataParallel {
  public:
    explicit FullySharded(const Settings& settings);
    void iteration(int number) override;
    std::uint64_t parameters_hash() override;
    std::uint64_t communicated_bytes() const override;

  private:
    void unshard(int layer);
    void wait_for_unshard(int layer);
    void post_backward(int layer);
    void step_shards(int number);

    const cudaStream_t copy_in_;
    const cudaStream_t gather_;
    const cudaStream_t reduce_;
    const cudaEvent_t order_;  // for moments that nothing refers to later
    std::vector<Shards> shards_;
    int last_gathered_ = -1;  // whose buffer the next all-gather would take
    int last_reduced_ = -1;
};

FullySharded::FullySharded(const Settings& settings)
    : DataParallel(settings),
      copy_in_(urgent_stream()),
      gather_(urgent_stream()),
      reduce_(urgent_stream()),
      order_(dp::new_event()) {
    const auto ranks = static_cast<std::size_t>(options().world_size);
    const auto padded = static_cast<std::size_t>(options().comm_mb * 1e6 / sizeof(float) /
                                                 static_cast<double>(model_.count()));
    for (dp::Layer& layer : model_.layers) {
        Shards made;
        made.part = (std::max(layer.size(), padded) + ranks - 1) / ranks;
        made.weights = dp::device_array<float>(made.part);
        made.gradient = dp::device_array<float>(made.part);
        made.gathered = dp::device_array<float>(made.part * ranks);
        made.scattered = dp::device_array<float>(made.part * ranks);
        made.received = dp::device_array<float>(made.part);
        made.gather_done = dp::new_event();
        made.copied_out = dp::new_event();
        made.reduce_done = dp::new_event();
        float* const whole = dp::device_array<float>(made.part * ranks);
        dp::check(cudaMemcpy(whole, layer.weights, layer.size() * sizeof(float),
                             cudaMemcpyDeviceToDevice),
                  "cudaMemcpy");
        dp::check(cudaMemcpy(made.weights, whole + made.part * options().rank,
                             made.part * sizeof(float), cudaMemcpyDeviceToDevice),
                  "cudaMemcpy");
        dp::check(cudaFree(whole), "cudaFree");
        layer.gradient = dp::device_array<float>(layer.size());
        shards_.push_back(made);
    }
}

void FullySharded::unshard(int l) {
    const Shards& shards = shards_[l];
    if (last_gathered_ >= 0) {
        const cudaEvent_t copied_out = shards_[last_gathered_].copied_out;
        dp::check(cudaStreamWaitEvent(copy_in_, copied_out, 0), "cudaStreamWaitEvent");
        dp::check(cudaStreamWaitEvent(gather_, copied_out, 0), "cudaStreamWaitEvent");
    }
    float* const own = shards.gathered + shards.part * options().rank;
    dp::launch(dp::Copy{shards.weights, own, static_cast<int>(shards.part)}, copy_in_);
    dp::order(copy_in_, order_, gather_);
    group_.all_gather_now(own, shards.gathered, shards.part, gather_);
    dp::check(cudaEventRecord(shards.gather_done, gather_), "cudaEventRecord");
}

void FullySharded::wait_for_unshard(int l) {
    const Shards& shards = shards_[l];
    const dp::Layer& layer = model_.layers[l];
    dp::check(cudaStreamWaitEvent(compute_, shards.gather_done, 0), "cudaStreamWaitEvent");
    dp::launch(dp::Copy{shards.gathered, layer.weights, static_cast<int>(layer.size())}, compute_);
    dp::check(cudaEventRecord(shards.copied_out, compute_), "cudaEventRecord");
    last_gathered_ = l;
}

void FullySharded::post_backward(int l) {
    const Shards& shards = shards_[l];
    const dp::Layer& layer = model_.layers[l];
    if (last_reduced_ >= 0) {
        dp::check(cudaStreamWaitEvent(compute_, shards_[last_reduced_].reduce_done, 0),
                  "cudaStreamWaitEvent");
    }
    dp::launch(dp::Copy{layer.gradient, shards.scattered, static_cast<int>(layer.size())},
               compute_);
    dp::order(compute_, order_, reduce_);
    group_.reduce_scatter_now(shards.scattered, shards.received, shards.part, reduce_);
    dp::launch(dp::Copy{shards.received, shards.gradient, static_cast<int>(shards.part)}, reduce_);
    dp::check(cudaEventRecord(shards.reduce_done, reduce_), "cudaEventRecord");
    last_reduced_ = l;
}

void FullySharded::step_shards(int number) {
    for (const Shards& shards : shards_) {
        dp::check(cudaStreamWaitEvent(compute_, shards.reduce_done, 0), "cudaStreamWaitEvent");
    }
    const float rate =
        static_cast<float>(options().learning_rate) / static_cast<float>(options().world_size);
    for (const Shards& shards : shards_) {
        dp::launch(dp::Step{shards.weights, shards.gradient, rate, static_cast<int>(shards.part)},
                   compute_);
    }
    group_.all_reduce_now(model_.loss_sum, 1, compute_);
    model_.record_loss(number, options().world_size, compute_);
}

void FullySharded::iteration(int number) {
    // The root's pre-forward: all-gathers see what the optimizer has done.
    dp::order(compute_, order_, copy_in_);
    dp::check(cudaStreamWaitEvent(gather_, order_, 0), "cudaStreamWaitEvent");
    model_.load(number, compute_);
    for (int l = 0; l < model_.count(); ++l) {
        unshard(l);
        wait_for_unshard(l);
        model_.forward(l, compute_);
    }
    model_.loss(compute_);
    last_reduced_ = -1;
    for (int l = model_.count() - 1; l >= 0; --l) {
        if (l + 1 == model_.count()) {
            unshard(l);
        }
        wait_for_unshard(l);
        if (l > 0) {
            unshard(l - 1);
        }
        model_.backward(l, compute_);
        post_backward(l);
    }
    step_shards(number);
}

std::uint64_t FullySharded::parameters_hash() {
    dp::order(compute_, order_, copy_in_);
    for (int l = 0; l < model_.count(); ++l) {
        unshard(l);
        wait_for_unshard(l);
    }
    dp::check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
    return dp::hash_parameters(model_.layers);
}

std::uint64_t FullySharded::communicated_bytes() const {
    std::uint64_t bytes = 0;
    for (const Shards& shards : shards_) {
        bytes += 3 * shards.part * options().world_size * sizeof(float);
    }
    return bytes;
}

}  // namespace

std::unique_ptr<Pattern> make_fsdp(const Settings& settings) {
    return std::make_unique<FullySharded>(settings);
}

}  // namespace patterns
