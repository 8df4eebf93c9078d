// SPDX-License-Identifier: Apache-2.0
// Data-parallel training with NCCL as frameworks arrange it: gradients all-reduced in buckets on a
// stream of their own, events between that and the compute stream, no waiting on the CPU. What is
// trained, and how, is in dp_trainer.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <numeric>

#include "dp_nccl.hpp"
#include "dp_trainer.hpp"

namespace {

using dp::check;

class NcclCommunicator final : public dp::Communicator {
  public:
    explicit NcclCommunicator(const dp::Options& options) : options_(options) {}

    void connect() override {
        stream_ = dp::new_stream();
        ready_ = dp::new_event();
        reduced_ = dp::new_event();
        communicator_ = dp::connect(options_);
    }

    double from_rank_zero(double value) override {
        void* shared = nullptr;
        check(cudaMalloc(&shared, sizeof(value)), "cudaMalloc");
        check(cudaMemcpyAsync(shared, &value, sizeof(value), cudaMemcpyHostToDevice, stream_),
              "cudaMemcpyAsync");
        check(ncclBroadcast(shared, shared, 1, ncclFloat64, 0, communicator_, stream_),
              "ncclBroadcast");
        check(cudaMemcpyAsync(&value, shared, sizeof(value), cudaMemcpyDeviceToHost, stream_),
              "cudaMemcpyAsync");
        check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
        check(cudaFree(shared), "cudaFree");
        return value;
    }

    void barrier(float* scratch) override {
        check(ncclAllReduce(scratch, scratch, 1, ncclFloat32, ncclSum, communicator_, stream_),
              "ncclAllReduce");
        check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    }

    void reduce(const std::vector<dp::Gradient>& gradients, cudaStream_t compute) override {
        const std::size_t count = std::accumulate(
            gradients.begin(), gradients.end(), std::size_t{0},
            [](std::size_t sum, const dp::Gradient& each) { return sum + each.count; });
        float* const begin = gradients.front().begin;
        dp::order(compute, ready_, stream_);
        check(ncclAllReduce(begin, begin, count, ncclFloat32, ncclSum, communicator_, stream_),
              "ncclAllReduce");
    }

    void finish(cudaStream_t compute) override { dp::order(stream_, reduced_, compute); }

    void disconnect() override { check(ncclCommDestroy(communicator_), "ncclCommDestroy"); }

  private:
    const dp::Options options_;
    ncclComm_t communicator_ = nullptr;
    cudaStream_t stream_ = nullptr;
    cudaEvent_t ready_ = nullptr;    // gradients of a bucket are computed
    cudaEvent_t reduced_ = nullptr;  // and all are reduced
};

}  // namespace

int main(int argc, char** argv) {
    const dp::Options options = dp::parse_options(argc, argv);
    NcclCommunicator communicator(options);
    dp::report(options, dp::train(options, communicator));
    return 0;
}
