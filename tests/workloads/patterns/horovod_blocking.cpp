// SPDX-License-Identifier: Apache-2.0
// Horovod 0.28, elastic mode: the finalizer asks cudaEventQuery and yields until the sum is there
// (horovod/common/ops/gpu_operations.cc, ErrorCheck/WaitForEventsElastic), and optimizer.step()
// blocks in synchronize() until then (torch/mpi_ops_v2.cc, WaitAndClear): nothing is submitted
// during the exposed communication, and no stream waits for it. (hvd_train has the other way, a
// finalizer in cudaEventSynchronize and NCCL linked statically.)
#include "horovod.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_horovod_blocking(const Settings& settings) {
    return std::make_unique<HorovodLike>(settings, hvd::Completion::kPoll);
}

}  // namespace patterns
