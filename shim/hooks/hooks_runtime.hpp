// SPDX-License-Identifier: Apache-2.0
// Names of the runtime wrappers. hooks_runtime.cpp is compiled once for each way to a runtime
// (RuntimeWay); all but the unversioned wrappers have names of their own. No behaviour here.
#pragma once

#include "shim/real_runtime.hpp"

#define CX_RUNTIME_NAME(name, way) crossover_##way##_##name

extern "C" {
#define CX_RUNTIME(name, prototype)                   \
    decltype(::prototype) CX_RUNTIME_NAME(name, 100); \
    decltype(::prototype) CX_RUNTIME_NAME(name, 101); \
    decltype(::prototype) CX_RUNTIME_NAME(name, 102); \
    decltype(::prototype) CX_RUNTIME_NAME(name, 103);
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
}
