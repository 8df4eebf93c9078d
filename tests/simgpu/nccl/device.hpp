// SPDX-License-Identifier: Apache-2.0
// How libnccl of the virtual GPU reaches the driver: the private collective interface and the
// launch function, both found the way the real library finds its driver functions. No communicator
// logic here.
#pragma once

#include <cuda.h>
#include <cudaTypedefs.h>
#include <cuda_runtime_api.h>

#include "../client/collective.h"

namespace simgpu::nccl {

struct Device {
    PFN_cuLaunchKernelEx_v11060 launch_kernel_ex = nullptr;
    PFN_cuLibraryGetKernel_v12000 library_get_kernel = nullptr;
    PFN_cuKernelGetFunction_v12000 kernel_get_function = nullptr;
    CUlibrary kernels = nullptr;
    decltype(&simgpuCommInit) comm_init = nullptr;
    decltype(&simgpuCommAbort) comm_abort = nullptr;
    decltype(&simgpuCommDestroy) comm_destroy = nullptr;
    decltype(&simgpuDataDirectory) data_directory = nullptr;
};

// Null when there is no usable virtual GPU under this process; the reason is in last_error_text().
// Thread-safe; the first call loads.
const Device* device();

}  // namespace simgpu::nccl
