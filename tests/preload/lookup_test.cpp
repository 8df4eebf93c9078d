// SPDX-License-Identifier: Apache-2.0
// Every way to look a function up gives the library's own, and nothing else is touched. Runs with
// libcrossover.so preloaded, against the virtual GPU's libraries; no device is needed.
#include <cuda.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>
#include <thread>
#include <vector>

#undef cuGetProcAddress

namespace {

constexpr const char* kDriverNames[] = {
#define CX_DRIVER(name, prototype) #name,
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
};
constexpr const char* kRuntimeNames[] = {
#define CX_RUNTIME(name, prototype) #name,
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
};
constexpr const char* kNcclNames[] = {
#define CX_NCCL(name) #name,
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
};

std::string library_of(void* function) {
    Dl_info info{};
    if (function == nullptr || dladdr(function, &info) == 0) {
        return "";
    }
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
}

void* open_library(const char* soname) {
    void* library = dlopen(soname, RTLD_LAZY | RTLD_LOCAL);
    EXPECT_NE(library, nullptr) << dlerror();
    return library;
}

using ProcAddressV2 = CUresult (*)(const char*, void**, int, cuuint64_t,
                                   CUdriverProcAddressQueryResult*);
using ProcAddressV1 = CUresult (*)(const char*, void**, int, cuuint64_t);

// Launches that the virtual GPU's driver does not have; tests/recorder/rows_test.cpp has them.
bool is_old_launch(const std::string& name) {
    return name == "cuLaunch" || name.rfind("cuLaunchGrid", 0) == 0 ||
           name == "cuLaunchCooperativeKernelMultiDevice";
}

TEST(Lookup, DlsymGivesOursForEveryRow) {
    for (const char* name : kDriverNames) {
        if (is_old_launch(name)) {
            EXPECT_EQ(dlsym(open_library("libcuda.so.1"), name), nullptr)
                << name << ": only what the driver has may be offered";
            continue;
        }
        EXPECT_EQ(library_of(dlsym(open_library("libcuda.so.1"), name)), "libcrossover.so") << name;
    }
    for (const char* name : kRuntimeNames) {
        EXPECT_EQ(library_of(dlsym(open_library("libcudart.so.13"), name)), "libcrossover.so")
            << name;
    }
    for (const char* name : kNcclNames) {
        EXPECT_EQ(library_of(dlsym(open_library("libnccl.so.2"), name)), "libcrossover.so") << name;
    }
}

TEST(Lookup, OtherNamesStayTheLibrarys) {
    void* driver = open_library("libcuda.so.1");
    for (const char* name : {"cuInit", "cuMemAlloc_v2", "cuStreamSynchronize", "cuEventQuery"}) {
        EXPECT_EQ(library_of(dlsym(driver, name)).substr(0, 10), "libcuda.so") << name;
    }
    EXPECT_EQ(dlsym(driver, "cuFooNew"), nullptr);
    EXPECT_EQ(library_of(dlsym(open_library("libnccl.so.2"), "pncclAllReduce")).substr(0, 10),
              "libnccl.so");
    EXPECT_EQ(library_of(dlsym(RTLD_DEFAULT, "printf")).substr(0, 7), "libc.so");
}

TEST(Lookup, GetProcAddressGivesOursAlsoThroughItself) {
    auto outer =
        reinterpret_cast<ProcAddressV2>(dlsym(open_library("libcuda.so.1"), "cuGetProcAddress_v2"));
    ASSERT_EQ(library_of(reinterpret_cast<void*>(outer)), "libcrossover.so");
    void* inner = nullptr;
    CUdriverProcAddressQueryResult status{};
    ASSERT_EQ(outer("cuGetProcAddress", &inner, 12000, CU_GET_PROC_ADDRESS_DEFAULT, &status),
              CUDA_SUCCESS);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SUCCESS);
    ASSERT_EQ(library_of(inner), "libcrossover.so") << "the self-look-up must not lose the process";
    auto look_up = reinterpret_cast<ProcAddressV2>(inner);
    for (const char* name : {"cuLaunchKernel", "cuLaunchKernelEx", "cuLaunchCooperativeKernel",
                             "cuGraphLaunch", "cuEventRecord", "cuStreamWaitEvent"}) {
        void* legacy = nullptr;
        void* per_thread = nullptr;
        ASSERT_EQ(look_up(name, &legacy, 12080, CU_GET_PROC_ADDRESS_LEGACY_STREAM, &status),
                  CUDA_SUCCESS)
            << name;
        ASSERT_EQ(look_up(name, &per_thread, 12080, CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM,
                          &status),
                  CUDA_SUCCESS)
            << name;
        EXPECT_EQ(library_of(legacy), "libcrossover.so") << name;
        EXPECT_EQ(library_of(per_thread), "libcrossover.so") << name;
        EXPECT_NE(legacy, per_thread) << name << ": the stream family must not be lost";
    }
}

TEST(Lookup, OldGetProcAddressOfElevenThreeToElevenEight) {
    auto outer =
        reinterpret_cast<ProcAddressV2>(dlsym(open_library("libcuda.so.1"), "cuGetProcAddress_v2"));
    void* inner = nullptr;
    ASSERT_EQ(outer("cuGetProcAddress", &inner, 11030, CU_GET_PROC_ADDRESS_DEFAULT, nullptr),
              CUDA_SUCCESS);
    ASSERT_EQ(library_of(inner), "libcrossover.so");
    void* launch = nullptr;
    ASSERT_EQ(reinterpret_cast<ProcAddressV1>(inner)("cuLaunchKernel", &launch, 11030, 0),
              CUDA_SUCCESS);
    EXPECT_EQ(library_of(launch), "libcrossover.so");
}

TEST(Lookup, AnErrorOfTheDriverIsPassedOn) {
    auto look_up =
        reinterpret_cast<ProcAddressV2>(dlsym(open_library("libcuda.so.1"), "cuGetProcAddress_v2"));
    void* function = nullptr;
    CUdriverProcAddressQueryResult status{};
    EXPECT_EQ(look_up("cuFooNew", &function, 12080, 0, &status), CUDA_ERROR_NOT_FOUND);
    EXPECT_EQ(status, CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND);
    EXPECT_EQ(function, nullptr);
}

TEST(Lookup, RepeatedPseudoHandleLookUpsAreNeverLost) {
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (std::size_t index = 0; index < wrong.size(); ++index) {
        threads.emplace_back([&, index] {
            for (int round = 0; round < 1000; ++round) {
                wrong[index] += dlsym(RTLD_NEXT, "open") == nullptr ? 1 : 0;
                wrong[index] += dlsym(RTLD_DEFAULT, "close") == nullptr ? 1 : 0;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

}  // namespace
