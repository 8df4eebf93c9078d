// SPDX-License-Identifier: Apache-2.0
// Common part of data-parallel patterns; see data_parallel.hpp.
#include "data_parallel.hpp"

#include "../dp_loop.hpp"

namespace patterns {

DataParallel::Device::Device(const dp::Options& options) { dp::select_device(options); }

DataParallel::DataParallel(const Settings& settings, ProcessGroup::Blocking blocking)
    : settings_(settings),
      device_(settings_.options),
      compute_(dp::new_stream()),
      group_(settings_.options, blocking),
      model_(settings_.options, settings_.options.rank) {
    model_.burner.calibrate([this](double value) { return group_.from_rank_zero(value); },
                            compute_);
}

void DataParallel::forward(int number) {
    model_.load(number, compute_);
    for (int l = 0; l < model_.count(); ++l) {
        model_.forward(l, compute_);
    }
    model_.loss(compute_);
}

void DataParallel::step(int number) {
    for (int l = 0; l < model_.count(); ++l) {
        model_.step(l, options().world_size, compute_);
    }
    model_.record_loss(number, options().world_size, compute_);
}

}  // namespace patterns
