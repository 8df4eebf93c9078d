// SPDX-License-Identifier: Apache-2.0
// The arithmetic of the training programs, one element at a time, for device and host alike: every
// result is one thread's sum in a fixed order, so that a run repeats bit for bit. No launch, no
// allocation, no communication.
#pragma once

#include <cstddef>

#ifdef __CUDACC__
#define DP_FUNCTION __host__ __device__ inline
#else
#define DP_FUNCTION inline
#endif

namespace dp {

// Rows of x are samples; w is out x in, row by row. y = w x + b, then max(0, y) where `rectify`.
struct Forward {
    const float* x;
    const float* w;
    const float* b;
    float* y;
    int batch;
    int in;
    int out;
    int rectify;
};

DP_FUNCTION int count(const Forward& a) { return a.batch * a.out; }

DP_FUNCTION void element(const Forward& a, int index) {
    const float* const x = a.x + static_cast<std::size_t>(index / a.out) * a.in;
    const float* const w = a.w + static_cast<std::size_t>(index % a.out) * a.in;
    float sum = a.b[index % a.out];
    for (int i = 0; i < a.in; ++i) {
        sum += w[i] * x[i];
    }
    a.y[index] = a.rectify && sum < 0.0F ? 0.0F : sum;
}

// Squared error per sample, and its gradient by the prediction.
struct Loss {
    const float* y;
    const float* target;
    float* dy;
    float* sample_loss;
    int batch;
    int out;
};

DP_FUNCTION int count(const Loss& a) { return a.batch; }

DP_FUNCTION void element(const Loss& a, int sample) {
    const float scale = 2.0F / static_cast<float>(a.batch * a.out);
    float sum = 0.0F;
    for (int i = sample * a.out; i < (sample + 1) * a.out; ++i) {
        const float difference = a.y[i] - a.target[i];
        sum += difference * difference;
        a.dy[i] = scale * difference;
    }
    a.sample_loss[sample] = sum / static_cast<float>(a.batch * a.out);
}

// Sum of the samples' losses.
struct LossSum {
    const float* sample_loss;
    float* loss;
    int batch;
};

DP_FUNCTION int count(const LossSum&) { return 1; }

DP_FUNCTION void element(const LossSum& a, int) {
    float sum = 0.0F;
    for (int i = 0; i < a.batch; ++i) {
        sum += a.sample_loss[i];
    }
    *a.loss = sum;
}

// Gradient by weights and bias: element (o, i) for i < in, the bias for i == in.
struct BackwardWeights {
    const float* x;
    const float* dy;
    float* dw;
    float* db;
    int batch;
    int in;
    int out;
};

DP_FUNCTION int count(const BackwardWeights& a) { return a.out * (a.in + 1); }

DP_FUNCTION void element(const BackwardWeights& a, int index) {
    const int o = index / (a.in + 1);
    const int i = index % (a.in + 1);
    float sum = 0.0F;
    for (int sample = 0; sample < a.batch; ++sample) {
        const float dy = a.dy[static_cast<std::size_t>(sample) * a.out + o];
        sum += i == a.in ? dy : dy * a.x[static_cast<std::size_t>(sample) * a.in + i];
    }
    if (i == a.in) {
        a.db[o] = sum;
    } else {
        a.dw[static_cast<std::size_t>(o) * a.in + i] = sum;
    }
}

// Gradient by the layer's input, which was max(0, .) of the layer below.
struct BackwardData {
    const float* x;
    const float* w;
    const float* dy;
    float* dx;
    int batch;
    int in;
    int out;
};

DP_FUNCTION int count(const BackwardData& a) { return a.batch * a.in; }

DP_FUNCTION void element(const BackwardData& a, int index) {
    const int sample = index / a.in;
    const int i = index % a.in;
    float sum = 0.0F;
    for (int o = 0; o < a.out; ++o) {
        sum += a.w[static_cast<std::size_t>(o) * a.in + i] *
               a.dy[static_cast<std::size_t>(sample) * a.out + o];
    }
    a.dx[index] = a.x[index] > 0.0F ? sum : 0.0F;
}

// w -= rate * gradient, where the gradient is a sum over the ranks and `rate` holds the 1/ranks.
struct Step {
    float* w;
    const float* gradient;
    float rate;
    int size;
};

DP_FUNCTION int count(const Step& a) { return a.size; }

DP_FUNCTION void element(const Step& a, int index) { a.w[index] -= a.rate * a.gradient[index]; }

// history[at] = mean over the ranks of the iteration's loss.
struct RecordLoss {
    const float* loss_sum;
    float* history;
    int at;
    int ranks;
};

DP_FUNCTION int count(const RecordLoss&) { return 1; }

DP_FUNCTION void element(const RecordLoss& a, int) {
    a.history[a.at] = *a.loss_sum / static_cast<float>(a.ranks);
}

// to = from.
struct Copy {
    const float* from;
    float* to;
    int size;
};

DP_FUNCTION int count(const Copy& a) { return a.size; }

DP_FUNCTION void element(const Copy& a, int index) { a.to[index] = a.from[index]; }

// to += from.
struct Add {
    const float* from;
    float* to;
    int size;
};

DP_FUNCTION int count(const Add& a) { return a.size; }

DP_FUNCTION void element(const Add& a, int index) { a.to[index] += a.from[index]; }

// y = max(0, y + b), where rows of y are samples.
struct Rectify {
    float* y;
    const float* b;
    int batch;
    int out;
};

DP_FUNCTION int count(const Rectify& a) { return a.batch * a.out; }

DP_FUNCTION void element(const Rectify& a, int index) {
    const float sum = a.y[index] + a.b[index % a.out];
    a.y[index] = sum < 0.0F ? 0.0F : sum;
}

// Device time without a purpose of its own: `rounds` rounds of arithmetic in every thread. Work,
// not a clock, so that it takes longer where the device is shared, as real kernels do.
struct Burn {
    float* sink;
    unsigned long long rounds;
};

inline constexpr int kBurnChain = 16;  // dependent multiply-adds a round

DP_FUNCTION float burn_rounds(unsigned long long rounds, float value) {
    for (unsigned long long round = 0; round < rounds; ++round) {
#ifdef __CUDA_ARCH__
#pragma unroll
#endif
        for (int i = 0; i < kBurnChain; ++i) {
            value = value * 0.999F + 0.001F;
        }
    }
    return value;
}

}  // namespace dp
