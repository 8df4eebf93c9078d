// SPDX-License-Identifier: Apache-2.0
// Training over the Horovod-like engine; see horovod.hpp.
#include "horovod.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "../dp_loop.hpp"
#include "../dp_meeting.hpp"

namespace patterns {
namespace {

// The engine throws; a training program ends.
template <typename Body>
auto ending(const Body& body) {
    try {
        return body();
    } catch (const std::exception& error) {
        std::fprintf(stderr, "%s: horovod: %s\n", program_invocation_short_name, error.what());
        std::exit(1);
    }
}

}  // namespace

cudaStream_t HorovodLike::begin(const dp::Options& options) {
    dp::select_device(options);
    return dp::new_stream();
}

HorovodLike::HorovodLike(const Settings& settings, hvd::Completion completion)
    : options_(settings.options),
      compute_(begin(options_)),
      model_(options_, options_.rank),
      scratch_(dp::device_array<float>(1)) {
    ending([&] { connect(); });
    model_.burner.calibrate(
        [this](double value) {
            ending([&] { control_.broadcast(&value, sizeof value); });
            return value;
        },
        compute_);
    hvd::Settings own;
    own.rank = options_.rank;
    own.size = options_.world_size;
    own.device = options_.device;
    own.cycle_ms = settings.cycle_ms;
    own.fusion_bytes = static_cast<std::uint64_t>(settings.fusion_mb * 1e6);
    own.completion = completion;
    engine_ = std::make_unique<hvd::Engine>(own, control_);
}

void HorovodLike::connect() {
    int port = options_.rank == 0 ? control_.listen() : 0;
    dp::share_from_rank_zero(options_, &port, sizeof port);
    control_.connect(
        options_.rank, options_.world_size,
        options_.master_address.empty() ? "127.0.0.1" : options_.master_address.c_str(), port,
        options_.timeout_s);
    if (options_.rank == 0) {
        dp::forget_meeting(options_);
    }
}

void HorovodLike::submit(float* data, std::size_t count) {
    const std::string name = "gradient." + std::to_string(handles_.size());
    handles_.push_back(ending([&] { return engine_->submit(data, count, name, compute_); }));
}

void HorovodLike::synchronize() {
    for (const std::int64_t handle : handles_) {
        ending([&] { engine_->synchronize(handle); });
    }
    handles_.clear();
}

void HorovodLike::barrier() {
    submit(scratch_, 1);
    synchronize();
    dp::check(cudaStreamSynchronize(compute_), "cudaStreamSynchronize");
}

void HorovodLike::iteration(int number) {
    model_.load(number, compute_);
    for (int l = 0; l < model_.count(); ++l) {
        model_.forward(l, compute_);
    }
    model_.loss(compute_);
    for (int l = model_.count() - 1; l >= 0; --l) {
        model_.backward(l, compute_);
        const dp::Bucket& bucket = model_.buckets[model_.layers[l].bucket];
        if (bucket.last_layer == l) {
            submit(bucket.begin, bucket.size);
        }
    }
    synchronize();
    for (int l = 0; l < model_.count(); ++l) {
        model_.step(l, options_.world_size, compute_);
    }
    model_.record_loss(number, options_.world_size, compute_);
}

}  // namespace patterns
