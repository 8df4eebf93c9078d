// SPDX-License-Identifier: Apache-2.0
// Questions about contexts, streams and functions, asked of the real driver in plain types, so that
// the rest of the gate needs no CUDA header.
#pragma once

#include <cstdint>

#include "arbiter/client.hpp"

namespace crossover {

// The calling thread's context, or nullptr.
void* current_context() noexcept;
// The stream's context; the calling thread's where the driver does not tell.
void* context_of_stream(std::uintptr_t stream) noexcept;
bool stream_is_non_blocking(std::uintptr_t stream) noexcept;
// UUID and ordinal of the device of `context`, which must be the calling thread's: false otherwise.
// The UUID is that of the MIG instance where there is one.
bool device_of_current_context(void* context, DeviceUuid& device, std::uint32_t& ordinal) noexcept;
// Whether the function (a CUfunction, or a CUkernel given in its place) is one of NCCL's kernels,
// by its name; `otherwise` where the driver cannot name functions (before CUDA 12.3). Cached by
// handle.
bool is_nccl_kernel(std::uintptr_t function, bool otherwise) noexcept;

}  // namespace crossover
