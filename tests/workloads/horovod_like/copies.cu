// SPDX-License-Identifier: Apache-2.0
// The packing kernel and its launch; see copies.hpp.
#include "copies.hpp"

#include <cuda_runtime.h>

extern "C" __global__ void hvd_copies(hvd::Copies copies) {
    const hvd::Copy& copy = copies.copy[blockIdx.y];
    for (std::uint64_t i = blockIdx.x * blockDim.x + threadIdx.x; i < copy.count;
         i += static_cast<std::uint64_t>(gridDim.x) * blockDim.x) {
        hvd::element(copy, i);
    }
}

namespace hvd {

int launch_copies(const Copies& copies, void* stream) {
    constexpr unsigned kBlocks = 32;
    constexpr unsigned kThreads = 256;
    hvd_copies<<<dim3(kBlocks, static_cast<unsigned>(copies.count)), kThreads, 0,
                 static_cast<cudaStream_t>(stream)>>>(copies);
    return cudaGetLastError();
}

}  // namespace hvd
