// SPDX-License-Identifier: Apache-2.0
// Messages of the virtual GPU's libnccl. Nothing that knows communicators.
#include "report.hpp"

#include <strings.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <string>

namespace simgpu::nccl {
namespace {

std::mutex mutex;
std::string& last() {
    static std::string* const text = new std::string;
    return *text;
}

bool prints_warnings() {
    static const bool prints = [] {
        const char* const level = std::getenv("NCCL_DEBUG");
        return level && (strcasecmp(level, "WARN") == 0 || strcasecmp(level, "INFO") == 0 ||
                         strcasecmp(level, "TRACE") == 0);
    }();
    return prints;
}

void report(const char* format, std::va_list arguments) {
    char line[512];
    std::vsnprintf(line, sizeof(line), format, arguments);
    const std::lock_guard lock(mutex);
    last() = line;
    if (prints_warnings()) {
        std::fprintf(stderr, "NCCL WARN %s\n", line);
    }
}

}  // namespace

void warn(const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report(format, arguments);
    va_end(arguments);
}

const char* last_error_text() {
    thread_local std::string copy;
    const std::lock_guard lock(mutex);
    copy = last();
    return copy.c_str();
}

ncclResult_t fail(ncclResult_t result, const char* format, ...) {
    std::va_list arguments;
    va_start(arguments, format);
    report(format, arguments);
    va_end(arguments);
    return result;
}

ncclResult_t cuda_result(cudaError_t error, const char* what) {
    return error == cudaSuccess
               ? ncclSuccess
               : fail(ncclUnhandledCudaError, "%s: %s", what, cudaGetErrorString(error));
}

}  // namespace simgpu::nccl

SIMGPU_NCCL_API(const char*, ncclGetLastError, (ncclComm_t)) {
    return simgpu::nccl::last_error_text();
}

SIMGPU_NCCL_API(const char*, ncclGetErrorString, (ncclResult_t result)) {
    switch (result) {
        case ncclSuccess:
            return "no error";
        case ncclUnhandledCudaError:
            return "unhandled cuda error (run with NCCL_DEBUG=INFO for details)";
        case ncclSystemError:
            return "unhandled system error (run with NCCL_DEBUG=INFO for details)";
        case ncclInternalError:
            return "internal error (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidArgument:
            return "invalid argument (run with NCCL_DEBUG=WARN for details)";
        case ncclInvalidUsage:
            return "invalid usage (run with NCCL_DEBUG=WARN for details)";
        case ncclRemoteError:
            return "remote process exited or there was a network error";
        case ncclInProgress:
            return "NCCL operation in progress";
        default:
            return "unknown result code";
    }
}
