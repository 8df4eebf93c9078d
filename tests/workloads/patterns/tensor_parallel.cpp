// SPDX-License-Identifier: Apache-2.0
// Megatron-LM's tensor parallelism (megatron/core/tensor_parallel/layers.py): a block is a linear
// layer split by columns and one split by rows. Forward, the partial sums of the second are
// all-reduced at once (reduce_from_tensor_model_parallel_region). Backward, the gradient of the
// block's input is all-reduced asynchronously while its weights' gradient is computed
// (LinearWithGradAccumulationAndAsyncCommunication, allreduce_dgrad). So an iteration has two short
// windows a block, none of them at its end. All ranks have the same data; stem and head are whole.
#include <algorithm>

#include "../dp_loop.hpp"
#include "pattern.hpp"
#include "process_group.hpp"

namespace patterns {
namespace {

// A linear layer, or this rank's part of one.
struct Linear {
    int in = 0;
    int out = 0;
    float* weights = nullptr;
    float* bias = nullptr;
    float* gradient = nullptr;
    float* bias_gradient = nullptr;
    std::size_t size() const { return static_cast<std::size_t>(in) * out; }
};

Linear on_device(int in, int out, const std::vector<float>& weights) {
    Linear made{in, out};
    made.weights = dp::device_array<float>(made.size());
    made.bias = dp::device_array<float>(out);
    made.gradient = dp::device_array<float>(made.size());
    made.bias_gradient = dp::device_array<float>(out);
    dp::check(cudaMemcpy(made.weights, weights.data(), made.size() * sizeof(float),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy");
    return made;
}

struct Block {
    Linear columns;          // hidden to a part of hidden
    Linear rows;             // and back; its bias comes after the sum, once
    float* inner = nullptr;  // between the two
    float* inner_gradient = nullptr;
    float* output = nullptr;          // summed over the ranks, padded
    float* input_gradient = nullptr;  // likewise
};

class TensorParallel final : public Pattern {
  public:
    explicit TensorParallel(const Settings& settings)
        : options_(settings.options),
          compute_(begin(options_)),
          group_(options_),
          burner_(options_),
          data_(options_, 0) {
        burner_.calibrate([this](double value) { return group_.from_rank_zero(value); }, compute_);
        build();
    }

    void iteration(int number) override;
    cudaStream_t compute() const override { return compute_; }
    const float* history() const override { return history_; }
    void barrier() override { group_.barrier(); }
    std::uint64_t parameters_hash() override;
    std::uint64_t communicated_bytes() const override {
        return 2 * blocks_.size() * message_ * sizeof(float);
    }
    double burn_per_ms() const override { return burner_.per_ms(); }

  private:
    static cudaStream_t begin(const dp::Options& options);
    void build();
    void forward(const Linear& linear, const float* x, const float* bias, float* y, bool rectify);
    void backward_weights(const Linear& linear, const float* x, const float* dy);
    void backward_data(const Linear& linear, const float* x, const float* dy, float* dx);
    std::vector<Linear> all() const;

    const dp::Options options_;
    const cudaStream_t compute_;
    ProcessGroup group_;
    dp::Burner burner_;
    const dp::Data data_;
    Linear stem_;
    std::vector<Block> blocks_;
    Linear head_;
    std::size_t message_ = 0;  // floats of an all-reduce
    float* no_bias_ = nullptr;
    float* input_ = nullptr;
    float* target_ = nullptr;
    float* stem_output_ = nullptr;
    float* prediction_ = nullptr;
    float* prediction_gradient_ = nullptr;
    float* top_gradient_ = nullptr;  // of the last block's output
    float* sample_loss_ = nullptr;
    float* loss_ = nullptr;
    float* history_ = nullptr;
};

cudaStream_t TensorParallel::begin(const dp::Options& options) {
    if (options.hidden % options.world_size != 0) {
        refuse("--hidden " + std::to_string(options.hidden) + "; allowed: multiples of the " +
               std::to_string(options.world_size) + " ranks");
    }
    dp::select_device(options);
    return dp::new_stream();
}

void TensorParallel::build() {
    const int hidden = options_.hidden;
    const int part = hidden / options_.world_size;
    const int first = part * options_.rank;
    const auto batch = static_cast<std::size_t>(options_.batch);
    const auto padded =
        static_cast<std::size_t>(options_.comm_mb * 1e6 / sizeof(float) / (2.0 * options_.layers));
    message_ = std::max(batch * hidden, padded);
    // Every rank draws the whole and keeps its part.
    dp::Random random(options_.seed);
    stem_ = on_device(dp::kInputs, hidden, dp::initial_weights(dp::kInputs, hidden, random));
    for (int i = 0; i < options_.layers; ++i) {
        const std::vector<float> up = dp::initial_weights(hidden, hidden, random);
        const std::vector<float> down = dp::initial_weights(hidden, hidden, random);
        std::vector<float> rows;
        for (int o = 0; o < hidden; ++o) {
            const auto begin = down.begin() + static_cast<std::ptrdiff_t>(o) * hidden + first;
            rows.insert(rows.end(), begin, begin + part);
        }
        const auto begin = up.begin() + static_cast<std::ptrdiff_t>(first) * hidden;
        Block block;
        block.columns = on_device(hidden, part, {begin, begin + std::ptrdiff_t{part} * hidden});
        block.rows = on_device(part, hidden, rows);
        block.inner = dp::device_array<float>(batch * part);
        block.inner_gradient = dp::device_array<float>(batch * part);
        block.output = dp::device_array<float>(message_);
        block.input_gradient = dp::device_array<float>(message_);
        blocks_.push_back(block);
    }
    head_ = on_device(hidden, dp::kOutputs, dp::initial_weights(hidden, dp::kOutputs, random));
    no_bias_ = dp::device_array<float>(hidden);
    input_ = dp::device_array<float>(batch * dp::kInputs);
    target_ = dp::device_array<float>(batch * dp::kOutputs);
    stem_output_ = dp::device_array<float>(batch * hidden);
    prediction_ = dp::device_array<float>(batch * dp::kOutputs);
    prediction_gradient_ = dp::device_array<float>(batch * dp::kOutputs);
    top_gradient_ = dp::device_array<float>(batch * hidden);
    sample_loss_ = dp::device_array<float>(batch);
    loss_ = dp::device_array<float>(1);
    history_ =
        dp::device_array<float>(static_cast<std::size_t>(options_.warmup) + options_.iterations);
}

void TensorParallel::forward(const Linear& linear, const float* x, const float* bias, float* y,
                             bool rectify) {
    dp::launch(dp::Forward{x, linear.weights, bias, y, options_.batch, linear.in, linear.out,
                           rectify ? 1 : 0},
               compute_);
}

void TensorParallel::backward_weights(const Linear& linear, const float* x, const float* dy) {
    dp::launch(dp::BackwardWeights{x, dy, linear.gradient, linear.bias_gradient, options_.batch,
                                   linear.in, linear.out},
               compute_);
}

void TensorParallel::backward_data(const Linear& linear, const float* x, const float* dy,
                                   float* dx) {
    dp::launch(dp::BackwardData{x, linear.weights, dy, dx, options_.batch, linear.in, linear.out},
               compute_);
}

std::vector<Linear> TensorParallel::all() const {
    std::vector<Linear> linears{stem_};
    for (const Block& block : blocks_) {
        linears.push_back(block.columns);
        linears.push_back(block.rows);
    }
    linears.push_back(head_);
    return linears;
}

void TensorParallel::iteration(int number) {
    const double forward_ms = options_.compute_ms / 3.0 / options_.layers;
    data_.load(number, input_, target_, compute_);
    forward(stem_, input_, stem_.bias, stem_output_, true);
    const float* x = stem_output_;
    for (const Block& block : blocks_) {
        forward(block.columns, x, block.columns.bias, block.inner, true);
        forward(block.rows, block.inner, no_bias_, block.output, false);
        burner_.burn(forward_ms, compute_);
        group_.all_reduce_now(block.output, message_, compute_);
        dp::launch(dp::Rectify{block.output, block.rows.bias, options_.batch, options_.hidden},
                   compute_);
        x = block.output;
    }
    forward(head_, x, head_.bias, prediction_, false);
    dp::launch(dp::Loss{prediction_, target_, prediction_gradient_, sample_loss_, options_.batch,
                        dp::kOutputs},
               compute_);
    dp::launch(dp::LossSum{sample_loss_, loss_, options_.batch}, compute_);

    backward_weights(head_, x, prediction_gradient_);
    backward_data(head_, x, prediction_gradient_, top_gradient_);
    const float* dy = top_gradient_;
    for (std::size_t i = blocks_.size(); i-- > 0;) {
        const Block& block = blocks_[i];
        x = i > 0 ? blocks_[i - 1].output : stem_output_;
        backward_data(block.rows, block.inner, dy, block.inner_gradient);
        backward_weights(block.rows, block.inner, dy);
        burner_.burn(forward_ms, compute_);
        backward_data(block.columns, x, block.inner_gradient, block.input_gradient);
        const Work reduced = group_.all_reduce(block.input_gradient, message_, compute_);
        backward_weights(block.columns, x, block.inner_gradient);
        burner_.burn(forward_ms, compute_);
        reduced.wait(compute_);
        dy = block.input_gradient;
    }
    backward_weights(stem_, input_, dy);
    const auto rate = static_cast<float>(options_.learning_rate);
    for (const Linear& linear : all()) {
        dp::launch(dp::Step{linear.weights, linear.gradient, rate, static_cast<int>(linear.size())},
                   compute_);
        dp::launch(dp::Step{linear.bias, linear.bias_gradient, rate, linear.out}, compute_);
    }
    dp::launch(dp::RecordLoss{loss_, history_, number, 1}, compute_);
}

std::uint64_t TensorParallel::parameters_hash() {
    std::uint64_t hash = dp::kEmptyHash;
    for (const Linear& linear : all()) {
        hash = dp::hash_floats(hash, linear.weights, linear.size());
        hash = dp::hash_floats(hash, linear.bias, linear.out);
    }
    return hash;
}

}  // namespace

std::unique_ptr<Pattern> make_tensor_parallel(const Settings& settings) {
    return std::make_unique<TensorParallel>(settings);
}

}  // namespace patterns
