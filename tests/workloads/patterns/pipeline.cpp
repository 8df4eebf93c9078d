// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's pipeline without interleaving (megatron/core/pipeline_parallel/schedules.py,
// forward_backward_pipelining_without_interleaving): each rank is a stage with some of the layers;
// after its warm-up forwards a stage does one forward and one backward by turns. Sends and receives
// of a moment go out together (p2p_communication.py, batch_isend_irecv), the stream waits for them,
// and with batch_p2p_sync, the default, so does the CPU: torch.cuda.synchronize(). A training loop
// over all stages then has one small all-reduce (the gradient's norm), which here carries the loss.
#include <algorithm>

#include "../dp_loop.hpp"
#include "pattern.hpp"
#include "process_group.hpp"

namespace patterns {
namespace {

struct MicroBatch {
    float* input = nullptr;  // of the first stage: data; of others: received, padded
    float* target = nullptr;
    std::vector<float*> outputs;  // of the stage's layers; the last one is sent, padded
};

class Pipeline final : public Pattern {
  public:
    explicit Pipeline(const Settings& settings);

    void iteration(int number) override;
    cudaStream_t compute() const override { return compute_; }
    const float* history() const override { return model_.history; }
    void barrier() override { group_.barrier(); }
    std::uint64_t parameters_hash() override {
        return dp::hash_parameters({model_.layers.begin() + first_, model_.layers.begin() + end_});
    }
    std::uint64_t communicated_bytes() const override {
        const std::uint64_t neighbours = (is_first() ? 0 : 1) + (is_last() ? 0 : 1);
        return neighbours * micro_batches_ * message_ * sizeof(float);
    }
    double burn_per_ms() const override { return model_.burner.per_ms(); }

  private:
    static cudaStream_t begin(const dp::Options& options);
    bool is_first() const { return options_.rank == 0; }
    bool is_last() const { return options_.rank + 1 == options_.world_size; }
    void forward(int number, int micro);
    void backward(int micro);
    // Any may be null. Forward goes to the next stage, backward to the previous one.
    void communicate(float* to_next, float* from_next, float* to_previous, float* from_previous);
    float* output(int micro) { return is_last() ? nullptr : micros_[micro].outputs.back(); }
    float* input(int micro) { return is_first() ? nullptr : micros_[micro].input; }
    float* output_gradient() { return is_last() ? nullptr : output_gradients_.back(); }
    float* input_gradient() { return is_first() ? nullptr : input_gradient_; }

    const dp::Options options_;
    const int micro_batches_;
    const cudaStream_t compute_;
    ProcessGroup group_;
    dp::Model model_;  // whole, of which the stage uses its layers
    const int first_;  // of the stage's layers
    const int end_;
    std::size_t message_ = 0;  // floats
    std::vector<MicroBatch> micros_;
    std::vector<float*> output_gradients_;  // of the stage's layers
    float* input_gradient_ = nullptr;
    std::vector<float*> sums_;  // of the micro-batches' gradients
    float* loss_ = nullptr;     // their sum
};

cudaStream_t Pipeline::begin(const dp::Options& options) {
    if (options.layers < options.world_size) {
        refuse("--layers " + std::to_string(options.layers) + "; allowed: at least one a rank, " +
               std::to_string(options.world_size));
    }
    dp::select_device(options);
    return dp::new_stream();
}

Pipeline::Pipeline(const Settings& settings)
    : options_(settings.options),
      micro_batches_(settings.micro_batches),
      compute_(begin(options_)),
      group_(options_),
      model_(options_, 0),
      first_(options_.layers * options_.rank / options_.world_size),
      end_(options_.layers * (options_.rank + 1) / options_.world_size) {
    model_.burner.calibrate([this](double value) { return group_.from_rank_zero(value); },
                            compute_);
    const auto batch = static_cast<std::size_t>(options_.batch);
    const auto padded =
        static_cast<std::size_t>(options_.comm_mb * 1e6 / sizeof(float) / (2.0 * micro_batches_));
    message_ = std::max(batch * options_.hidden, padded);
    for (int i = 0; i < micro_batches_; ++i) {
        MicroBatch micro;
        micro.input = dp::device_array<float>(is_first() ? batch * dp::kInputs : message_);
        micro.target = dp::device_array<float>(batch * dp::kOutputs);
        for (int l = first_; l < end_; ++l) {
            micro.outputs.push_back(dp::device_array<float>(message_));
        }
        micros_.push_back(micro);
    }
    for (int l = first_; l < end_; ++l) {
        output_gradients_.push_back(dp::device_array<float>(message_));
        sums_.push_back(dp::device_array<float>(model_.layers[l].size()));
    }
    input_gradient_ = dp::device_array<float>(message_);
    loss_ = dp::device_array<float>(1);
}

void Pipeline::communicate(float* to_next, float* from_next, float* to_previous,
                           float* from_previous) {
    std::vector<Message> messages;
    const auto add = [&](float* data, int peer, bool send) {
        if (data != nullptr) {
            messages.push_back({data, message_, peer, send});
        }
    };
    add(to_previous, options_.rank - 1, true);
    add(from_previous, options_.rank - 1, false);
    add(to_next, options_.rank + 1, true);
    add(from_next, options_.rank + 1, false);
    if (!messages.empty()) {
        group_.exchange(messages, compute_).wait(compute_);
        dp::check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    }
}

void Pipeline::forward(int number, int micro) {
    const MicroBatch& at = micros_[micro];
    if (is_first() || is_last()) {
        // The last stage reads the targets, the first one the inputs.
        model_.load(number * micro_batches_ + micro, compute_);
    }
    const auto inputs = options_.batch * dp::kInputs;
    const auto outputs = options_.batch * dp::kOutputs;
    if (is_first()) {
        dp::launch(dp::Copy{model_.input, at.input, inputs}, compute_);
    }
    const float* x = at.input;
    for (int l = first_; l < end_; ++l) {
        const dp::Layer& layer = model_.layers[l];
        float* const y = at.outputs[l - first_];
        dp::launch(dp::Forward{x, layer.weights, layer.bias(), y, options_.batch, layer.in,
                               layer.out, l + 1 < model_.count() ? 1 : 0},
                   compute_);
        model_.burner.burn(model_.forward_ms() * options_.world_size / micro_batches_, compute_);
        x = y;
    }
    if (is_last()) {
        dp::launch(dp::Copy{model_.target, at.target, outputs}, compute_);
        dp::launch(dp::Loss{x, at.target, output_gradients_.back(), model_.sample_loss,
                            options_.batch, dp::kOutputs},
                   compute_);
        dp::launch(dp::LossSum{model_.sample_loss, model_.loss_sum, options_.batch}, compute_);
        dp::launch(dp::Add{model_.loss_sum, loss_, 1}, compute_);
    }
}

void Pipeline::backward(int micro) {
    const MicroBatch& at = micros_[micro];
    for (int l = end_ - 1; l >= first_; --l) {
        const dp::Layer& layer = model_.layers[l];
        const float* const x = l > first_ ? at.outputs[l - first_ - 1] : at.input;
        const float* const dy = output_gradients_[l - first_];
        dp::launch(dp::BackwardWeights{x, dy, layer.gradient, layer.bias_gradient(), options_.batch,
                                       layer.in, layer.out},
                   compute_);
        if (l > 0) {
            float* const dx = l > first_ ? output_gradients_[l - first_ - 1] : input_gradient_;
            dp::launch(
                dp::BackwardData{x, layer.weights, dy, dx, options_.batch, layer.in, layer.out},
                compute_);
        }
        model_.burner.burn(model_.backward_ms() * options_.world_size / micro_batches_, compute_);
        dp::launch(dp::Add{layer.gradient, sums_[l - first_], static_cast<int>(layer.size())},
                   compute_);
    }
}

void Pipeline::iteration(int number) {
    for (int l = first_; l < end_; ++l) {
        dp::check(cudaMemsetAsync(sums_[l - first_], 0, model_.layers[l].size() * sizeof(float),
                                  compute_),
                  "cudaMemsetAsync");
    }
    dp::check(cudaMemsetAsync(loss_, 0, sizeof(float), compute_), "cudaMemsetAsync");
    const int warmup = std::min(options_.world_size - options_.rank - 1, micro_batches_);
    int forwards = 0;
    int backwards = 0;
    for (; forwards < warmup; ++forwards) {
        communicate(nullptr, nullptr, nullptr, input(forwards));
        forward(number, forwards);
        communicate(output(forwards), nullptr, nullptr, nullptr);
    }
    if (forwards < micro_batches_) {
        communicate(nullptr, nullptr, nullptr, input(forwards));
    }
    for (; forwards < micro_batches_; ++forwards, ++backwards) {
        forward(number, forwards);
        communicate(output(forwards), output_gradient(), nullptr, nullptr);
        backward(backwards);
        const bool last = forwards + 1 == micro_batches_;
        communicate(nullptr, nullptr, input_gradient(), last ? nullptr : input(forwards + 1));
    }
    for (; backwards < micro_batches_; ++backwards) {
        communicate(nullptr, output_gradient(), nullptr, nullptr);
        backward(backwards);
        communicate(nullptr, nullptr, input_gradient(), nullptr);
    }
    group_.all_reduce_now(loss_, 1, compute_);
    const float rate =
        static_cast<float>(options_.learning_rate) / static_cast<float>(micro_batches_);
    for (int l = first_; l < end_; ++l) {
        const dp::Layer& layer = model_.layers[l];
        dp::launch(dp::Step{layer.weights, sums_[l - first_], rate, static_cast<int>(layer.size())},
                   compute_);
    }
    dp::launch(dp::RecordLoss{loss_, model_.history, number, micro_batches_}, compute_);
}

}  // namespace

std::unique_ptr<Pattern> make_pipeline(const Settings& settings) {
    return std::make_unique<Pipeline>(settings);
}

}  // namespace patterns
