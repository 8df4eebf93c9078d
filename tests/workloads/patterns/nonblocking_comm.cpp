// SPDX-License-Identifier: Apache-2.0
// A communicator with ncclConfig_t.blocking = 0, as PyTorch makes it with
// TORCH_NCCL_USE_COMM_NONBLOCKING=1 (ProcessGroupNCCL, C10D_NCCL_CHECK_TIMEOUT): every call may
// return ncclInProgress, after which ncclCommGetAsyncError is asked until it says otherwise. The
// kernel is launched by a thread of NCCL's, later than the call returns. Training is
// DistributedDataParallel's.
#include "buckets.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_nonblocking_comm(const Settings& settings) {
    return std::make_unique<BucketedDataParallel>(settings, ProcessGroup::Blocking::kNo);
}

}  // namespace patterns
