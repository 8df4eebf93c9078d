// SPDX-License-Identifier: Apache-2.0
// Horovod 0.28 with HOROVOD_ENABLE_ASYNC_COMPLETION=1 (gpu_operations.cc, FinalizeGPUQueue): once
// the sum is launched, a finalizer thread records an event on Horovod's stream and calls the handle
// done without waiting; synchronize() puts the framework's stream behind that event. The CPU runs
// ahead as with DistributedDataParallel, but the collectives come from another thread, their end
// events from a third.
#include "horovod.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_horovod_async(const Settings& settings) {
    return std::make_unique<HorovodLike>(settings, hvd::Completion::kEvent);
}

}  // namespace patterns
