// SPDX-License-Identifier: Apache-2.0
// Data-parallel training with NCCL as frameworks arrange it: gradients all-reduced in buckets on a
// stream of their own, events between that and the compute stream, no waiting on the CPU. What is
// trained, and how, is in dp_trainer.
#include <cuda_runtime_api.h>
#include <nccl.h>

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <numeric>

#include "dp_meeting.hpp"
#include "dp_trainer.hpp"

namespace {

using dp::check;

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        std::fprintf(stderr, "%s: %s: %s; %s\n", program_invocation_short_name, what,
                     ncclGetErrorString(result), ncclGetLastError(nullptr));
        std::exit(1);
    }
}

class NcclCommunicator final : public dp::Communicator {
  public:
    explicit NcclCommunicator(const dp::Options& options) : options_(options) {}

    void connect() override {
        check(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking), "cudaStreamCreate");
        check(cudaEventCreateWithFlags(&ready_, cudaEventDisableTiming), "cudaEventCreate");
        check(cudaEventCreateWithFlags(&reduced_, cudaEventDisableTiming), "cudaEventCreate");
        ncclUniqueId id{};
        if (options_.rank == 0) {
            check(ncclGetUniqueId(&id), "ncclGetUniqueId");
        }
        dp::share_from_rank_zero(options_, &id, sizeof(id));
        check(ncclCommInitRank(&communicator_, options_.world_size, id, options_.rank),
              "ncclCommInitRank");
        if (options_.rank == 0) {
            dp::forget_meeting(options_);
        }
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
        check(cudaEventRecord(ready_, compute), "cudaEventRecord");
        check(cudaStreamWaitEvent(stream_, ready_, 0), "cudaStreamWaitEvent");
        check(ncclAllReduce(begin, begin, count, ncclFloat32, ncclSum, communicator_, stream_),
              "ncclAllReduce");
    }

    void finish(cudaStream_t compute) override {
        check(cudaEventRecord(reduced_, stream_), "cudaEventRecord");
        check(cudaStreamWaitEvent(compute, reduced_, 0), "cudaStreamWaitEvent");
    }

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
