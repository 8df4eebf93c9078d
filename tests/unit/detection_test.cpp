// SPDX-License-Identifier: Apache-2.0
// Which launches are taken for communication, from each source and from several; handles that are
// used again. The driver's word on names is the test's.
#include "shim/gate/detection.hpp"

#include <gtest/gtest.h>

#include <map>
#include <optional>
#include <string>

#include "shim/gate/driver_device.hpp"

namespace crossover {

constinit std::atomic<std::uint32_t> attention_word{1};

namespace {

// What the driver calls the functions; empty: it cannot tell.
std::map<std::uintptr_t, std::string> names;

constexpr const char* kCollective = "ncclDevKernel_AllReduce_Sum_f32_RING_LL";
constexpr const char* kUnknown = "gen9_AllReduce";
constexpr const char* kUsers = "forward";

// Functions are known for the life of a process, so each test has its own.
std::uintptr_t fresh(const char* name) {
    static std::uintptr_t last = 0x1000;
    last += 0x10;
    if (name != nullptr) {
        names[last] = name;
    }
    return last;
}

}  // namespace

std::optional<KernelName> name_of_kernel(std::uintptr_t function) noexcept {
    const auto found = names.find(function);
    return found == names.end() ? std::nullopt : std::optional(kernel_name(found->second));
}

namespace {

TEST(Detection, ByName) {
    ThreadState thread;
    EXPECT_TRUE(is_communication(fresh(kCollective), thread));
    EXPECT_FALSE(is_communication(fresh(kUsers), thread));
    EXPECT_FALSE(is_communication(fresh(kUnknown), thread));
}

TEST(Detection, InsideOfNcclWhateverItsKernelsAreCalled) {
    ThreadState thread;
    const std::uintptr_t unknown = fresh(kUnknown);
    profiler_launch_began(thread);
    EXPECT_TRUE(is_communication(unknown, thread));
    EXPECT_TRUE(is_communication(0, thread));  // launched by way of a runtime
    EXPECT_FALSE(is_communication(fresh("_Z13oneRankReducePvS_mmb"), thread));
    profiler_launch_ended(thread);
    EXPECT_FALSE(is_communication(unknown, thread));
    EXPECT_FALSE(is_communication(0, thread));
}

// Between group start and end a program may launch kernels of its own.
TEST(Detection, ACallThatIsOnlyPreparedIsNotInside) {
    ThreadState thread;
    thread.nccl_depth = 1;
    EXPECT_FALSE(is_communication(fresh(kUsers), thread));
    EXPECT_TRUE(is_communication(fresh(kCollective), thread));
}

TEST(Detection, AnEndWithoutABeginningChangesNothing) {
    ThreadState thread;
    profiler_launch_ended(thread);
    EXPECT_EQ(thread.inside_nccl, 0U);
    EXPECT_FALSE(is_communication(fresh(kUsers), thread));
}

TEST(Detection, LearnsFromAReportAfterTheLaunch) {
    ThreadState thread;
    const std::uintptr_t unknown = fresh(kUnknown);
    const std::uintptr_t users = fresh(kUsers);
    EXPECT_FALSE(is_communication(unknown, thread));
    profiler_launch_was(thread);
    for (int i = 0; i < 3; ++i) {
        EXPECT_FALSE(is_communication(users, thread));
        EXPECT_TRUE(is_communication(unknown, thread));
        profiler_launch_was(thread);
    }
    // Known to all threads.
    ThreadState other;
    EXPECT_TRUE(is_communication(unknown, other));
}

TEST(Detection, UnlearnsWhatIsNotConfirmed) {
    ThreadState thread;
    const std::uintptr_t users = fresh(kUsers);
    EXPECT_FALSE(is_communication(users, thread));
    profiler_launch_was(thread);  // wrong, for whatever reason
    EXPECT_TRUE(is_communication(users, thread));
    EXPECT_FALSE(is_communication(users, thread));
    EXPECT_FALSE(is_communication(users, thread));
}

TEST(Detection, AReportMeansOneLaunchOnly) {
    ThreadState thread;
    const std::uintptr_t users = fresh(kUsers);
    EXPECT_FALSE(is_communication(users, thread));
    EXPECT_TRUE(is_communication(fresh(kCollective), thread));
    profiler_launch_was(thread);  // of the one known by its name
    EXPECT_FALSE(is_communication(users, thread));
}

// A launch that nobody looked at is not the last one that somebody did.
TEST(Detection, LearnsNothingWhileLaunchesNeedNoAttention) {
    ThreadState thread;
    const std::uintptr_t users = fresh(kUsers);
    EXPECT_FALSE(is_communication(users, thread));
    attention_word = 0;
    profiler_launch_was(thread);
    attention_word = 1;
    EXPECT_FALSE(is_communication(users, thread));
}

TEST(Detection, ByTheNameOfTheLookUpWhereTheDriverCannotTell) {
    ThreadState thread;
    const std::uintptr_t kernel = fresh(nullptr);
    const std::uintptr_t function = fresh(nullptr);
    EXPECT_FALSE(is_communication(function, thread));
    function_named(kernel, kCollective);
    EXPECT_TRUE(is_communication(kernel, thread));
    function_same(function, kernel);
    EXPECT_TRUE(is_communication(function, thread));
    functions_lost();  // some other module's
    EXPECT_TRUE(is_communication(function, thread));
    function_named(function, kUsers);  // the handle is used again
    EXPECT_FALSE(is_communication(function, thread));
    function_named(0, kCollective);
    function_named(function, nullptr);
    EXPECT_FALSE(is_communication(function, thread));
}

TEST(Detection, ALookUpForgetsNothingThatWasLearned) {
    ThreadState thread;
    const std::uintptr_t unknown = fresh(kUnknown);
    EXPECT_FALSE(is_communication(unknown, thread));
    profiler_launch_was(thread);
    function_named(unknown, kUnknown);  // NCCL looks its kernels up again and again
    EXPECT_TRUE(is_communication(unknown, thread));
}

TEST(Detection, AHandleThatIsUsedAgainIsAskedForAgain) {
    ThreadState thread;
    const std::uintptr_t function = fresh(kCollective);
    const std::uintptr_t learned = fresh(kUnknown);
    EXPECT_TRUE(is_communication(function, thread));
    EXPECT_FALSE(is_communication(learned, thread));
    profiler_launch_was(thread);
    functions_lost();
    names[function] = kUsers;
    names[learned] = kUsers;
    EXPECT_FALSE(is_communication(function, thread));
    EXPECT_FALSE(is_communication(learned, thread));
}

TEST(Detection, CallsAddUpUntilALaunchCarriesThem) {
    ThreadState thread;
    profiler_call(thread, 7, 100, 1);
    profiler_call(thread, 7, 20, 1);
    EXPECT_EQ(thread.call.bytes, 120U);
    const CollectiveCall first = thread.call;
    profiler_launch_began(thread);
    profiler_launch_ended(thread);
    profiler_call(thread, 7, 100, 1);
    profiler_call(thread, 7, 20, 1);
    EXPECT_EQ(thread.call.bytes, 120U);
    EXPECT_EQ(thread.call.communicator, first.communicator);
    EXPECT_EQ(thread.call.operation, first.operation);
}

TEST(Detection, ACallThatIsInterceptedIsNotTakenTwice) {
    ThreadState thread;
    thread.nccl_depth = 1;
    thread.call.bytes = 100;
    profiler_call(thread, 7, 100, 1);
    EXPECT_EQ(thread.call.bytes, 100U);
}

}  // namespace
}  // namespace crossover
