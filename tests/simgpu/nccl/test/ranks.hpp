// SPDX-License-Identifier: Apache-2.0
// Runs the ranks of a job as processes of their own inside a test. The test itself never touches
// CUDA, so that its children can. No test here.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>
#include <nccl.h>

#include <cstddef>
#include <functional>
#include <type_traits>
#include <vector>

namespace simgpu::test {

// Forks `ranks` children, runs body(rank, id) in each, and fails the test where a child has a
// failure, dies or hangs.
void run_ranks(int ranks, const std::function<void(int, const ncclUniqueId&)>& body);

#define EXPECT_NCCL(call) EXPECT_EQ(ncclSuccess, (call)) << ncclGetLastError(nullptr)
#define ASSERT_NCCL(call) ASSERT_EQ(ncclSuccess, (call)) << ncclGetLastError(nullptr)
#define EXPECT_CUDA(call) EXPECT_EQ(cudaSuccess, (call))
#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, (call))

// Device memory with contents, freed at the end of the scope.
template <typename T>
class Array {
  public:
    explicit Array(const std::vector<T>& values) : size_(values.size()) {
        allocate();
        if (size_ > 0) {
            EXPECT_CUDA(
                cudaMemcpy(pointer_, values.data(), size_ * sizeof(T), cudaMemcpyHostToDevice));
        }
    }
    explicit Array(std::size_t size) : size_(size) {
        allocate();
        EXPECT_CUDA(cudaMemset(pointer_, 0xa5, size_ * sizeof(T)));
    }
    ~Array() { EXPECT_CUDA(cudaFree(pointer_)); }
    Array(const Array&) = delete;
    Array& operator=(const Array&) = delete;

    T* get() const { return static_cast<T*>(pointer_); }
    // To be called when the stream is drained.
    std::vector<T> read() const {
        std::vector<T> values(size_);
        EXPECT_CUDA(cudaMemcpy(values.data(), pointer_, size_ * sizeof(T), cudaMemcpyDeviceToHost));
        return values;
    }

  private:
    void allocate() { EXPECT_CUDA(cudaMalloc(&pointer_, size_ * sizeof(T))); }

    void* pointer_ = nullptr;
    std::size_t size_;
};

// A communicator on device `device` and a stream.
class Rank {
  public:
    Rank(int rank, int ranks, const ncclUniqueId& id, int device) {
        EXPECT_CUDA(cudaSetDevice(device));
        EXPECT_CUDA(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
        EXPECT_NCCL(ncclCommInitRank(&comm, ranks, id, rank));
    }
    Rank(int rank, int ranks, const ncclUniqueId& id) : Rank(rank, ranks, id, rank) {}
    ~Rank() {
        EXPECT_CUDA(cudaStreamSynchronize(stream));
        EXPECT_NCCL(ncclCommDestroy(comm));
        EXPECT_CUDA(cudaStreamDestroy(stream));
    }
    Rank(const Rank&) = delete;
    Rank& operator=(const Rank&) = delete;

    void synchronize() const { EXPECT_CUDA(cudaStreamSynchronize(stream)); }

    ncclComm_t comm = nullptr;
    cudaStream_t stream = nullptr;
};

}  // namespace simgpu::test
