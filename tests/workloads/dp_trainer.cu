// SPDX-License-Identifier: Apache-2.0
// The training loop; see dp_trainer.hpp. Knows no NCCL.
#include "dp_trainer.hpp"

#include <cuda_runtime.h>
#include <time.h>

#include <algorithm>
#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "dp_math.hpp"

#define DP_KERNEL(name, Arguments)                                                      \
    extern "C" __global__ void name(Arguments arguments) {                              \
        const int size = dp::count(arguments);                                          \
        for (int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x); i < size; \
             i += static_cast<int>(gridDim.x * blockDim.x)) {                           \
            dp::element(arguments, i);                                                  \
        }                                                                               \
    }

DP_KERNEL(dp_forward, dp::Forward)
DP_KERNEL(dp_loss, dp::Loss)
DP_KERNEL(dp_loss_sum, dp::LossSum)
DP_KERNEL(dp_backward_weights, dp::BackwardWeights)
DP_KERNEL(dp_backward_data, dp::BackwardData)
DP_KERNEL(dp_step, dp::Step)
DP_KERNEL(dp_record_loss, dp::RecordLoss)

extern "C" __global__ void dp_burn(dp::Burn arguments) {
    const float value = dp::burn_rounds(arguments.rounds, static_cast<float>(threadIdx.x));
    // Never true, which the compiler cannot know: keeps the arithmetic without memory traffic.
    if (value < -1.0F) {
        *arguments.sink = value;
    }
}

namespace dp {

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        std::fprintf(stderr, "%s: %s: %s (%s)\n", program_invocation_short_name, what,
                     cudaGetErrorString(error), cudaGetErrorName(error));
        std::exit(1);
    }
}

}  // namespace dp

namespace {

constexpr int kThreads = 256;
constexpr int kInputs = 16;
constexpr int kOutputs = 4;
constexpr int kDataBatches = 8;

using dp::check;

std::int64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::int64_t>(now.tv_sec) * 1'000'000'000 + now.tv_nsec;
}

void sleep_until(std::int64_t at_ns) {
    const timespec at{static_cast<time_t>(at_ns / 1'000'000'000),
                      static_cast<long>(at_ns % 1'000'000'000)};
    while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, nullptr) == EINTR) {
    }
}

// Uniform in [-1, 1), a function of the seed alone.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    float next() {
        state_ += 0x9e3779b97f4a7c15;
        std::uint64_t z = state_;
        z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9;
        z = (z ^ (z >> 27)) * 0x94d049bb133111eb;
        z ^= z >> 31;
        return static_cast<float>(z >> 40) / static_cast<float>(1 << 23) - 1.0F;
    }

  private:
    std::uint64_t state_;
};

template <typename T>
T* device_array(std::size_t count) {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(pointer, 0, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMemset");
    return static_cast<T*>(pointer);
}

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

class Trainer {
  public:
    Trainer(const dp::Options& options, dp::Communicator& communicator);
    dp::Measurements train();

  private:
    void build();
    void make_data();
    void calibrate();
    void burn(double ms);
    void iteration(int number);

    template <typename Arguments>
    void launch(void (*kernel)(Arguments), const Arguments& arguments) {
        const int blocks = std::min((dp::count(arguments) + kThreads - 1) / kThreads, 4096);
        kernel<<<blocks, kThreads, 0, compute_>>>(arguments);
        check(cudaGetLastError(), "kernel launch");
    }

    const dp::Options options_;
    dp::Communicator& communicator_;
    cudaStream_t compute_ = nullptr;
    std::vector<Layer> layers_;
    std::vector<Bucket> buckets_;
    float* gradients_ = nullptr;
    std::size_t gradient_count_ = 0;
    float* loss_sum_ = nullptr;  // in the last bucket
    float* sample_loss_ = nullptr;
    float* history_ = nullptr;
    float* input_ = nullptr;
    float* target_ = nullptr;
    float* host_data_ = nullptr;  // pinned; kDataBatches times inputs, then targets
    float* host_loss_ = nullptr;  // pinned
    float* sink_ = nullptr;
    int burn_blocks_ = 0;
    double burn_per_ms_ = 0.0;
};

Trainer::Trainer(const dp::Options& options, dp::Communicator& communicator)
    : options_(options), communicator_(communicator) {
    int devices = 0;
    check(cudaGetDeviceCount(&devices), "cudaGetDeviceCount");
    if (options_.device >= devices) {
        std::fprintf(stderr, "%s: device %d; allowed: 0 to %d\n", program_invocation_short_name,
                     options_.device, devices - 1);
        std::exit(2);
    }
    check(cudaSetDevice(options_.device), "cudaSetDevice");
    check(cudaStreamCreateWithFlags(&compute_, cudaStreamNonBlocking), "cudaStreamCreate");
    communicator_.connect();
    build();
    make_data();
    calibrate();
}

void Trainer::build() {
    const int count = options_.layers;
    layers_.resize(count);
    buckets_.resize(options_.buckets);
    std::vector<std::size_t> sizes(options_.buckets);
    // Buckets follow the backward pass: the first one holds the last layers.
    for (int at = 0; at < count; ++at) {
        Layer& layer = layers_[count - 1 - at];
        layer.in = at == count - 1 ? kInputs : options_.hidden;
        layer.out = at == 0 ? kOutputs : options_.hidden;
        layer.bucket = at * options_.buckets / count;
        sizes[layer.bucket] += layer.size();
        buckets_[layer.bucket].last_layer = count - 1 - at;
    }
    sizes.back() += 1;  // the loss travels with the last bucket
    const auto padded =
        static_cast<std::size_t>(options_.comm_mb * 1e6 / sizeof(float) / options_.buckets);
    for (int i = 0; i < options_.buckets; ++i) {
        buckets_[i].size = std::max(sizes[i], padded);
        gradient_count_ += buckets_[i].size;
    }
    gradients_ = device_array<float>(gradient_count_);
    float* begin = gradients_;
    for (Bucket& bucket : buckets_) {
        bucket.begin = begin;
        begin += bucket.size;
    }
    loss_sum_ = begin - 1;

    std::vector<float*> free(options_.buckets);
    for (int i = 0; i < options_.buckets; ++i) {
        free[i] = buckets_[i].begin;
    }
    Random random(options_.seed);
    for (Layer& layer : layers_) {
        layer.gradient = free[layer.bucket];
        free[layer.bucket] += layer.size();
        layer.weights = device_array<float>(layer.size());
        layer.output = device_array<float>(static_cast<std::size_t>(options_.batch) * layer.out);
        layer.output_gradient =
            device_array<float>(static_cast<std::size_t>(options_.batch) * layer.out);
        std::vector<float> initial(layer.size());
        // Keeps the variance of activations from layer to layer; biases start at zero.
        const float scale = std::sqrt(6.0F / static_cast<float>(layer.in));
        std::generate(initial.begin(), initial.end() - layer.out,
                      [&] { return random.next() * scale; });
        check(cudaMemcpy(layer.weights, initial.data(), initial.size() * sizeof(float),
                         cudaMemcpyHostToDevice),
              "cudaMemcpy");
    }
    sample_loss_ = device_array<float>(options_.batch);
    history_ = device_array<float>(static_cast<std::size_t>(options_.warmup) + options_.iterations);
    sink_ = device_array<float>(1);
    void* host_loss = nullptr;
    check(cudaMallocHost(&host_loss, sizeof(float)), "cudaMallocHost");
    host_loss_ = static_cast<float*>(host_loss);
}

// Every rank has data of its own; targets are a fixed function of the inputs.
void Trainer::make_data() {
    const std::size_t inputs = static_cast<std::size_t>(options_.batch) * kInputs;
    const std::size_t outputs = static_cast<std::size_t>(options_.batch) * kOutputs;
    input_ = device_array<float>(inputs);
    target_ = device_array<float>(outputs);
    void* host = nullptr;
    check(cudaMallocHost(&host, kDataBatches * (inputs + outputs) * sizeof(float)),
          "cudaMallocHost");
    host_data_ = static_cast<float*>(host);
    Random teacher(options_.seed + 1);
    std::vector<float> weights(static_cast<std::size_t>(kInputs) * kOutputs);
    std::generate(weights.begin(), weights.end(), [&] { return teacher.next(); });
    Random random(options_.seed + 1000 + static_cast<std::uint64_t>(options_.rank));
    for (int batch = 0; batch < kDataBatches; ++batch) {
        float* const x = host_data_ + batch * (inputs + outputs);
        float* const y = x + inputs;
        for (int sample = 0; sample < options_.batch; ++sample) {
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

// How many rounds of the burn kernel take a millisecond: the fastest of a few runs on rank 0, told
// to all.
void Trainer::calibrate() {
    int processors = 0;
    check(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, options_.device),
          "cudaDeviceGetAttribute");
    burn_blocks_ =
        processors * 4;  // half of each multiprocessor's threads: other kernels find room
    burn_per_ms_ = options_.burn_per_ms;
    if (options_.compute_ms <= 0.0 || burn_per_ms_ > 0.0) {
        return;
    }
    constexpr int kRuns = 5;
    constexpr float kLongEnoughMs = 5.0F;
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    check(cudaEventCreate(&begin), "cudaEventCreate");
    check(cudaEventCreate(&end), "cudaEventCreate");
    const auto measure = [&](unsigned long long rounds) {
        check(cudaEventRecord(begin, compute_), "cudaEventRecord");
        dp_burn<<<burn_blocks_, kThreads, 0, compute_>>>(dp::Burn{sink_, rounds});
        check(cudaGetLastError(), "kernel launch");
        check(cudaEventRecord(end, compute_), "cudaEventRecord");
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
    burn_per_ms_ = communicator_.from_rank_zero(per_ms);
    check(cudaEventDestroy(begin), "cudaEventDestroy");
    check(cudaEventDestroy(end), "cudaEventDestroy");
}

void Trainer::burn(double ms) {
    const int kernels = static_cast<int>(ms / options_.burn_kernel_ms) + 1;
    const auto rounds = static_cast<unsigned long long>(ms / kernels * burn_per_ms_);
    for (int i = 0; i < kernels && rounds > 0; ++i) {
        dp_burn<<<burn_blocks_, kThreads, 0, compute_>>>(dp::Burn{sink_, rounds});
        check(cudaGetLastError(), "kernel launch");
    }
}

void Trainer::iteration(int number) {
    const int batch = options_.batch;
    const std::size_t inputs = static_cast<std::size_t>(batch) * kInputs;
    const std::size_t outputs = static_cast<std::size_t>(batch) * kOutputs;
    const float* const data = host_data_ + (number % kDataBatches) * (inputs + outputs);
    check(cudaMemcpyAsync(input_, data, inputs * sizeof(float), cudaMemcpyHostToDevice, compute_),
          "cudaMemcpyAsync");
    check(cudaMemcpyAsync(target_, data + inputs, outputs * sizeof(float), cudaMemcpyHostToDevice,
                          compute_),
          "cudaMemcpyAsync");

    // A backward pass costs about twice a forward pass.
    const auto count = static_cast<int>(layers_.size());
    const double forward_ms = options_.compute_ms / 3.0 / count;
    const double backward_ms = options_.compute_ms * 2.0 / 3.0 / count;
    const float* x = input_;
    for (int l = 0; l < count; ++l) {
        const Layer& layer = layers_[l];
        launch(dp_forward, dp::Forward{x, layer.weights, layer.bias(), layer.output, batch,
                                       layer.in, layer.out, l + 1 < count ? 1 : 0});
        burn(forward_ms);
        x = layer.output;
    }
    const Layer& top = layers_.back();
    launch(dp_loss,
           dp::Loss{top.output, target_, top.output_gradient, sample_loss_, batch, kOutputs});
    launch(dp_loss_sum, dp::LossSum{sample_loss_, loss_sum_, batch});
    for (int l = count - 1; l >= 0; --l) {
        const Layer& layer = layers_[l];
        const float* const below = l > 0 ? layers_[l - 1].output : input_;
        launch(dp_backward_weights,
               dp::BackwardWeights{below, layer.output_gradient, layer.gradient,
                                   layer.bias_gradient(), batch, layer.in, layer.out});
        if (l > 0) {
            launch(dp_backward_data,
                   dp::BackwardData{below, layer.weights, layer.output_gradient,
                                    layers_[l - 1].output_gradient, batch, layer.in, layer.out});
        }
        burn(backward_ms);
        const Bucket& bucket = buckets_[layer.bucket];
        if (options_.overlap && bucket.last_layer == l) {
            communicator_.reduce({{bucket.begin, bucket.size}}, compute_);
        }
    }
    if (!options_.overlap) {
        std::vector<dp::Gradient> all;
        for (const Bucket& bucket : buckets_) {
            all.push_back({bucket.begin, bucket.size});
        }
        communicator_.reduce(all, compute_);
    }
    communicator_.finish(compute_);
    const float rate =
        static_cast<float>(options_.learning_rate) / static_cast<float>(options_.world_size);
    for (const Layer& layer : layers_) {
        launch(dp_step,
               dp::Step{layer.weights, layer.gradient, rate, static_cast<int>(layer.size())});
    }
    launch(dp_record_loss, dp::RecordLoss{loss_sum_, history_, number, options_.world_size});
}

dp::Measurements Trainer::train() {
    const int total = options_.warmup + options_.iterations;
    std::vector<cudaEvent_t> ends(options_.iterations + 1);
    for (cudaEvent_t& event : ends) {
        check(cudaEventCreate(&event), "cudaEventCreate");
    }
    // All ranks leave the set-up together.
    check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
    communicator_.barrier(sink_);
    dp::Measurements result;
    if (options_.start_at_ns > 0) {
        sleep_until(options_.start_at_ns);
    }
    result.start_ns = now_ns();
    for (int number = 0; number < total; ++number) {
        if (number == options_.warmup) {
            check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
            check(cudaEventRecord(ends[0], compute_), "cudaEventRecord");
            result.measured_ns = now_ns();
        }
        iteration(number);
        if (number >= options_.warmup) {
            check(cudaEventRecord(ends[number - options_.warmup + 1], compute_), "cudaEventRecord");
        }
        if (options_.sync_every > 0 && (number + 1) % options_.sync_every == 0) {
            check(cudaMemcpyAsync(host_loss_, history_ + number, sizeof(float),
                                  cudaMemcpyDeviceToHost, compute_),
                  "cudaMemcpyAsync");
            check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
            if (options_.log_every > 0 && options_.rank == 0 &&
                (number + 1) % options_.log_every == 0) {
                std::printf("iteration %d loss %.17g\n", number + 1,
                            static_cast<double>(*host_loss_));
                std::fflush(stdout);
            }
        }
    }
    check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
    result.end_ns = now_ns();
    result.mean_iteration_ms =
        static_cast<double>(result.end_ns - result.measured_ns) / 1e6 / options_.iterations;
    for (int i = 0; i < options_.iterations; ++i) {
        float ms = 0.0F;
        check(cudaEventElapsedTime(&ms, ends[i], ends[i + 1]), "cudaEventElapsedTime");
        result.iteration_ms.push_back(ms);
    }
    result.losses.resize(total);
    check(cudaMemcpy(result.losses.data(), history_, total * sizeof(float), cudaMemcpyDeviceToHost),
          "cudaMemcpy");
    result.parameters_hash = 0xcbf29ce484222325;
    for (const Layer& layer : layers_) {
        std::vector<unsigned char> bytes(layer.size() * sizeof(float));
        check(cudaMemcpy(bytes.data(), layer.weights, bytes.size(), cudaMemcpyDeviceToHost),
              "cudaMemcpy");
        for (const unsigned char byte : bytes) {
            result.parameters_hash = (result.parameters_hash ^ byte) * 0x100000001b3;
        }
    }
    result.burn_per_ms = burn_per_ms_;
    result.gradient_bytes = gradient_count_ * sizeof(float);
    communicator_.disconnect();
    return result;
}

}  // namespace

namespace dp {

Measurements train(const Options& options, Communicator& communicator) {
    return Trainer(options, communicator).train();
}

void report(const Options& options, const Measurements& measurements) {
    std::printf("rank %d loss %.17g parameters %016llx iteration %.6f ms\n", options.rank,
                static_cast<double>(measurements.losses.back()),
                static_cast<unsigned long long>(measurements.parameters_hash),
                measurements.mean_iteration_ms);
    if (options.rank == 0 && !options.json.empty()) {
        write_json(options, measurements);
    }
}

}  // namespace dp
