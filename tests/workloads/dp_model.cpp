// SPDX-License-Identifier: Apache-2.0
// The network; see dp_model.hpp. No communication, no loop.
#include "dp_model.hpp"

#include <algorithm>
#include <cmath>

#include "dp_device.hpp"

namespace dp {

float Random::next() {
    state_ += 0x9e3779b97f4a7c15;
    std::uint64_t z = state_;
    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
    z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
    z ^= z >> 31;
    return static_cast<float>(z >> 40) / static_cast<float>(1 << 23) - 1.0F;
}

// ---- extra device time ----

Burner::Burner(const Options& options)
    : options_(options), sink_(device_array<float>(1)), per_ms_(options.burn_per_ms) {
    int device = 0;
    int processors = 0;
    check(cudaGetDevice(&device), "cudaGetDevice");
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, device),
          "cudaDeviceGetAttribute");
    blocks_ = processors * 4;  // half of each multiprocessor's threads: other kernels find room
}

void Burner::calibrate(const std::function<double(double)>& from_rank_zero, cudaStream_t stream) {
    if (options_.compute_ms <= 0.0 || per_ms_ > 0.0) {
        return;
    }
    constexpr int kRuns = 5;
    constexpr float kLongEnoughMs = 5.0F;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    const auto measure = [&](unsigned long long rounds) {
        check(cudaEventRecord(begin, stream), "cudaEventRecord");
        launch_burn(blocks_, Burn{sink_, rounds}, stream);
        check(cudaEventRecord(end, stream), "cudaEventRecord");
        check(cudaEventSynchronize(end), "cudaEventSynchronize");
        float ms = 0.0F;
        check(cudaEventElapsedTime(&ms, begin, end), "cudaEventElapsedTime");
        return ms;
    };
    double per_ms = 0.0;
    if (options_.rank == 0) {
        unsigned long long rounds = 1024;
        while (measure(rounds) < kLongEnoughMs) {
            rounds *= 2;
        }
        for (int run = 0; run < kRuns; ++run) {
            per_ms = std::max(per_ms, static_cast<double>(rounds) / measure(rounds));
        }
    }
    per_ms_ = from_rank_zero(per_ms);
    check(cudaEventDestroy(begin), "cudaEventDestroy");
    check(cudaEventDestroy(end), "cudaEventDestroy");
}

void Burner::burn(double ms, cudaStream_t stream) const {
    const int kernels = static_cast<int>(ms / options_.burn_kernel_ms) + 1;
    const auto rounds = static_cast<unsigned long long>(ms / kernels * per_ms_);
    for (int i = 0; i < kernels && rounds > 0; ++i) {
        launch_burn(blocks_, Burn{sink_, rounds}, stream);
    }
}

// ---- data ----

Data::Data(const Options& options, int part)
    : inputs_(static_cast<std::size_t>(options.batch) * kInputs),
      outputs_(static_cast<std::size_t>(options.batch) * kOutputs),
      host_(host_array<float>(kDataBatches * (inputs_ + outputs_))) {
    Random teacher(options.seed + 1);
    std::vector<float> weights(static_cast<std::size_t>(kInputs) * kOutputs);
    std::generate(weights.begin(), weights.end(), [&] { return teacher.next(); });
    Random random(options.seed + 1000 + static_cast<std::uint64_t>(part));
    for (int batch = 0; batch < kDataBatches; ++batch) {
        float* const x = host_ + batch * (inputs_ + outputs_);
        float* const y = x + inputs_;
        for (int sample = 0; sample < options.batch; ++sample) {
            for (int i = 0; i < kInputs; ++i) {
                x[sample * kInputs + i] = random.next();
            }
            for (int o = 0; o < kOutputs; ++o) {
                float sum = 0.0F;
                for (int i = 0; i < kInputs; ++i) {
                    sum += weights[o * kInputs + i] * x[sample * kInputs + i];
                }
                y[sample * kOutputs + o] = sum;
            }
        }
    }
}

void Data::load(int number, float* input, float* target, cudaStream_t stream) const {
    const float* const data = host_ + (number % kDataBatches) * (inputs_ + outputs_);
    check(cudaMemcpyAsync(input, data, inputs_ * sizeof(float), cudaMemcpyHostToDevice, stream),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(target, data + inputs_, outputs_ * sizeof(float), cudaMemcpyHostToDevice,
                          stream),
          "cudaMemcpyAsync");
}

// ---- the model ----

std::vector<float> initial_weights(int in, int out, Random& random) {
    std::vector<float> values(static_cast<std::size_t>(out) * in + out);
    // Keeps the variance of activations from layer to layer; biases start at zero.
    const float scale = std::sqrt(6.0F / static_cast<float>(in));
    std::generate(values.begin(), values.end() - out, [&] { return random.next() * scale; });
    return values;
}

Model::Model(const Options& own, int data_part) : options(own), burner(own), data(own, data_part) {
    const int number = options.layers;
    layers.resize(number);
    buckets.resize(options.buckets);
    std::vector<std::size_t> sizes(options.buckets);
    for (int at = 0; at < number; ++at) {
        Layer& layer = layers[number - 1 - at];
        layer.in = at == number - 1 ? kInputs : options.hidden;
        layer.out = at == 0 ? kOutputs : options.hidden;
        layer.bucket = at * options.buckets / number;
        sizes[layer.bucket] += layer.size();
        buckets[layer.bucket].last_layer = number - 1 - at;
    }
    sizes.back() += 1;  // the loss travels with the last bucket
    const auto padded =
        static_cast<std::size_t>(options.comm_mb * 1e6 / sizeof(float) / options.buckets);
    for (int i = 0; i < options.buckets; ++i) {
        buckets[i].size = std::max(sizes[i], padded);
        gradient_count += buckets[i].size;
    }
    gradients = device_array<float>(gradient_count);
    float* begin = gradients;
    for (Bucket& bucket : buckets) {
        bucket.begin = begin;
        begin += bucket.size;
    }
    loss_sum = begin - 1;

    std::vector<float*> free(options.buckets);
    for (int i = 0; i < options.buckets; ++i) {
        free[i] = buckets[i].begin;
    }
    Random random(options.seed);
    for (Layer& layer : layers) {
        layer.gradient = free[layer.bucket];
        free[layer.bucket] += layer.size();
        layer.weights = device_array<float>(layer.size());
        layer.output = device_array<float>(static_cast<std::size_t>(options.batch) * layer.out);
        layer.output_gradient =
            device_array<float>(static_cast<std::size_t>(options.batch) * layer.out);
        const std::vector<float> initial = initial_weights(layer.in, layer.out, random);
        check(cudaMemcpy(layer.weights, initial.data(), initial.size() * sizeof(float),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy");
    }
    sample_loss = device_array<float>(options.batch);
    input = device_array<float>(static_cast<std::size_t>(options.batch) * kInputs);
    target = device_array<float>(static_cast<std::size_t>(options.batch) * kOutputs);
    history = device_array<float>(static_cast<std::size_t>(options.warmup) + options.iterations);
}

double Model::forward_ms() const { return options.compute_ms / 3.0 / count(); }

double Model::backward_ms() const { return options.compute_ms * 2.0 / 3.0 / count(); }

void Model::load(int number, cudaStream_t stream) const {
    data.load(number, input, target, stream);
}

void Model::forward(int l, cudaStream_t stream) const {
    const Layer& layer = layers[l];
    launch(Forward{l > 0 ? layers[l - 1].output : input, layer.weights, layer.bias(), layer.output,
                   options.batch, layer.in, layer.out, l + 1 < count() ? 1 : 0},
           stream);
    burner.burn(forward_ms(), stream);
}

void Model::loss(cudaStream_t stream) const {
    const Layer& top = layers.back();
    launch(Loss{top.output, target, top.output_gradient, sample_loss, options.batch, kOutputs},
           stream);
    launch(LossSum{sample_loss, loss_sum, options.batch}, stream);
}

void Model::backward_weights(int l, cudaStream_t stream) const {
    const Layer& layer = layers[l];
    launch(
        BackwardWeights{l > 0 ? layers[l - 1].output : input, layer.output_gradient, layer.gradient,
                        layer.bias_gradient(), options.batch, layer.in, layer.out},
        stream);
}

void Model::backward_data(int l, cudaStream_t stream) const {
    if (l > 0) {
        const Layer& layer = layers[l];
        launch(BackwardData{layers[l - 1].output, layer.weights, layer.output_gradient,
                            layers[l - 1].output_gradient, options.batch, layer.in, layer.out},
               stream);
    }
}

void Model::backward(int l, cudaStream_t stream) const {
    backward_weights(l, stream);
    backward_data(l, stream);
    burner.burn(backward_ms(), stream);
}

void Model::step(int l, int ranks, cudaStream_t stream) const {
    const Layer& layer = layers[l];
    launch(Step{layer.weights, layer.gradient,
                static_cast<float>(options.learning_rate) / static_cast<float>(ranks),
                static_cast<int>(layer.size())},
           stream);
}

void Model::record_loss(int number, int ranks, cudaStream_t stream) const {
    launch(RecordLoss{loss_sum, history, number, ranks}, stream);
}

std::uint64_t hash_floats(std::uint64_t before, const float* device, std::size_t count) {
    std::vector<unsigned char> bytes(count * sizeof(float));
    check(cudaMemcpy(bytes.data(), device, bytes.size(), cudaMemcpyDeviceToHost), "cudaMemcpy");
    for (const unsigned char byte : bytes) {
        before = (before ^ byte) * 0x100000001b3;
    }
    return before;
}

std::uint64_t hash_parameters(const std::vector<Layer>& layers) {
    std::uint64_t hash = kEmptyHash;
    for (const Layer& layer : layers) {
        hash = hash_floats(hash, layer.weights, layer.size());
    }
    return hash;
}

}  // namespace dp
