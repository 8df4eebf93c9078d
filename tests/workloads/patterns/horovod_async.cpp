// SPDX-License-Identifier: Apache-2.0
// Horovod 0.28 with HOROVOD_ENABLE_ASYNC_COMPLETION=1 (gpu_operations.cc, FinalizeGPUQueue;
// torch/mpi_ops_v2.cc, the callbacks): once the sum is launched, a finalizer thread records an
// event on Horovod's stream, puts the framework's stream behind it, on which the program may be
// launching its backward pass, and calls the handle done. synchronize() waits for no more than
// that. So the CPU runs ahead as with DistributedDataParallel, but compute may stand behind any
// sum.
#include "horovod.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_horovod_async(const Settings& settings) {
    return std::make_unique<HorovodLike>(settings, hvd::Completion::kEvent);
}

}  // namespace patterns
