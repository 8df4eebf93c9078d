// SPDX-License-Identifier: Apache-2.0
// Defines an exported function and its per-thread-default-stream twin in one go. Inside the
// expression, kDefault is what the stream handle 0 means under the name that was called.
#pragma once

#include "driver.hpp"

#define SIMGPU_TWINS(name, suffix, parameters, expression)                    \
    SIMGPU_EXPORT CUresult CUDAAPI name parameters {                          \
        [[maybe_unused]] constexpr auto kDefault = DefaultStream::kLegacy;    \
        return expression;                                                    \
    }                                                                         \
    SIMGPU_EXPORT CUresult CUDAAPI name##suffix parameters {                  \
        [[maybe_unused]] constexpr auto kDefault = DefaultStream::kPerThread; \
        return expression;                                                    \
    }
#define SIMGPU_PTSZ(name, parameters, expression) SIMGPU_TWINS(name, _ptsz, parameters, expression)
#define SIMGPU_PTDS(name, parameters, expression) SIMGPU_TWINS(name, _ptds, parameters, expression)
