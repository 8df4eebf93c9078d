/* SPDX-License-Identifier: Apache-2.0 */
/* Private interface between the virtual GPU's libcuda.so.1 and its libnccl.so.2: communicators on
 * the device server, and kernel launches that are collectives. libnccl finds these functions with
 * dlsym() in libcuda.so.1; the launch itself goes through the public cuLaunchKernelEx, as NCCL's
 * own does. No product code may use it.
 *
 * How a launch becomes a collective: take a CUfunction from
 * simgpuCollectiveFunction("ncclDevKernel_..."), and pass it to cuLaunchKernelEx (or
 * cuLaunchKernel) with kernelParams == NULL and extra = {CU_LAUNCH_PARAM_BUFFER_POINTER,
 * &collective, CU_LAUNCH_PARAM_BUFFER_SIZE, &size, CU_LAUNCH_PARAM_END} where `collective` is a
 * SimgpuCollective and `size` its sizeof. The struct is copied; `user` is kept until release(user).
 * The same launch may be captured in a graph and then be submitted once per graph launch. */
#ifndef SIMGPU_COLLECTIVE_H
#define SIMGPU_COLLECTIVE_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define SIMGPU_COLLECTIVE_VERSION 2

/* The image (cuLibraryLoadData) whose kernels, whatever their names, are functions as
 * simgpuCollectiveFunction() gives them: for who finds its kernels by the public look-ups, as NCCL
 * does. */
#define SIMGPU_COLLECTIVE_IMAGE "simgpu collectives"

/* Results of the functions below. */
enum {
    SIMGPU_OK = 0,
    SIMGPU_DUPLICATE_DEVICE = 1, /* two ranks of the communicator on one device */
    SIMGPU_BAD_RANK = 2, /* rank taken twice, out of range, or ranks that disagree about the size */
    SIMGPU_ABORTED = 3,  /* *abort_flag became non-zero while waiting */
    SIMGPU_DEVICE_LOST = 4, /* no connection to the device server (any more) */
    SIMGPU_NOT_INITIALIZED =
        5,             /* cuInit has not succeeded in this process (also: in a forked child) */
    SIMGPU_INVALID = 6 /* bad argument */
};

/* One meeting of ranks; see protocol.hpp. */
typedef struct SimgpuRendezvous {
    uint64_t number;       /* number within the communicator */
    uint64_t link_bytes;   /* bytes over the link, algorithm factors included */
    uint32_t participants; /* ranks that must arrive */
    uint32_t reserved;
} SimgpuRendezvous;

/* One submission of a collective to the device: filled in by SimgpuCollective::prepare. */
typedef struct SimgpuSubmission {
    uint64_t comm; /* number from simgpuCommInit */
    uint32_t rank; /* this process's rank in it */
    uint32_t rendezvous_count;
    /* Read before prepare's caller returns to anybody else; may point into `instance`. With count 0
     * the launch is an ordinary kernel of `cost_ns` (callbacks are made all the same). */
    const SimgpuRendezvous* rendezvous;
    uint64_t cost_ns; /* only for rendezvous_count == 0; 0: the default kernel cost */
    float sm_share;   /* (0, 1]; 0: SIMGPU_NCCL_SM_SHARE, default 0.015 */
    uint32_t reserved;
    void* instance; /* handed to the callbacks */
    /* The operation has reached the head of its stream; everything before it in the stream has
     * taken effect. Copies the input into the exchange buffer. Runs on the process's executor
     * thread; peers cannot finish the collective before it returns. May be NULL. */
    void (*on_start)(void* instance);
    /* Every participant's on_start has returned, and the device is still at it: the time to make
     * the output, somewhere aside, so that on_done has little left to do. Runs on the executor
     * thread, at most once, before on_done. Where all arrive late it may not come. May be NULL. */
    void (*on_staged)(void* instance);
    /* The collective is over on all ranks (aborted == 0: every participant's on_start has
     * returned), or it was aborted, or the device server has died (aborted != 0; on_start may then
     * not have run). Produces the output and frees `instance`. Runs on the executor thread in
     * completion order, exactly once per successful prepare, before the program can see the launch
     * as complete. May be NULL. */
    void (*on_done)(void* instance, int aborted);
} SimgpuSubmission;

typedef struct SimgpuCollective {
    uint32_t version; /* SIMGPU_COLLECTIVE_VERSION */
    uint32_t reserved;
    void* user;
    /* Called at each submission to the device (a plain launch: inside cuLaunchKernelEx; a captured
     * one: inside each cuGraphLaunch), on the launching thread, in the order in which operations
     * enter the wire: assign rendezvous numbers here. *submission is zeroed before. Must not call
     * cu* functions, block or throw. Non-zero: refused, the launch fails with
     * CUDA_ERROR_LAUNCH_FAILED and no callback follows. */
    int (*prepare)(void* user, SimgpuSubmission* submission);
    /* No further prepare will come: after a plain launch's on_done (and before the
     * program can see it as complete), after the last graph and
     * executable graph that hold the launch are gone, or right away when the launch failed. Exactly
     * once per launch call with a valid SimgpuCollective; any thread. Must not call cu* functions.
     * May be NULL. */
    void (*release)(void* user);
} SimgpuCollective;

/* Joins communicator `key` (the hash of the unique id; the same on all ranks) as `rank` of `ranks`,
 * on the program's device ordinal `device`; ranks that name the same `host` may not share a device.
 * Blocks until all ranks have joined (as real NCCL does), *abort_flag is set to non-zero,
 * atomically (abort_flag may be NULL), or the server dies. SIMGPU_OK: *comm is the communicator's
 * number. Thread-safe. */
int simgpuCommInit(uint64_t key, uint32_t rank, uint32_t ranks, int device, uint64_t host,
                   const volatile uint32_t* abort_flag, uint64_t* comm);

/* Everything of the communicator in flight, on all ranks, completes as aborted, and this rank
 * leaves: no simgpuCommDestroy after it. A launch of it from then on fails with
 * CUDA_ERROR_LAUNCH_FAILED (after on_done with aborted != 0). SIMGPU_INVALID: not, or no longer, in
 * the communicator. Returns at once. Thread-safe. */
int simgpuCommAbort(uint64_t comm, uint32_t rank);

/* This rank leaves the communicator. Returns at once; the caller has waited for its own operations.
 * SIMGPU_INVALID: not, or no longer, in the communicator. Thread-safe. */
int simgpuCommDestroy(uint64_t comm, uint32_t rank);

/* Folder for exchange buffers, $SIMGPU_DIR/data (created when missing, mode 0700); NULL before
 * cuInit has succeeded. Never freed. */
const char* simgpuDataDirectory(void);

/* A CUfunction whose launches are collectives and which cuFuncGetName calls `kernel_name`: the same
 * handle for the same name, valid for the life of the process and in every context. NULL on a bad
 * name or lack of memory. */
void* simgpuCollectiveFunction(const char* kernel_name);

/* 1 when the physical devices behind two of this program's ordinals are the same, else 0; -1 for a
 * bad ordinal. */
int simgpuSameDevice(int a, int b);

#ifdef __cplusplus
}
#endif
#endif
