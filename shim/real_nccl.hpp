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

// The table of the NCCL library in the process; nullptr while there is none.
const RealNccl* real_nccl() noexcept;

}  // namespace crossover
