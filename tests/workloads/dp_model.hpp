// SPDX-License-Identifier: Apache-2.0
// The network that the training programs train: its memory, its data, and the kernels of each part
// of an iteration, on whichever stream the program says. No communication, no loop.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "dp_options.hpp"

namespace dp {

inline constexpr int kInputs = 16;
inline constexpr int kOutputs = 4;
inline constexpr int kDataBatches = 8;

// Uniform in [-1, 1), a function of the seed alone.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    float next();

  private:
    std::uint64_t state_;
};

struct Layer {
    int in = 0;
    int out = 0;
    int bucket = 0;
    float* weights = nullptr;  // then the bias
    float* gradient = nullptr;
    float* output = nullptr;
    float* output_gradient = nullptr;
    std::size_t size() const { return static_cast<std::size_t>(out) * in + out; }
    float* bias() const { return weights + static_cast<std::size_t>(out) * in; }
    float* bias_gradient() const { return gradient + static_cast<std::size_t>(out) * in; }
};

struct Bucket {
    float* begin = nullptr;
    std::size_t size = 0;  // floats, padding included
    int last_layer = 0;    // whose backward pass completes it
};

// Device time without a purpose of its own, in kernels of a given length.
class Burner {
  public:
    // The current device's.
    explicit Burner(const Options& options);
    // How many rounds take a millisecond: the fastest of a few runs on rank 0, told to all by
    // `from_rank_zero`. Nothing where no time is asked for, or the options say it.
    void calibrate(const std::function<double(double)>& from_rank_zero, cudaStream_t stream);
    void burn(double ms, cudaStream_t stream) const;
    double per_ms() const { return per_ms_; }  // rounds

  private:
    const Options options_;
    float* sink_ = nullptr;
    int blocks_ = 0;
    double per_ms_ = 0.0;
};

// Inputs and targets, pinned: kDataBatches batches, which repeat.
class Data {
  public:
    // Every `part` has data of its own; targets are a fixed function of the inputs.
    Data(const Options& options, int part);
    // Copies batch `number` to the device.
    void load(int number, float* input, float* target, cudaStream_t stream) const;

  private:
    std::size_t inputs_;
    std::size_t outputs_;
    float* host_ = nullptr;
};

// One replica on the current device. Its members may be pointed elsewhere.
struct Model {
    Model(const Options& options, int data_part);

    // Batch `number`; an iteration's own number where it takes one batch.
    void load(int number, cudaStream_t stream) const;
    // With its part of the extra device time, as the backward pass, which is twice as long.
    void forward(int layer, cudaStream_t stream) const;
    // To loss_sum.
    void loss(cudaStream_t stream) const;
    void backward_weights(int layer, cudaStream_t stream) const;
    // Nothing for the first layer.
    void backward_data(int layer, cudaStream_t stream) const;
    // Both, and the extra device time.
    void backward(int layer, cudaStream_t stream) const;
    // By a gradient that is a sum over `ranks`.
    void step(int layer, int ranks, cudaStream_t stream) const;
    // The mean of a sum over `ranks`, for iteration `number`.
    void record_loss(int number, int ranks, cudaStream_t stream) const;

    int count() const { return static_cast<int>(layers.size()); }
    double forward_ms() const;  // of extra device time, a layer
    double backward_ms() const;

    const Options options;
    Burner burner;
    Data data;
    std::vector<Layer> layers;
    std::vector<Bucket> buckets;  // in the order of the backward pass: the last layers first
    float* gradients = nullptr;   // of all buckets, one after the other
    std::size_t gradient_count = 0;
    float* loss_sum = nullptr;  // the last float of the last bucket
    float* sample_loss = nullptr;
    float* input = nullptr;
    float* target = nullptr;
    float* history = nullptr;  // losses by iteration, warm-up included
};

// Over the layers' weights; waits for the device.
std::uint64_t hash_parameters(const std::vector<Layer>& layers);
// Goes on from the hash of what came before, or from kEmptyHash.
inline constexpr std::uint64_t kEmptyHash = 0xcbf29ce484222325;
std::uint64_t hash_floats(std::uint64_t before, const float* device, std::size_t count);

// Initial weights of a layer, biases zero: the random numbers follow each other from layer to
// layer.
std::vector<float> initial_weights(int in, int out, Random& random);

}  // namespace dp
