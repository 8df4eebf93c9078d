/* SPDX-License-Identifier: Apache-2.0 */
/* How a program's kernels get their host versions on the virtual GPU.
 *
 * A plug-in is a shared library EXECUTABLE.simgpu.so beside the program (or named in SIMGPU_KERNELS) that
 * exports simgpu_kernels(). A kernel is found by its name in the program's device code: the plain name of an
 * extern "C" kernel, else the mangled name. A kernel without a host version runs as a timed no-op and is
 * reported once on stderr. Plug-ins know nothing of CUDA. */
#ifndef SIMGPU_KERNEL_PLUGIN_H
#define SIMGPU_KERNEL_PLUGIN_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

typedef struct SimgpuDim3 {
    uint32_t x, y, z;
} SimgpuDim3;

typedef struct SimgpuKernel {
    const char* name;
    /* Sizes in bytes of the parameters in order; parameter_count of them. The virtual GPU copies the values at
     * launch and passes pointers to the copies. */
    const size_t* parameter_sizes;
    size_t parameter_count;
    /* Does the kernel's work on host memory; called on the process's own executor thread, never twice at once. */
    void (*run)(SimgpuDim3 grid, SimgpuDim3 block, void** parameters);
    /* Device time in ns the kernel would take alone on the whole device; NULL: the default cost. */
    uint64_t (*cost_ns)(SimgpuDim3 grid, SimgpuDim3 block, void** parameters);
    /* Part of the multiprocessors it can use, (0, 1]; 0 means 1. */
    float sm_share;
} SimgpuKernel;

/* The plug-in's table; `count` receives its length. Lives as long as the plug-in is loaded. */
const SimgpuKernel* simgpu_kernels(size_t* count);

#ifdef __cplusplus
}
#endif
#endif
