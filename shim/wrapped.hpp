// SPDX-License-Identifier: Apache-2.0
// From real functions to ours, by address. No type of CUDA or NCCL, whose C++ headers do not go
// together.
#pragma once

namespace crossover {

// Each returns our function for `real` if that is the address of an intercepted function of the
// library, else `real` itself. Any thread, no lock.
void* wrapped_driver_function(void* real) noexcept;
void* wrapped_runtime_function(void* real) noexcept;
void* wrapped_nccl_function(void* real) noexcept;

// As the first, for an address that the driver gave for `symbol` (without version suffix), of the
// per-thread default stream's family or not: for drivers whose two ways of look-up give different
// addresses.
void* wrapped_driver_function(void* real, const char* symbol, bool per_thread) noexcept;

// Whether there is an intercepted function of this name to call, in a library that is loaded now.
// Where there is none, our own must not be found either: programs ask so for what their libraries
// can do. `version`: of the symbol, or nullptr.
bool driver_has(const char* name) noexcept;
bool runtime_has(const char* name, const char* version) noexcept;
bool nccl_has(const char* name) noexcept;

}  // namespace crossover
