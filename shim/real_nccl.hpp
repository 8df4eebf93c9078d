// SPDX-License-Identifier: Apache-2.0
// The real NCCL: a typed pointer for every row of intercepts_nccl.def, found under its pncclX name,
// which NCCL exports for exactly this purpose.
#pragma once

#include <nccl.h>

namespace crossover {

struct RealNccl {
#define CX_NCCL(name) decltype(&::name) name = nullptr;
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
};

// The NCCL that code at `caller` would have called without us: libnccl.so.2, or a copy inside the
// library that uses it. nullptr while there is none. Any thread, no lock.
const RealNccl* real_nccl(const void* caller) noexcept;

}  // namespace crossover
