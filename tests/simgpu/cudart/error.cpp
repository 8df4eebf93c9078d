// SPDX-License-Identifier: Apache-2.0
// Error queries and texts of the virtual GPU's CUDA runtime. Texts are for people; programs compare
// the codes.
#include "runtime.hpp"

using simgpu::cudart::last_error;

namespace {

struct ErrorText {
    cudaError_t code;
    const char* name;
    const char* text;
};

constexpr ErrorText kTexts[] = {
#define SIMGPU_ERROR(code, text) {code, #code, text},
#include "errors.def"
#undef SIMGPU_ERROR
};

const ErrorText* find(cudaError_t code) {
    for (const ErrorText& entry : kTexts) {
        if (entry.code == code) {
            return &entry;
        }
    }
    return nullptr;
}

}  // namespace

extern "C" cudaError_t cudaGetLastError(void) { return last_error(true); }

extern "C" cudaError_t cudaPeekAtLastError(void) { return last_error(false); }

extern "C" const char* cudaGetErrorName(cudaError_t error) {
    const ErrorText* const entry = find(error);
    return entry ? entry->name : "unrecognized error code";
}

extern "C" const char* cudaGetErrorString(cudaError_t error) {
    const ErrorText* const entry = find(error);
    return entry ? entry->text : "unrecognized error code";
}
