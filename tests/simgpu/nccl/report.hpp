// SPDX-License-Identifier: Apache-2.0
// Results and messages of the virtual GPU's libnccl: the last error's text, the NCCL_DEBUG output,
// the macro that defines an exported function. Nothing that knows communicators.
#pragma once

#include <nccl.h>

namespace simgpu::nccl {

// Keeps a message as the process's last error and prints it where NCCL_DEBUG asks for warnings.
__attribute__((format(printf, 1, 2))) void warn(const char* format, ...);
// The last message; valid until the calling thread asks again.
const char* last_error_text();
// Keeps a message without having to be an error of the calling thread; returns `result` for
// brevity.
__attribute__((format(printf, 2, 3))) ncclResult_t fail(ncclResult_t result, const char* format,
                                                        ...);
// ncclSuccess, or ncclUnhandledCudaError with the error as the message.
ncclResult_t cuda_result(cudaError_t error, const char* what);

}  // namespace simgpu::nccl

// Exports a function as the vendor does: `pncclX` strong, `ncclX` a weak alias of it. The body
// follows.
#define SIMGPU_NCCL_API(type, name, parameters)                                          \
    extern "C" {                                                                         \
    __attribute__((visibility("default"))) type p##name parameters;                      \
    __attribute__((visibility("default"), weak, alias("p" #name))) type name parameters; \
    }                                                                                    \
    type p##name parameters
