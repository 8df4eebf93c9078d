// SPDX-License-Identifier: Apache-2.0
// Group semantics of the virtual GPU's libnccl: what a thread has called since the outermost group
// start, and its launch at the end. All functions work on the calling thread's group.
#pragma once

#include <functional>

#include "plan.hpp"

namespace simgpu::nccl {

// The outermost end launches or starts everything; without it, nothing has happened yet. A failure
// inside a group spoils all of it, and the outermost end returns that failure.
ncclResult_t group_start();
ncclResult_t group_end();
// Drops what the group holds instead of launching it.
ncclResult_t group_drop();
bool in_group();
// Keeps a failed call's result for the end of the group; returns it.
ncclResult_t group_failed(ncclResult_t result);

// Adds an operation. Call between group_start and group_end.
void group_add(const Comm& comm, const Task& task, cudaStream_t stream);

// Adds something slow (an initialisation) that runs on a thread of its own: the end of the group
// waits for it, or, with a non-blocking communicator, does not. `run`'s failure also becomes
// `comm`'s asynchronous error.
void group_add_job(const Comm& comm, std::function<ncclResult_t()> run);

}  // namespace simgpu::nccl
