// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress, from the one table of exported functions (api_table.def). The rows are also
// checked against the vendor's typedefs, so that a symbol, its version and its signature cannot
// drift apart.

#include <cstring>
#include <string_view>
#include <type_traits>

#include "driver.hpp"
#include "module.hpp"

// Last: it spells names that cuda.h defines as macros.
#include <cudaProfilerTypedefs.h>
#include <cudaTypedefs.h>

namespace {

enum class StreamKind { kAny, kLegacy, kPerThread };

struct Row {
    std::string_view base;  // the name a program asks for
    int version;            // CUDA version that brought this ABI, as in 11030
    StreamKind stream;
    void* function;
};

#define SIMGPU_API(base, version, symbol) \
    static_assert(std::is_same_v<decltype(&symbol), PFN_##base##_v##version>, #symbol);
#define SIMGPU_API_STREAM(base, version, symbol, suffix, first_per_thread)                   \
    static_assert(std::is_same_v<decltype(&symbol), PFN_##base##_v##version>, #symbol);      \
    static_assert(                                                                           \
        std::is_same_v<decltype(&symbol##suffix), PFN_##base##_v##first_per_thread##suffix>, \
        #symbol);
#include "api_table.def"
#undef SIMGPU_API
#undef SIMGPU_API_STREAM

#define SIMGPU_API(base, version, symbol) \
    {#base, version, StreamKind::kAny, reinterpret_cast<void*>(&symbol)},
#define SIMGPU_API_STREAM(base, version, symbol, suffix, first_per_thread)   \
    {#base, version, StreamKind::kLegacy, reinterpret_cast<void*>(&symbol)}, \
        {#base, first_per_thread, StreamKind::kPerThread,                    \
         reinterpret_cast<void*>(&symbol##suffix)},
const Row kRows[] = {
#include "api_table.def"
};
#undef SIMGPU_API
#undef SIMGPU_API_STREAM

CUresult find(const char* name, void** function, int version, cuuint64_t flags,
              CUdriverProcAddressQueryResult* status) {
    constexpr cuuint64_t kKnown =
        CU_GET_PROC_ADDRESS_LEGACY_STREAM | CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (name == nullptr || function == nullptr || (flags & ~kKnown) != 0 || flags == kKnown)
        return CUDA_ERROR_INVALID_VALUE;
    const StreamKind avoid = (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0
                                 ? StreamKind::kLegacy
                                 : StreamKind::kPerThread;
    const Row* best = nullptr;
    bool known = false;
    for (const Row& row : kRows) {
        if (row.base != name || row.stream == avoid) continue;
        known = true;
        if (row.version <= version && (best == nullptr || row.version > best->version)) best = &row;
    }
    *function = best != nullptr ? best->function : nullptr;
    if (status != nullptr)
        *status = best != nullptr ? CU_GET_PROC_ADDRESS_SUCCESS
                  : known         ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                  : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
    return best != nullptr ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

}  // namespace

SIMGPU_EXPORT CUresult CUDAAPI cuGetProcAddress(const char* name, void** function, int version,
                                                cuuint64_t flags) {
    return find(name, function, version, flags, nullptr);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGetProcAddress_v2(const char* name, void** function, int version,
                                                   cuuint64_t flags,
                                                   CUdriverProcAddressQueryResult* status) {
    return find(name, function, version, flags, status);
}
