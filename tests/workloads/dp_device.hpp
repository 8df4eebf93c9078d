// SPDX-License-Identifier: Apache-2.0
// What every training program needs of a device: the kernels of dp_math.hpp to launch, memory,
// errors, clocks. For files of the host compiler too; no model, no communication.
#pragma once

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>

#include "dp_math.hpp"

namespace dp {

// Ends the process with one line, "<program>: <what>: <error>", unless the call has succeeded.
void check(cudaError_t error, const char* what);

// Launches the kernel of these arguments: any structure of dp_math.hpp but Burn.
template <typename Arguments>
void launch(const Arguments& arguments, cudaStream_t stream);
void launch_burn(int blocks, const Burn& burn, cudaStream_t stream);

// Zeroed, at least one element, never freed.
template <typename T>
T* device_array(std::size_t count) {
    void* pointer = nullptr;
    check(cudaMalloc(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMalloc");
    check(cudaMemset(pointer, 0, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMemset");
    return static_cast<T*>(pointer);
}

// Pinned, at least one element, never freed.
template <typename T>
T* host_array(std::size_t count) {
    void* pointer = nullptr;
    check(cudaMallocHost(&pointer, std::max<std::size_t>(count, 1) * sizeof(T)), "cudaMallocHost");
    return static_cast<T*>(pointer);
}

// The stream is its own: it waits for no other, nor they for it.
cudaStream_t new_stream();
// Without timing, as frameworks' events for order are.
cudaEvent_t new_event();
// What `later` is given from here on starts after what `earlier` has been given so far.
void order(cudaStream_t earlier, cudaEvent_t event, cudaStream_t later);

// CLOCK_MONOTONIC, ns.
std::int64_t now_ns();
void sleep_until(std::int64_t at_ns);

}  // namespace dp
