// SPDX-License-Identifier: Apache-2.0
// What every program that uses NCCL needs: its errors, and the ranks' meeting. No training.
#pragma once

#include <nccl.h>

#include "dp_options.hpp"

namespace dp {

// Ends the process with one line, "<program>: <what>: <error>; <NCCL's text>", unless the call has
// succeeded.
void check(ncclResult_t result, const char* what);

// A unique id that all ranks share; meeting_over() once the communicator stands.
ncclUniqueId share_unique_id(const Options& options);
void meeting_over(const Options& options);

// A communicator of all ranks on the current device.
ncclComm_t connect(const Options& options);

}  // namespace dp
