// SPDX-License-Identifier: Apache-2.0
// What depends on the process: visible devices, a missing or dying server, fork, exit, signals.
// Each in a process of its own.

#include <sstream>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

class ProcessTest : public ::testing::Test {
  protected:
    static std::string kernels() { return std::string("SIMGPU_KERNELS=") + SIMGPU_TEST_KERNELS; }
    // The lines of `helper devices`; "init N" comes first.
    std::vector<std::string> devices(const std::vector<std::string>& variables) {
        const HelperResult result = run_helper({"devices"}, variables);
        EXPECT_EQ(result.status, 0) << result.output;
        std::vector<std::string> lines;
        std::istringstream stream(result.output);
        for (std::string line; std::getline(stream, line);) lines.push_back(line);
        return lines;
    }
};

TEST_F(ProcessTest, VisibleDevicesSelectAndReorder) {
    const std::vector<std::string> all = devices({});
    ASSERT_EQ(all.size(), 5U);
    EXPECT_EQ(all[0], "init 0");
    EXPECT_EQ(devices({}), all);  // identifiers do not change from process to process
    const std::string uuid3 = all[4].substr(0, all[4].find(' '));
    const std::string none = "init 100";
    using Lines = std::vector<std::string>;
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=2,0"}), (Lines{all[0], all[3], all[1]}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=" + uuid3 + ",1"}), (Lines{all[0], all[4], all[2]}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=" + uuid3.substr(0, 12)}), (Lines{all[0], all[4]}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=1,9,2"}),
              (Lines{all[0], all[2]}));  // up to the first invalid
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=1,-1,2"}), (Lines{all[0], all[2]}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=1,1"}), (Lines{none}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=GPU-"}), (Lines{none}));  // of all, so of none
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES="}), (Lines{none}));
    EXPECT_EQ(devices({"CUDA_VISIBLE_DEVICES=abc"}), (Lines{none}));
}

TEST_F(ProcessTest, WithoutAServerThereIsNoDevice) {
    EXPECT_EQ(devices({"SIMGPU_DIR!"}), std::vector<std::string>{"init 100"});
    EXPECT_EQ(devices({"SIMGPU_DIR=/nonexistent"}), std::vector<std::string>{"init 100"});
}

TEST_F(ProcessTest, MachinesHaveDevicesOfTheirOwn) {
    const Machine other(1);
    const std::vector<std::string> here = devices({});
    const std::vector<std::string> there = devices({"SIMGPU_DIR=" + other.dir()});
    ASSERT_EQ(there.size(), 2U);
    EXPECT_NE(there[1], here[1]);
}

TEST_F(ProcessTest, AnInstanceHasItsPartOfTheGpu) {
    const Machine whole(2);
    const Machine split(2, {"--mig", "4"});
    const auto first_of = [](const Machine& machine) {
        return run_helper({"first-device"}, {"SIMGPU_DIR=" + machine.dir()}).output;
    };
    EXPECT_EQ(first_of(whole),
              "2 devices, 132 multiprocessors, 81920 and 81920 MiB, 2, Crossover Virtual GPU\n");
    EXPECT_EQ(
        first_of(split),
        "1 devices, 33 multiprocessors, 20480 and 20480 MiB, 2, Crossover Virtual GPU MIG 1/4\n");
}

TEST_F(ProcessTest, AForkedChildIsRefusedAndHarmsNobody) {
    const HelperResult result = run_helper({"fork"}, {kernels()});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "children 20 value 20\n");
}

TEST_F(ProcessTest, TheServersDeathEndsEveryWait) {
    Machine own(1);
    const HelperResult result = run_helper({"server-death", std::to_string(own.server_pid())},
                                           {kernels(), "SIMGPU_DIR=" + own.dir()});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "sync 46 wait 46 launch 46 alloc 46 query 46\n");
}

TEST_F(ProcessTest, AProcessMayEndWithWorkInFlight) {
    const HelperResult result = run_helper({"exit-early"}, {kernels()});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "leaving\n");
}

TEST_F(ProcessTest, StreamMemoryOperationsCanBeMissing) {
    EXPECT_EQ(run_helper({"memory-operations"}, {kernels()}).output,
              "attributes 1 1 write 0 batch 0\n");
    EXPECT_EQ(run_helper({"memory-operations"}, {kernels(), "SIMGPU_STREAM_MEM_OPS=none"}).output,
              "attributes 0 0 write 801 batch 801\n");
}

TEST_F(ProcessTest, AFullStreamCanLockTheDriver) {
    EXPECT_EQ(run_helper({"full-queue"}, {kernels()}).output, "full 1 answered 1 then 1\n");
    EXPECT_EQ(run_helper({"full-queue"}, {kernels(), "SIMGPU_FULL_QUEUE=locks"}).output,
              "full 1 answered 0 then 1\n");
}

TEST_F(ProcessTest, TheDriversThreadsTakeNoSignals) {
    const HelperResult result = run_helper({"signals"}, {kernels()});
    EXPECT_EQ(result.status, 0);
    EXPECT_EQ(result.output, "taken 0\n");
}

}  // namespace
}  // namespace simgpu::test
