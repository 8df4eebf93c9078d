// SPDX-License-Identifier: Apache-2.0
// Whether a launch is NCCL communication, from three sources of which any one suffices: the
// kernel's name, the thread being inside a call of NCCL, and NCCL's profiler interface. Only a
// launch becomes a collective, so several sources that agree never count it twice. No type of CUDA
// or NCCL here, no gate, no window.
#pragma once

#include <cstdint>

#include "shim/gate/process.hpp"

namespace crossover {

// What the thread is about to launch. `function` is a CUfunction, or a CUkernel in its place; 0: a
// kernel that only the runtime knows. At most once a launch. Lock-free once the function is known.
bool is_communication(std::uintptr_t function, ThreadState& thread) noexcept;

// NCCL's profiler says that the thread begins or has ended the launch of a kernel of its own.
void profiler_launch_began(ThreadState& thread) noexcept;
void profiler_launch_ended(ThreadState& thread) noexcept;
// The same from interfaces that speak only afterwards: the thread's last launch was NCCL's. From
// then on launches of that function are taken for communication, until one is not confirmed.
void profiler_launch_was(ThreadState& thread) noexcept;
// NCCL's profiler says what is asked for, in bytes; adds up until the launch that carries it.
// Ignored where the call itself is intercepted.
void profiler_call(ThreadState& thread, std::uint64_t communicator, std::uint64_t bytes,
                   std::uint64_t operation) noexcept;

// A function was looked up by its name; or by another handle of it (a CUkernel). For drivers that
// cannot be asked for names.
void function_named(std::uintptr_t function, const char* name) noexcept;
void function_same(std::uintptr_t function, std::uintptr_t as) noexcept;
// A module is about to go away, and its functions' handles with it: the driver uses them again.
void functions_lost() noexcept;

}  // namespace crossover
