// SPDX-License-Identifier: Apache-2.0
// Modules, functions and the host versions of kernels. A module is an opaque image: any name asked
// of it exists.
#pragma once

#include "../kernel_plugin.h"
#include "stream.hpp"

namespace simgpu {

// A kernel's host version, from a plug-in (kernel_plugin.h).
struct HostKernel {
    SimgpuKernel description;
};

// The host version for a kernel's name; null when no plug-in has one. Loads the plug-ins at the
// first call.
const HostKernel* find_host_kernel(const std::string& name);

struct Launch {
    SimgpuDim3 grid;
    SimgpuDim3 block;
    std::size_t shared_bytes = 0;
    bool cooperative = false;
};
// A launch as a unit of work: checks the shape and copies the parameters' values. The lock is held.
CUresult kernel_work(Driver& d, CUfunction handle, const Launch& launch, void** values,
                     void** extra, Work* work);

// The function behind a CUfunction or a CUkernel that was cast to one; null when it is neither.
CUfunc_st* resolve_function(const Driver& d, CUfunction handle);

// The function of a name in a module, made at first use.
CUfunc_st* function_of(Driver& d, CUmodule module, const std::string& name);
// Forgets the modules of a context that goes away.
void drop_modules(Driver& d, CUcontext context);

}  // namespace simgpu
