// SPDX-License-Identifier: Apache-2.0
// What a program is started with: LD_PRELOAD, job name, environment.
#include "launch.hpp"

#include <gtest/gtest.h>

#include "command.hpp"

namespace crossover::command {
namespace {

constexpr const char* kLibrary = "/opt/lib/libcrossover.so";

std::string composed(std::string_view existing) { return compose_preload(existing, kLibrary); }

TEST(Preload, IsAddedOnceAndKeepsOthers) {
    EXPECT_EQ(composed(""), kLibrary);
    EXPECT_EQ(composed("/a.so"), "/opt/lib/libcrossover.so:/a.so");
    EXPECT_EQ(composed("/a.so /b.so::/c.so "), "/opt/lib/libcrossover.so:/a.so:/b.so:/c.so");
    EXPECT_EQ(composed(composed("/a.so")), composed("/a.so")) << "idempotent";
}

TEST(Preload, StandsBehindSanitizerRuntimesThatStandFirst) {
    EXPECT_EQ(composed("/usr/lib/libasan.so.8"), "/usr/lib/libasan.so.8:/opt/lib/libcrossover.so");
    EXPECT_EQ(composed("libtsan.so.2:/a.so"), "libtsan.so.2:/opt/lib/libcrossover.so:/a.so");
    EXPECT_EQ(composed("/x/libclang_rt.asan-x86_64.so:/usr/libubsan.so.1"),
              "/x/libclang_rt.asan-x86_64.so:/usr/libubsan.so.1:/opt/lib/libcrossover.so");
    EXPECT_EQ(composed("/a.so:/usr/lib/libasan.so.8"),
              "/opt/lib/libcrossover.so:/a.so:/usr/lib/libasan.so.8");
    EXPECT_EQ(composed(composed("/usr/lib/libasan.so.8")), composed("/usr/lib/libasan.so.8"));
}

TEST(Preload, ReplacesAnotherBuildOfTheLibrary) {
    EXPECT_EQ(composed("/a.so:/old/libcrossover.so:/b.so"), "/a.so:/opt/lib/libcrossover.so:/b.so");
    EXPECT_EQ(composed("/old/libcrossover.so:/b.so:/opt/lib/libcrossover.so"),
              "/opt/lib/libcrossover.so:/b.so");
}

TEST(Preload, RefusesAPathThatCannotBeExpressed) {
    EXPECT_THROW(compose_preload("", "/my lib/libcrossover.so"), UsageError);
    EXPECT_THROW(compose_preload("", "/a:b/libcrossover.so"), UsageError);
}

TEST(JobName, IsTheCommandsBaseNameAndASuffix) {
    EXPECT_EQ(job_name("/usr/bin/torchrun", "a1b2c3"), "torchrun-a1b2c3");
    EXPECT_EQ(job_name("my job;x", "1"), "my_job_x-1");
    const std::string longest = job_name(std::string(200, 'x'), "a1b2c3");
    EXPECT_EQ(longest.size(), 47U);
    EXPECT_TRUE(longest.ends_with("x-a1b2c3"));
}

TEST(EnvironmentList, SetsAndRemovesByName) {
    Environment environment({"A=1", "AB=2", "odd", "A=3"});
    EXPECT_EQ(environment.get("A"), "1");
    EXPECT_EQ(environment.get("AB"), "2");
    EXPECT_EQ(environment.get("odd"), std::nullopt);
    EXPECT_EQ(environment.get("B"), std::nullopt);
    environment.set("A", "9");
    environment.set("C", "");
    EXPECT_EQ(environment.entries(), (std::vector<std::string>{"A=9", "AB=2", "odd", "C="}));
    environment.remove("AB");
    EXPECT_EQ(environment.get("AB"), std::nullopt);
    const std::vector<char*> pointers = environment.pointers();
    ASSERT_EQ(pointers.size(), 4U);
    EXPECT_STREQ(pointers[0], "A=9");
    EXPECT_EQ(pointers[3], nullptr);
}

TEST(Launch, NamesAJobThatHasNoName) {
    const Environment environment =
        launch_environment(Environment({"HOME=/h"}), {}, kLibrary, "/bin/train", "c0ffee");
    EXPECT_EQ(environment.get("CROSSOVER_JOB"), "train-c0ffee");
    EXPECT_EQ(environment.get("LD_PRELOAD"), kLibrary);
    EXPECT_EQ(environment.get("HOME"), "/h");
    EXPECT_EQ(environment.get("CROSSOVER"), std::nullopt) << "defaults stay the library's";
}

TEST(Launch, LeavesTheNamingToALauncherThatIsThere) {
    const Environment environment =
        launch_environment(Environment({"MASTER_ADDR=h", "MASTER_PORT=1", "WORLD_SIZE=2"}), {},
                           kLibrary, "/bin/train", "c0ffee");
    EXPECT_EQ(environment.get("CROSSOVER_JOB"), std::nullopt);
}

TEST(Launch, AnOptionStandsOverTheEnvironment) {
    const Environment environment = launch_environment(
        Environment({"CROSSOVER_JOB=old", "CROSSOVER_LEASE_MS=9", "LD_PRELOAD=/a.so"}),
        {{"CROSSOVER_JOB", "new"}, {"CROSSOVER", "observe"}}, kLibrary, "train", "1");
    EXPECT_EQ(environment.get("CROSSOVER_JOB"), "new");
    EXPECT_EQ(environment.get("CROSSOVER"), "observe");
    EXPECT_EQ(environment.get("CROSSOVER_LEASE_MS"), "9");
    EXPECT_EQ(environment.get("LD_PRELOAD"), "/opt/lib/libcrossover.so:/a.so");
}

TEST(Launch, ABadVariableIsTheUsersMistake) {
    try {
        launch_environment(Environment({"CROSSOVER_LEASE_MS=soon"}), {}, kLibrary, "train", "1");
        FAIL() << "accepted";
    } catch (const UsageError& error) {
        const std::string text = error.what();
        EXPECT_NE(text.find("CROSSOVER_LEASE_MS"), std::string::npos) << text;
        EXPECT_NE(text.find("soon"), std::string::npos) << text;
        EXPECT_NE(text.find("10000"), std::string::npos) << text;
    }
}

}  // namespace
}  // namespace crossover::command
