// SPDX-License-Identifier: Apache-2.0
// The kernel that packs tensors into the fusion buffer and out of it: many copies in one launch.
// What it does with an element, for device and host alike, and how it is launched. No NCCL.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define HVD_FUNCTION __host__ __device__ inline
#else
#define HVD_FUNCTION inline
#endif

namespace hvd {

struct Copy {
    const float* from;
    float* to;
    std::uint64_t count;
};

inline constexpr int kMaxCopies = 64;

struct Copies {
    Copy copy[kMaxCopies];
    int count;
};

HVD_FUNCTION void element(const Copy& copy, std::uint64_t index) {
    copy.to[index] = copy.from[index];
}

// Launches the kernel on the stream, a cudaStream_t. The CUDA error.
int launch_copies(const Copies& copies, void* stream);

}  // namespace hvd
