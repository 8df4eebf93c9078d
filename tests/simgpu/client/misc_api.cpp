// SPDX-License-Identifier: Apache-2.0
// Error names and texts, the profiler's switches and the export table, which the virtual GPU does
// not have.

#include "driver.hpp"

#include <cudaProfiler.h>

namespace {

struct ErrorRow {
    CUresult code;
    const char* name;
    const char* text;
};

#define SIMGPU_ERROR(code, text) {code, #code, text},
constexpr ErrorRow kErrors[] = {
#include "errors.def"
};
#undef SIMGPU_ERROR

const ErrorRow* find_error(CUresult code) {
    for (const ErrorRow& row : kErrors)
        if (row.code == code) return &row;
    return nullptr;
}

}  // namespace

SIMGPU_EXPORT CUresult CUDAAPI cuGetErrorName(CUresult code, const char** name) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorRow* const row = find_error(code);
    *name = row != nullptr ? row->name : nullptr;
    return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMGPU_EXPORT CUresult CUDAAPI cuGetErrorString(CUresult code, const char** text) {
    if (text == nullptr) return CUDA_ERROR_INVALID_VALUE;
    const ErrorRow* const row = find_error(code);
    *text = row != nullptr ? row->text : nullptr;
    return row != nullptr ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

SIMGPU_EXPORT CUresult CUDAAPI cuGetExportTable(const void** table, const CUuuid*) {
    if (table != nullptr) *table = nullptr;
    return CUDA_ERROR_NOT_FOUND;
}

SIMGPU_EXPORT CUresult CUDAAPI cuProfilerStart() {
    return simgpu::call([](simgpu::Driver&, auto&) { return CUDA_SUCCESS; });
}
SIMGPU_EXPORT CUresult CUDAAPI cuProfilerStop() {
    return simgpu::call([](simgpu::Driver&, auto&) { return CUDA_SUCCESS; });
}
