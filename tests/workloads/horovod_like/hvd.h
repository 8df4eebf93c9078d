/* SPDX-License-Identifier: Apache-2.0 */
/* The C interface of libhvd.so: sums over ranks in the way of Horovod, for programs that load it
 * with dlopen. Everything else in the library, NCCL and the CUDA runtime included, is hidden. No
 * C++, no CUDA header. */
#ifndef HVD_H
#define HVD_H

#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct HvdConfig {
    int rank;
    int size;
    int device;          /* CUDA ordinal */
    const char* address; /* of rank 0's coordinator; read during hvd_init only */
    int port;
    double cycle_ms;       /* longest time between two negotiations */
    uint64_t fusion_bytes; /* most that is fused into one all-reduce */
    double timeout_s;      /* for the meeting of the ranks */
};

/* Rank 0, before hvd_init: a port on which its coordinator will answer, or -1. */
int hvd_open_coordinator(void);
/* Meets the other ranks and starts the library's threads. 0, or -1 with hvd_error(). */
int hvd_init(const struct HvdConfig* config);
/* Sums `count` floats at `data` (device memory) over the ranks in place, once what `stream` has
 * been given so far is done. Every rank uses the same names, each for one sum at a time. Returns at
 * once with a handle for hvd_synchronize, or -1. Any thread. */
int64_t hvd_allreduce_async(float* data, uint64_t count, const char* name, void* stream);
/* Blocks the calling thread until the sum is there. 0, or -1 with hvd_error(). Frees the handle. */
int hvd_synchronize(int64_t handle);
/* Ends the threads, on all ranks. All handles have been synchronised before. */
void hvd_shutdown(void);
/* Why the last call failed; valid until the next. */
const char* hvd_error(void);

#ifdef __cplusplus
}
#endif
#endif
