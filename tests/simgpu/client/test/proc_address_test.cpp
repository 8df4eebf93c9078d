// SPDX-License-Identifier: Apache-2.0
// cuGetProcAddress against dlsym: the same pointers, the right ABI by version, the right stream
// semantics by flag.

#include <dlfcn.h>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

void* exported(const char* symbol) {
    static void* const library = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return dlsym(library, symbol);
}

struct Found {
    CUresult result;
    void* function;
    CUdriverProcAddressQueryResult status;
};

Found look_up(const char* name, int version, cuuint64_t flags = CU_GET_PROC_ADDRESS_DEFAULT) {
    Found found{};
    found.function = &found;
    found.status = CU_GET_PROC_ADDRESS_SUCCESS;
    found.result = cuGetProcAddress(name, &found.function, version, flags, &found.status);
    return found;
}

struct Entry {
    const char* base;
    int version;
    const char* symbol;
    cuuint64_t flags;
};

const Entry kTable[] = {
#define SIMGPU_API(base, version, symbol) {#base, version, #symbol, CU_GET_PROC_ADDRESS_DEFAULT},
#define SIMGPU_API_STREAM(base, version, symbol, suffix, first_per_thread) \
    {#base, version, #symbol, CU_GET_PROC_ADDRESS_LEGACY_STREAM},          \
        {#base, first_per_thread, #symbol #suffix, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM},
#include "../api_table.def"
#undef SIMGPU_API
#undef SIMGPU_API_STREAM
};

TEST(ProcAddressTest, EveryRowIsExportedAndFoundUnderItsVersion) {
    for (const Entry& entry : kTable) {
        SCOPED_TRACE(entry.symbol);
        void* const symbol = exported(entry.symbol);
        EXPECT_NE(symbol, nullptr);
        const Found found = look_up(entry.base, entry.version, entry.flags);
        EXPECT_EQ(found.result, CUDA_SUCCESS);
        EXPECT_EQ(found.function, symbol);
        EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SUCCESS);
    }
}

TEST(ProcAddressTest, TheNewestAbiThatTheProgramKnows) {
    EXPECT_EQ(look_up("cuCtxCreate", 2000).function, exported("cuCtxCreate"));
    EXPECT_EQ(look_up("cuCtxCreate", 3020).function, exported("cuCtxCreate_v2"));
    EXPECT_EQ(look_up("cuCtxCreate", 12000).function, exported("cuCtxCreate_v3"));
    EXPECT_EQ(look_up("cuCtxCreate", 13000).function, exported("cuCtxCreate_v4"));
    EXPECT_EQ(look_up("cuEventElapsedTime", 12000).function, exported("cuEventElapsedTime"));
    EXPECT_EQ(look_up("cuEventElapsedTime", 13000).function, exported("cuEventElapsedTime_v2"));
    EXPECT_EQ(look_up("cuGetProcAddress", 11030).function, exported("cuGetProcAddress"));
    EXPECT_EQ(look_up("cuGetProcAddress", 12000).function, exported("cuGetProcAddress_v2"));
    EXPECT_EQ(look_up("cuStreamGetCaptureInfo", 13000).function,
              exported("cuStreamGetCaptureInfo_v3"));
}

TEST(ProcAddressTest, FlagsChooseTheDefaultStream) {
    constexpr cuuint64_t kPerThread = CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    EXPECT_EQ(look_up("cuLaunchKernel", 13000).function, exported("cuLaunchKernel"));
    EXPECT_EQ(look_up("cuLaunchKernel", 13000, kPerThread).function,
              exported("cuLaunchKernel_ptsz"));
    EXPECT_EQ(look_up("cuMemcpyHtoD", 13000, kPerThread).function,
              exported("cuMemcpyHtoD_v2_ptds"));
    EXPECT_EQ(look_up("cuMemAlloc", 13000, kPerThread).function, exported("cuMemAlloc_v2"));
    EXPECT_NE(exported("cuLaunchKernel"), exported("cuLaunchKernel_ptsz"));
}

TEST(ProcAddressTest, SaysWhyThereIsNothing) {
    Found found = look_up("cuNoSuchFunction", 13000);
    EXPECT_EQ(found.result, CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(found.function, nullptr);
    EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    found = look_up("cuLaunchKernelEx", 11000);
    EXPECT_EQ(found.result, CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(found.status, CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT);
    EXPECT_EQ(look_up("cuMemAlloc_v2", 13000).result,
              CUDA_ERROR_NOT_FOUND);  // asked for without suffix only
    EXPECT_EQ(look_up("cuMemAlloc", 13000, 8).result, CUDA_ERROR_INVALID_VALUE);
    void* function = nullptr;
    EXPECT_EQ(cuGetProcAddress(nullptr, &function, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress("cuInit", nullptr, 13000, 0, nullptr), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuGetProcAddress("cuInit", &function, 13000, 0, nullptr),
              CUDA_SUCCESS);  // status may be null
}

TEST(ProcAddressTest, TheOldFormTakesFourArguments) {
    using Old = CUresult (*)(const char*, void**, int, cuuint64_t);
    const auto old = reinterpret_cast<Old>(look_up("cuGetProcAddress", 11030).function);
    void* function = nullptr;
    EXPECT_CU(old("cuMemAlloc", &function, 11030, CU_GET_PROC_ADDRESS_DEFAULT));
    EXPECT_EQ(function, exported("cuMemAlloc_v2"));
    EXPECT_EQ(old("cuNoSuchFunction", &function, 11030, CU_GET_PROC_ADDRESS_DEFAULT),
              CUDA_ERROR_NOT_FOUND);
}

TEST(ProcAddressTest, NothingButTheDriverIsExported) {
    EXPECT_EQ(exported("_ZN6simgpu6driverEv"), nullptr);
    const CUuuid id{};
    const void* table = &id;
    EXPECT_EQ(cuGetExportTable(&table, &id), CUDA_ERROR_NOT_FOUND);
    const char* text = nullptr;
    EXPECT_CU(cuGetErrorName(CUDA_ERROR_STREAM_CAPTURE_IMPLICIT, &text));
    EXPECT_STREQ(text, "CUDA_ERROR_STREAM_CAPTURE_IMPLICIT");
    EXPECT_EQ(cuGetErrorString(static_cast<CUresult>(12345), &text), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(text, nullptr);
}

}  // namespace
}  // namespace simgpu::test
