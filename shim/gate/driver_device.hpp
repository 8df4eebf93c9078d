// SPDX-License-Identifier: Apache-2.0
// Questions about contexts, streams and functions, asked of the real driver in plain types, so that
// the rest of the gate needs no CUDA header.
#pragma once

#include <cstdint>
#include <optional>

#include "arbiter/client.hpp"
#include "shim/gate/nccl_names.hpp"

namespace crossover {

// The calling thread's context, or nullptr.
void* current_context() noexcept;
// The stream's context; the calling thread's where the driver does not tell.
void* context_of_stream(std::uintptr_t stream) noexcept;
bool stream_is_non_blocking(std::uintptr_t stream) noexcept;
// The driver's number of the capture the stream takes part in, 0 when it takes part in none. The
// number is never used again.
std::uint64_t capture_number(std::uintptr_t stream) noexcept;
// UUID and ordinal of the device of `context`, which must be the calling thread's: false otherwise.
// The UUID is that of the MIG instance where there is one.
bool device_of_current_context(void* context, DeviceUuid& device, std::uint32_t& ordinal) noexcept;
// What the name of the function (a CUfunction, or a CUkernel given in its place) says; nothing
// where the driver cannot name functions (before CUDA 12.3). Asks the driver each time.
std::optional<KernelName> name_of_kernel(std::uintptr_t function) noexcept;

}  // namespace crossover
