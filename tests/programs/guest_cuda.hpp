// SPDX-License-Identifier: Apache-2.0
// What the parts of guest_cuda share: a context, a kernel that adds one, its result. Nothing of
// Crossover.
#pragma once

#include <cuda.h>

#include <atomic>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

namespace guest {

// Ends the process with a line unless the call was accepted.
void need(CUresult result, const char* what);
// The device's primary context, current to the calling thread.
CUcontext primary(int ordinal = 0);
// An int on the device, 0 at first; `add` adds one and takes `cost_us` of device time.
CUdeviceptr number();
CUfunction add_kernel();  // its function, which the first `add` loads otherwise
CUresult add(CUstream stream, CUdeviceptr at, unsigned cost_us);
int value_of(CUdeviceptr at);
// A line of output, at once.
void say(const char* text);

// Subcommand: whatever a process shares with what is loaded into it, before its first CUDA call,
// before and after its first launches. Prints every difference; 1 when there is one.
int snapshot(int, char**);
// Subcommands: a thread waits for the turn, or at a crossing, and is let through or ended.
int waits_for_turn(int, char**);
int waits_at_crossing(int, char**);
// Subcommands: work is left in the GPU's queue, many launches or across a collective, and is waited
// for there; what waits is let through or ended.
int queues(int, char**);
int queues_many(int, char**);
int queues_at_crossing(int, char**);
// Subcommand: threads that end with work on their per-thread default streams.
int leaving_threads(int, char**);

}  // namespace guest
