// SPDX-License-Identifier: Apache-2.0
// Look-ups in drivers that behave as one or another has done: stand-ins for libcuda.so.1 in a
// folder each, of which LD_LIBRARY_PATH chooses one. Runs with libcrossover.so preloaded; no device
// is needed.
#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "lookup_common.hpp"

using lookup::function;
using lookup::is_ours;
using lookup::open_library;

namespace {

using LookUpV1 = int (*)(const char*, void**, int, unsigned long);
using LookUpV2 = int (*)(const char*, void**, int, unsigned long, int*);
using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void*, void**, void**);

constexpr unsigned long kLegacy = 1;
constexpr unsigned long kPerThread = 2;
enum Kind { kLegacyLaunches, kPerThreadLaunches, kLaterLaunches };

void* driver() { return open_library("libcuda.so.1"); }

int launches(Kind kind) { return function<int (*)(int)>(driver(), "loader_launches")(kind); }

int launch_with(void* address) {
    return reinterpret_cast<Launch>(address)(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr,
                                             nullptr);
}

TEST(K01, ByGetProcAddressBeforeInit) {
    const auto look_up = function<LookUpV2>(driver(), "cuGetProcAddress_v2");
    ASSERT_TRUE(is_ours(reinterpret_cast<void*>(look_up)));
    void* launch = nullptr;
    int status = -1;
    ASSERT_EQ(look_up("cuLaunchKernel", &launch, 12000, 0, &status), 0);
    EXPECT_EQ(status, 0);
    ASSERT_TRUE(is_ours(launch)) << "the process is lost";
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    void* missing = &missing;
    EXPECT_EQ(look_up("cuNoSuchFunction", &missing, 12000, 0, &status), 500);
    EXPECT_EQ(status, 1);
    EXPECT_EQ(missing, nullptr);
}

TEST(K02, GetProcAddressFindsItselfAgainAndAgain) {
    void* look_up = dlsym(driver(), "cuGetProcAddress_v2");
    for (int round = 0; round < 3; ++round) {
        void* inner = nullptr;
        int status = -1;
        ASSERT_EQ(
            reinterpret_cast<LookUpV2>(look_up)("cuGetProcAddress", &inner, 12000, 0, &status), 0);
        ASSERT_TRUE(is_ours(inner)) << "round " << round;
        look_up = inner;
    }
    void* old = nullptr;
    ASSERT_EQ(reinterpret_cast<LookUpV2>(look_up)("cuGetProcAddress", &old, 11030, 0, nullptr), 0);
    ASSERT_TRUE(is_ours(old));
    void* launch = nullptr;
    ASSERT_EQ(reinterpret_cast<LookUpV1>(old)("cuLaunchKernel", &launch, 11030, 0), 0);
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
}

TEST(K05, ADriverThatForwardsToAnotherFindsThatOne) {
    void* launch = dlsym(driver(), "cuLaunchKernel");
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    void* inner = open_library("libcuda_inner.so");
    EXPECT_FALSE(is_ours(dlsym(inner, "cuLaunchKernel"))) << "the handle decides";
    EXPECT_EQ(function<int (*)(int)>(inner, "loader_launches")(0), 1);
}

TEST(K06, ADriverThatLooksUpWhileItIsLoaded) {
    void* library = driver();
    const void* table = nullptr;
    const auto real = function<int (*)(const void**, const void*)>(library, "cuGetExportTable");
    EXPECT_FALSE(is_ours(reinterpret_cast<void*>(real))) << "not to be touched";
    ASSERT_EQ(real(&table, nullptr), 0);
    EXPECT_EQ(*static_cast<const int*>(table), 16);
    void* launch = dlsym(library, "cuLaunchKernel");
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
}

TEST(K13, ASymbolThatNobodyKnowsIsTheDrivers) {
    const auto foo = function<int (*)()>(driver(), "cuFooNew");
    EXPECT_FALSE(is_ours(reinterpret_cast<void*>(foo)));
    EXPECT_EQ(foo(), 77);
}

// This driver lacks most of what the library wraps. A program that asks must hear so.
TEST(K13, WhatTheDriverLacksIsNotFoundByAnyWay) {
    void* library = driver();
    for (const char* name :
         {"cuLaunchKernelEx", "cuGraphLaunch", "cudaLaunchKernel", "ncclAllReduce"}) {
        EXPECT_EQ(dlsym(library, name), nullptr) << name;
        EXPECT_NE(dlerror(), nullptr) << name;
        EXPECT_EQ(dlsym(RTLD_DEFAULT, name), nullptr) << name;
        EXPECT_NE(dlerror(), nullptr) << name;
        EXPECT_EQ(dlsym(dlopen(nullptr, RTLD_NOW), name), nullptr) << name;
        EXPECT_EQ(dlvsym(RTLD_DEFAULT, name, "libcudart.so.12"), nullptr) << name;
    }
    EXPECT_TRUE(is_ours(dlsym(RTLD_DEFAULT, "cuLaunchKernel"))) << "which the driver has";
}

TEST(K13, AFoundFunctionLeavesNoErrorBehind) {
    void* library = driver();
    dlerror();
    ASSERT_NE(dlsym(library, "cuLaunchKernel"), nullptr);
    EXPECT_EQ(dlerror(), nullptr) << "programs take that for a failure";
    ASSERT_NE(dlsym(RTLD_DEFAULT, "cuLaunchKernel"), nullptr);
    EXPECT_EQ(dlerror(), nullptr);
    ASSERT_NE(dlsym(library, "cuGetProcAddress_v2"), nullptr);
    EXPECT_EQ(dlerror(), nullptr);
}

TEST(K15, ADriverWithoutTheFiveArgumentForm) {
    void* library = driver();
    EXPECT_EQ(dlsym(library, "cuGetProcAddress_v2"), nullptr);
    EXPECT_EQ(dlsym(RTLD_DEFAULT, "cuGetProcAddress_v2"), nullptr);
    const auto look_up = function<LookUpV1>(library, "cuGetProcAddress");
    ASSERT_TRUE(is_ours(reinterpret_cast<void*>(look_up)));
    void* launch = nullptr;
    ASSERT_EQ(look_up("cuLaunchKernel", &launch, 11050, 0), 0);
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    void* inner = nullptr;
    ASSERT_EQ(look_up("cuGetProcAddress", &inner, 12000, 0), 0) << "the driver's answer";
    EXPECT_TRUE(is_ours(inner));
}

// A later release gives other functions for old names; taking them for the old ones is a crash.
TEST(K16, ALaterFormOfANameIsLeftAlone) {
    const auto look_up = function<LookUpV2>(driver(), "cuGetProcAddress_v2");
    void* now = nullptr;
    void* later = nullptr;
    int status = -1;
    ASSERT_EQ(look_up("cuLaunchKernel", &now, 13000, 0, &status), 0);
    EXPECT_TRUE(is_ours(now));
    ASSERT_EQ(look_up("cuLaunchKernel", &later, 14000, 0, &status), 0);
    EXPECT_FALSE(is_ours(later));
    EXPECT_EQ(reinterpret_cast<int (*)(int)>(later)(1), 5);
    ASSERT_EQ(look_up("cuEventRecord", &now, 13000, 0, &status), 0);
    EXPECT_TRUE(is_ours(now));
    ASSERT_EQ(look_up("cuEventRecord", &later, 14000, 0, &status), 0);
    EXPECT_EQ(reinterpret_cast<int (*)(int, int, int)>(later)(1, 2, 3), 6);
}

TEST(K16, ADriverWhoseTwoWaysOfLookUpDiffer) {
    const auto look_up = function<LookUpV2>(driver(), "cuGetProcAddress_v2");
    void* launch = nullptr;
    ASSERT_EQ(look_up("cuLaunchKernel", &launch, 12000, 0, nullptr), 0);
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    ASSERT_EQ(look_up("cuLaunchKernel", &launch, 12000, kPerThread, nullptr), 0);
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kPerThreadLaunches), 1);
}

TEST(K17, TheStreamFamilyIsKept) {
    const auto look_up = function<LookUpV2>(driver(), "cuGetProcAddress_v2");
    void* by_default = nullptr;
    void* legacy = nullptr;
    void* per_thread = nullptr;
    ASSERT_EQ(look_up("cuLaunchKernel", &by_default, 12000, 0, nullptr), 0);
    ASSERT_EQ(look_up("cuLaunchKernel", &legacy, 12000, kLegacy, nullptr), 0);
    ASSERT_EQ(look_up("cuLaunchKernel", &per_thread, 12000, kPerThread, nullptr), 0);
    EXPECT_EQ(by_default, legacy);
    ASSERT_TRUE(is_ours(legacy));
    ASSERT_TRUE(is_ours(per_thread));
    EXPECT_EQ(launch_with(legacy), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    EXPECT_EQ(launches(kPerThreadLaunches), 0);
    EXPECT_EQ(launch_with(per_thread), 0);
    EXPECT_EQ(launch_with(dlsym(driver(), "cuLaunchKernel_ptsz")), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
    EXPECT_EQ(launches(kPerThreadLaunches), 2);
}

// The library may have any path, be a link, or be replaced under a running program.
TEST(K04, ForwardersUnderOurPrefixAndALibraryWhoseFileIsGone) {
    if (const char* file = std::getenv("LOADER_REMOVES")) {
        ASSERT_TRUE(std::filesystem::remove(file)) << file;
    }
    void* handle = nullptr;
    const auto create = function<int (*)(void**)>(open_library("libcudnn_stub.so"), "cudnnCreate");
    EXPECT_FALSE(is_ours(reinterpret_cast<void*>(create)));
    EXPECT_EQ(create(&handle), 42);
    void* launch = dlsym(driver(), "cuLaunchKernel");
    ASSERT_TRUE(is_ours(launch));
    EXPECT_EQ(launch_with(launch), 0);
    EXPECT_EQ(launches(kLegacyLaunches), 1);
}

}  // namespace
