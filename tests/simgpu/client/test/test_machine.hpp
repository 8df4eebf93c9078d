// SPDX-License-Identifier: Apache-2.0
// For the tests of libcuda.so.1: a private virtual machine (device server) for a test process, and
// a context in it. No assertion about CUDA here.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <sys/types.h>

#include <string>
#include <vector>

namespace simgpu::test {

// Starts a device server in a folder of its own; ends and removes both. Failure to start throws.
class Machine {
  public:
    explicit Machine(int devices, std::vector<std::string> options = {});
    ~Machine();
    Machine(const Machine&) = delete;
    Machine& operator=(const Machine&) = delete;
    const std::string& dir() const { return dir_; }
    pid_t server_pid() const { return server_; }

  private:
    void stop();
    std::string dir_;
    pid_t server_ = -1;
};

// The machine this test process uses: SIMGPU_DIR and the kernels are set, cuInit has succeeded.
Machine& machine();

// A current context of its own on device 0 for each test.
class ContextTest : public ::testing::Test {
  protected:
    void SetUp() override;
    void TearDown() override;
    CUcontext context_ = nullptr;
};

// Kernels of the tests' plug-in (test_kernels.cpp). Each waits for nothing.
CUfunction kernel(const char* name);
// p[i] += value for i < count; takes `cost_us` of device time.
CUresult launch_add(CUstream stream, CUdeviceptr p, int value, int count, unsigned cost_us);
// p[0] = p[0] * factor + value: shows in which order launches took effect.
CUresult launch_affine(CUstream stream, CUdeviceptr p, int factor, int value, unsigned cost_us);

// Holds streams until it is opened: makes order independent of how fast the test itself runs.
class Gate {
  public:
    Gate();
    void hold(CUstream stream) const;
    void open() const;
    CUdeviceptr address() const { return address_; }

  private:
    CUdeviceptr address_ = 0;
};

CUdeviceptr zeroed(std::size_t ints);
std::vector<int> read_ints(CUdeviceptr p, std::size_t count);

// Runs the helper program in a process of its own with the given variables on top of the
// environment ("NAME=value", or "NAME!" to unset one); gives its output, and its exit status or
// -signal.
struct HelperResult {
    int status;
    std::string output;
};
HelperResult run_helper(const std::vector<std::string>& arguments,
                        const std::vector<std::string>& variables);

}  // namespace simgpu::test

#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)
