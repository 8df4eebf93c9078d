// SPDX-License-Identifier: Apache-2.0
// Every row of the driver's table on a driver that has all functions, the oldest included: found by
// name and by cuGetProcAddress it is the library's, and what the driver answers comes back
// untouched. Runs with libcrossover.so preloaded on the recording driver; nothing is launched.
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "tests/recorder/log.hpp"

namespace {

constexpr const char* kNames[] = {
#define CX_DRIVER(name, prototype) #name,
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
};
constexpr int kNotSupported = 801;  // what the recording driver answers to a launch

void* driver_function(const char* name) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_LOCAL);
    EXPECT_NE(driver, nullptr) << dlerror();
    return dlsym(driver, name);
}

template <class... Arguments>
int call(const char* name, Arguments... arguments) {
    return reinterpret_cast<int (*)(Arguments...)>(driver_function(name))(arguments...);
}

// Whether the driver's function was called. Not by whom: ours may end in a jump to it.
bool recorded(const std::string& name) {
    std::ifstream record(std::getenv("RECORDER_LOG"));
    for (std::string line; std::getline(record, line);) {
        if (line.rfind("call\t" + name + "\t", 0) == 0) {
            return true;
        }
    }
    return false;
}

TEST(Rows, EveryOneIsFoundByName) {
    for (const char* name : kNames) {
        const recorder::Owner owner = recorder::owner_of(driver_function(name));
        EXPECT_STREQ(owner.library, "libcrossover.so") << name;
        EXPECT_STREQ(owner.name, name);
    }
}

TEST(Rows, OldLaunchesAreFoundByGetProcAddress) {
    for (const char* name : {"cuLaunch", "cuLaunchGrid", "cuLaunchGridAsync",
                             "cuLaunchCooperativeKernelMultiDevice"}) {
        void* function = nullptr;
        ASSERT_EQ(
            call("cuGetProcAddress_v2", name, &function, 12000, 0UL, static_cast<int*>(nullptr)), 0)
            << name;
        const recorder::Owner owner = recorder::owner_of(function);
        EXPECT_STREQ(owner.library, "libcrossover.so") << name;
        EXPECT_STREQ(owner.name, name);
    }
}

TEST(Rows, OldLaunchesReachTheDriver) {
    void* const none = nullptr;
    alignas(8) char launch[256] = {};  // a CUDA_LAUNCH_PARAMS with all values 0
    EXPECT_EQ(call("cuLaunch", none), kNotSupported);
    EXPECT_TRUE(recorded("cuLaunch"));
    EXPECT_EQ(call("cuLaunchGrid", none, 2, 3), kNotSupported);
    EXPECT_TRUE(recorded("cuLaunchGrid"));
    EXPECT_EQ(call("cuLaunchGridAsync", none, 2, 3, none), kNotSupported);
    EXPECT_TRUE(recorded("cuLaunchGridAsync"));
    EXPECT_EQ(call("cuLaunchCooperativeKernelMultiDevice", static_cast<void*>(launch), 1U, 0U),
              kNotSupported);
    EXPECT_TRUE(recorded("cuLaunchCooperativeKernelMultiDevice"));
    EXPECT_EQ(call("cuLaunchCooperativeKernelMultiDevice", none, 0U, 0U), kNotSupported);
}

}  // namespace

int main(int count, char** arguments) {
    testing::InitGoogleTest(&count, arguments);
    char record[] = "recorder.XXXXXX";
    const int file = mkstemp(record);
    if (file < 0 || setenv("RECORDER_LOG", record, 1) != 0) {
        return 2;
    }
    const int result = RUN_ALL_TESTS();
    close(file);
    unlink(record);
    return result;
}
