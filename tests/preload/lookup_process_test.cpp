// SPDX-License-Identifier: Apache-2.0
// Look-ups beside other inhabitants of a process: other preloads, allocators, RUNPATHs, small
// thread-local storage. Runs with libcrossover.so preloaded; no device is needed.
#include <stdlib.h>

#include <filesystem>
#include <thread>
#include <vector>

#include "lookup_common.hpp"

using lookup::function;
using lookup::is_ours;
using lookup::library_of;
using lookup::open_library;

namespace {

TEST(K03, RepeatedLookUpsOnManyThreads) {
    void* const expected = dlsym(RTLD_NEXT, "open");
    ASSERT_NE(expected, nullptr);
    std::vector<std::thread> threads;
    std::vector<int> wrong(8, 0);
    for (int& each : wrong) {
        threads.emplace_back([&each, expected] {
            for (int round = 0; round < 1000; ++round) {
                each += dlsym(RTLD_NEXT, "open") == expected ? 0 : 1;
                each += dlsym(RTLD_DEFAULT, "dlsym") == dlsym(RTLD_DEFAULT, "dlsym") ? 0 : 1;
                each += dlvsym(RTLD_NEXT, "memcpy", "GLIBC_2.14") != nullptr ? 0 : 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_EQ(wrong, std::vector<int>(8, 0));
}

// It is asked as often as it would be without us, whether it comes before or behind us.
TEST(K03, ASecondPreloadThatWrapsDlsymSeesEachLookUp) {
    const auto seen = function<int (*)()>(RTLD_DEFAULT, "loader_dlsym_calls");
    void* driver = open_library("libcuda.so.1");
    const int before = seen();
    EXPECT_NE(dlsym(driver, "cuInit"), nullptr);
    EXPECT_EQ(seen(), before + 1);
    EXPECT_TRUE(dlsym(driver, "cuLaunchKernel") != nullptr);
    EXPECT_GE(seen(), before + 2);
    EXPECT_EQ(library_of(dlsym(driver, "cuLaunchKernel")), lookup::kOurs);
}

TEST(K09, NoLookUpAllocates) {
    const auto allocations = function<unsigned long (*)()>(RTLD_DEFAULT, "loader_allocations");
    void* driver = open_library("libcuda.so.1");
    const unsigned long before = allocations();
    void* const known = dlsym(driver, "cuLaunchKernel");
    void* const same = dlsym(driver, "cuLaunchKernel");
    void* const other = dlsym(driver, "cuInit");
    void* const next = dlsym(RTLD_NEXT, "open");
    void* const version = dlvsym(RTLD_NEXT, "memcpy", "GLIBC_2.14");
    const unsigned long after = allocations();
    EXPECT_TRUE(is_ours(known));
    EXPECT_EQ(known, same);
    EXPECT_TRUE(other != nullptr && next != nullptr && version != nullptr);
    EXPECT_EQ(after, before);
    std::vector<std::thread> threads;
    for (int index = 0; index < 8; ++index) {
        threads.emplace_back([] {
            for (int round = 0; round < 1000; ++round) {
                std::vector<char> block(static_cast<std::size_t>(round) + 1);
                block[0] = 1;
            }
        });
    }
    for (std::thread& thread : threads) {
        thread.join();
    }
    EXPECT_GT(allocations(), after) << "the allocator is not in use";
}

TEST(K10, ALibraryFindsOthersByItsOwnRunpath) {
    void* library = open_library(LOADER_FOLDER "libloader_runpath.so");
    EXPECT_EQ(function<int (*)()>(library, "through_runpath")(), 21);
}

// The loader has room for little initial-exec storage; ours must leave enough for all these.
TEST(K12, FortyLibrariesWithInitialExecStorage) {
    std::string folder = testing::TempDir() + "small_tls.XXXXXX";
    ASSERT_NE(mkdtemp(folder.data()), nullptr);
    for (int index = 0; index < 40; ++index) {
        const std::string copy = folder + "/lib" + std::to_string(index) + ".so";
        std::filesystem::copy_file(LOADER_FOLDER "libloader_small_tls.so", copy);
        void* library = dlopen(copy.c_str(), RTLD_NOW | RTLD_LOCAL);
        ASSERT_NE(library, nullptr) << index << ": " << dlerror();
        EXPECT_EQ(function<int (*)(int)>(library, "small_tls")(1), 2);
    }
    std::filesystem::remove_all(folder);
    Dl_info own{};
    ASSERT_NE(dladdr(dlsym(RTLD_DEFAULT, "dlsym"), &own), 0);
    void* again = dlopen(own.dli_fname, RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(again, nullptr) << dlerror();
    EXPECT_TRUE(is_ours(dlsym(again, "dlsym"))) << "once in the process, also as a plug-in";
}

}  // namespace
