// SPDX-License-Identifier: Apache-2.0
// NCCL's errors and the meeting for it; see dp_nccl.hpp. No training.
#include "dp_nccl.hpp"

#include <cerrno>
#include <cstdio>
#include <cstdlib>

#include "dp_meeting.hpp"

namespace dp {

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        std::fprintf(stderr, "%s: %s: %s; %s\n", program_invocation_short_name, what,
                     ncclGetErrorString(result), ncclGetLastError(nullptr));
        std::exit(1);
    }
}

ncclUniqueId share_unique_id(const Options& options) {
    ncclUniqueId id{};
    if (options.rank == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    share_from_rank_zero(options, &id, sizeof(id));
    return id;
}

void meeting_over(const Options& options) {
    if (options.rank == 0) {
        forget_meeting(options);
    }
}

ncclComm_t connect(const Options& options) {
    ncclComm_t communicator = nullptr;
    const ncclUniqueId id = share_unique_id(options);
    check(ncclCommInitRank(&communicator, options.world_size, id, options.rank),
          "ncclCommInitRank");
    meeting_over(options);
    return communicator;
}

}  // namespace dp
