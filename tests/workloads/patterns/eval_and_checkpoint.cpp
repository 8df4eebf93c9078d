// SPDX-License-Identifier: Apache-2.0
// What a training loop does beside training: an evaluation every so many iterations (forward passes
// only, each batch's loss read by the CPU: no communication for a long while), a checkpoint (rank 0
// copies all weights to the host and writes them, as torch.save(model.state_dict()) does, while the
// others already wait in the next all-reduce), and an input pipeline that is late (a DataLoader
// that has no batch ready: the CPU blocks, nothing is submitted). Training itself is
// DistributedDataParallel's.
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include "buckets.hpp"

namespace patterns {
namespace {

class EvalAndCheckpoint final : public BucketedDataParallel {
  public:
    explicit EvalAndCheckpoint(const Settings& settings)
        : BucketedDataParallel(settings), host_loss_(dp::host_array<float>(1)) {}

    void iteration(int number) override {
        if (due(number, settings_.stall_every)) {
            dp::sleep_until(dp::now_ns() + static_cast<std::int64_t>(settings_.stall_ms * 1e6));
        }
        BucketedDataParallel::iteration(number);
        if (due(number, settings_.eval_every)) {
            evaluate(number);
        }
        if (due(number, settings_.checkpoint_every) && options().rank == 0) {
            checkpoint();
        }
    }

  private:
    static bool due(int number, int every) { return every > 0 && (number + 1) % every == 0; }

    void evaluate(int number) {
        for (int batch = 0; batch < settings_.eval_batches; ++batch) {
            forward(number + batch);
            dp::check(cudaMemcpyAsync(host_loss_, model_.loss_sum, sizeof(float),
                                      cudaMemcpyDeviceToHost, compute_),
                      "cudaMemcpyAsync");
            dp::check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
        }
    }

    // One synchronous copy a tensor, to pageable memory, as Tensor.cpu() does.
    void checkpoint() {
        std::FILE* const file = std::tmpfile();
        bool written = file != nullptr;
        for (const dp::Layer& layer : model_.layers) {
            std::vector<float> weights(layer.size());
            dp::check(cudaMemcpyAsync(weights.data(), layer.weights, weights.size() * sizeof(float),
                                      cudaMemcpyDeviceToHost, compute_),
                      "cudaMemcpyAsync");
            dp::check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
            written = written && std::fwrite(weights.data(), sizeof(float), weights.size(), file) ==
                                     weights.size();
        }
        if (!written || std::fclose(file) != 0) {
            std::fprintf(stderr, "%s: cannot write a checkpoint: %s\n",
                         program_invocation_short_name, std::strerror(errno));
            std::exit(1);
        }
    }

    float* const host_loss_;  // pinned
};

}  // namespace

std::unique_ptr<Pattern> make_eval_and_checkpoint(const Settings& settings) {
    return std::make_unique<EvalAndCheckpoint>(settings);
}

}  // namespace patterns
