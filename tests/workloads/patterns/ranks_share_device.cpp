// SPDX-License-Identifier: Apache-2.0
// Two or more ranks of one job on one device, which NCCL refuses ("Duplicate GPU detected") unless
// it takes them for hosts of their own: with an NCCL_HOSTID of its own for each rank, read by
// NCCL 2.6 and later (src/misc/utils.cc, getHostHash). People without enough GPUs test
// data-parallel programs so. Training is DistributedDataParallel's.
#include <cstdlib>

#include "buckets.hpp"

namespace patterns {

std::unique_ptr<Pattern> make_ranks_share_device(const Settings& settings) {
    Settings own = settings;
    own.options.device = 0;
    // Before NCCL looks; the user's own choice stays.
    setenv("NCCL_HOSTID", ("patterns-" + std::to_string(own.options.rank)).c_str(), 0);
    return std::make_unique<BucketedDataParallel>(own);
}

}  // namespace patterns
