// SPDX-License-Identifier: Apache-2.0
// Data-parallel training; see dp_trainer.hpp. Knows no NCCL.
#include "dp_trainer.hpp"

#include "dp_model.hpp"

namespace dp {
namespace {

void iteration(const Model& model, Communicator& communicator, cudaStream_t compute, int number) {
    const Options& options = model.options;
    model.load(number, compute);
    for (int l = 0; l < model.count(); ++l) {
        model.forward(l, compute);
    }
    model.loss(compute);
    for (int l = model.count() - 1; l >= 0; --l) {
        model.backward(l, compute);
        const Bucket& bucket = model.buckets[model.layers[l].bucket];
        if (options.overlap && bucket.last_layer == l) {
            communicator.reduce({{bucket.begin, bucket.size}}, compute);
        }
    }
    if (!options.overlap) {
        std::vector<Gradient> all;
        for (const Bucket& bucket : model.buckets) {
            all.push_back({bucket.begin, bucket.size});
        }
        communicator.reduce(all, compute);
    }
    communicator.finish(compute);
    for (int l = 0; l < model.count(); ++l) {
        model.step(l, options.world_size, compute);
    }
    model.record_loss(number, options.world_size, compute);
}

}  // namespace

Measurements train(const Options& options, Communicator& communicator) {
    select_device(options);
    const cudaStream_t compute = new_stream();
    communicator.connect();
    Model model(options, options.rank);
    model.burner.calibrate([&](double value) { return communicator.from_rank_zero(value); },
                           compute);
    float* const scratch = device_array<float>(1);
    Loop loop;
    loop.compute = compute;
    loop.history = model.history;
    loop.iteration = [&](int number) { iteration(model, communicator, compute, number); };
    loop.barrier = [&] { communicator.barrier(scratch); };
    Measurements result = run(options, loop);
    result.parameters_hash = hash_parameters(model.layers);
    result.burn_per_ms = model.burner.per_ms();
    result.gradient_bytes = model.gradient_count * sizeof(float);
    communicator.disconnect();
    return result;
}

}  // namespace dp
