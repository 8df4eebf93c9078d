// SPDX-License-Identifier: Apache-2.0
// Modules, functions, launches, contexts: values at launch, both ways to pass them, handles, strict
// errors.

#include <thread>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

using LaunchTest = ContextTest;
const char kImage[] = "image";

TEST_F(LaunchTest, ParametersAreThoseOfTheCall) {
    const CUdeviceptr p = zeroed(1);
    CUdeviceptr target = p;
    int value = 5;
    int count = 1;
    unsigned cost = 10;
    const Gate gate;
    gate.hold(nullptr);
    void* parameters[] = {&target, &value, &count, &cost};
    ASSERT_CU(cuLaunchKernel(kernel("add"), 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    value = 100;  // the kernel has not run yet
    target = 0;
    gate.open();
    ASSERT_CU(cuStreamSynchronize(nullptr));
    EXPECT_EQ(read_ints(p, 1)[0], 5);
}

TEST_F(LaunchTest, PackedParametersAreReadByTheirAlignment) {
    const CUdeviceptr p = zeroed(8);
    struct Packed {
        char a;
        CUdeviceptr target;
        short b;
        double c;
        float d;
    } packed{7, p, 300, 2.5, 0.25F};
    std::size_t size = sizeof packed;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &packed, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    ASSERT_CU(cuLaunchKernel(kernel("mixed"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra));
    double result[4] = {};
    ASSERT_CU(cuMemcpyDtoH(result, p, sizeof result));
    EXPECT_EQ(result[0], 7);
    EXPECT_EQ(result[1], 300);
    EXPECT_EQ(result[2], 2.5);
    EXPECT_EQ(result[3], 0.25);
    size = 20;
    EXPECT_EQ(cuLaunchKernel(kernel("mixed"), 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, extra),
              CUDA_ERROR_INVALID_VALUE);
}

TEST_F(LaunchTest, TheKernelSeesGridAndBlockAndTheExFormIsTheSame) {
    CUdeviceptr p = zeroed(6);
    void* parameters[] = {&p};
    CUlaunchConfig config{};
    config.gridDimX = 2;
    config.gridDimY = 3;
    config.gridDimZ = 4;
    config.blockDimX = 5;
    config.blockDimY = 6;
    config.blockDimZ = 7;
    ASSERT_CU(cuLaunchKernelEx(&config, kernel("shape"), parameters, nullptr));
    EXPECT_EQ(read_ints(p, 6), (std::vector<int>{2, 3, 4, 5, 6, 7}));
}

TEST_F(LaunchTest, ShapesBeyondTheDeviceAreRefused) {
    CUdeviceptr p = zeroed(6);
    void* parameters[] = {&p};
    const CUfunction f = kernel("shape");
    EXPECT_EQ(cuLaunchKernel(f, 0, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1024, 2, 1, 0, nullptr, parameters, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 100'000, nullptr, parameters, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuFuncSetAttribute(f, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, 100'000));
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 100'000, nullptr, parameters, nullptr),
              CUDA_SUCCESS);
    EXPECT_EQ(cuLaunchKernel(f, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuLaunchCooperativeKernel(f, 1'000'000, 1, 1, 1, 1, 1, 0, nullptr, parameters),
              CUDA_ERROR_COOPERATIVE_LAUNCH_TOO_LARGE);
    EXPECT_EQ(cuLaunchCooperativeKernel(f, 132, 1, 1, 32, 1, 1, 0, nullptr, parameters),
              CUDA_SUCCESS);
}

TEST_F(LaunchTest, AKernelHandleServesAsAFunction) {
    CUlibrary library = nullptr;
    CUkernel handle = nullptr;
    CUfunction function = nullptr;
    ASSERT_CU(cuLibraryLoadData(&library, kImage, nullptr, nullptr, 0, nullptr, nullptr, 0));
    ASSERT_CU(cuLibraryGetKernel(&handle, library, "shape"));
    ASSERT_CU(cuKernelGetFunction(&function, handle));
    CUdeviceptr p = zeroed(6);
    void* parameters[] = {&p};
    const auto as_function = reinterpret_cast<CUfunction>(handle);
    ASSERT_CU(cuLaunchKernel(as_function, 9, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr));
    EXPECT_EQ(read_ints(p, 1)[0], 9);
    const char* name = nullptr;
    ASSERT_CU(cuFuncGetName(&name, as_function));
    EXPECT_STREQ(name, "shape");
    ASSERT_CU(cuKernelGetName(&name, handle));
    EXPECT_STREQ(name, "shape");
    ASSERT_CU(cuLibraryUnload(library));
    EXPECT_EQ(cuLaunchKernel(as_function, 1, 1, 1, 1, 1, 1, 0, nullptr, parameters, nullptr),
              CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuKernelGetFunction(&function, handle), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(LaunchTest, ModulesGiveFunctionsAndZeroedGlobals) {
    CUmodule module = nullptr;
    ASSERT_CU(cuModuleLoadData(&module, kImage));
    CUfunction a = nullptr;
    CUfunction b = nullptr;
    ASSERT_CU(cuModuleGetFunction(&a, module, "add"));
    ASSERT_CU(cuModuleGetFunction(&b, module, "add"));
    EXPECT_EQ(a, b);
    CUmodule owner = nullptr;
    ASSERT_CU(cuFuncGetModule(&owner, a));
    EXPECT_EQ(owner, module);
    CUdeviceptr global = 0;
    CUdeviceptr again = 0;
    std::size_t bytes = 0;
    ASSERT_CU(cuModuleGetGlobal(&global, &bytes, module, "table"));
    ASSERT_CU(cuModuleGetGlobal(&again, nullptr, module, "table"));
    EXPECT_EQ(global, again);
    EXPECT_EQ(read_ints(global, bytes / sizeof(int)), std::vector<int>(bytes / sizeof(int)));
    ASSERT_CU(cuModuleUnload(module));
    EXPECT_EQ(cuModuleGetFunction(&a, module, "add"), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuModuleLoad(&module, "no/such/file.cubin"), CUDA_ERROR_FILE_NOT_FOUND);
}

TEST_F(LaunchTest, AKernelWithoutHostVersionIsATimedNoOpReportedOnce) {
    testing::internal::CaptureStderr();
    const CUfunction f = kernel("no_such_kernel");
    CUevent begin = nullptr;
    CUevent end = nullptr;
    ASSERT_CU(cuEventCreate(&begin, 0));
    ASSERT_CU(cuEventCreate(&end, 0));
    ASSERT_CU(cuEventRecord(begin, nullptr));
    for (int i = 0; i < 2; ++i)
        ASSERT_CU(cuLaunchKernel(f, 1000, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr));
    ASSERT_CU(cuEventRecord(end, nullptr));
    ASSERT_CU(cuEventSynchronize(end));
    float ms = 0;
    ASSERT_CU(cuEventElapsedTime(&ms, begin, end));
    EXPECT_GE(ms, 0.010F);  // two times 5 us
    const std::string text = testing::internal::GetCapturedStderr();
    const std::size_t first = text.find("no_such_kernel");
    ASSERT_NE(first, std::string::npos);
    EXPECT_EQ(text.find("no_such_kernel", first + 1), std::string::npos);
}

TEST_F(LaunchTest, StreamsOfAnotherContextAreRefused) {
    CUcontext other = nullptr;
    CUstream theirs = nullptr;
    ASSERT_CU(cuCtxCreate(&other, nullptr, 0, 1));
    ASSERT_CU(cuStreamCreate(&theirs, 0));
    CUcontext popped = nullptr;
    ASSERT_CU(cuCtxPopCurrent(&popped));
    EXPECT_EQ(popped, other);
    const CUdeviceptr p = zeroed(1);
    EXPECT_EQ(launch_add(theirs, p, 1, 1, 1), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(cuCtxDestroy(other));
    EXPECT_EQ(cuStreamQuery(theirs), CUDA_ERROR_INVALID_HANDLE);
}

TEST_F(LaunchTest, AThreadWithoutContextGetsNothing) {
    const CUdeviceptr p = zeroed(1);
    std::thread([&] {
        CUstream s = nullptr;
        CUdevice device = -1;
        CUdeviceptr memory = 0;
        CUcontext current = context_;
        EXPECT_CU(cuCtxGetCurrent(&current));
        EXPECT_EQ(current, nullptr);
        EXPECT_EQ(cuCtxGetDevice(&device), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuStreamCreate(&s, 0), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuMemAlloc(&memory, 4), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(launch_add(nullptr, p, 1, 1, 1), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuStreamSynchronize(nullptr), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(cuCtxPopCurrent(&current), CUDA_ERROR_INVALID_CONTEXT);
    }).join();
}

TEST_F(LaunchTest, ContextsStackAndDie) {
    CUcontext second = nullptr;
    ASSERT_CU(cuCtxCreate(&second, nullptr, CU_CTX_SCHED_BLOCKING_SYNC, 2));
    CUdevice device = -1;
    unsigned flags = 0;
    ASSERT_CU(cuCtxGetDevice(&device));
    EXPECT_EQ(device, 2);
    ASSERT_CU(cuCtxGetFlags(&flags));
    EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_BLOCKING_SYNC));
    ASSERT_CU(cuCtxPushCurrent(context_));
    ASSERT_CU(cuCtxGetDevice(&device));
    EXPECT_EQ(device, 0);
    ASSERT_CU(cuCtxDestroy(second));  // below the top
    ASSERT_CU(cuCtxPopCurrent(nullptr));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuCtxDestroy(second), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    ASSERT_CU(cuCtxPopCurrent(nullptr));
    ASSERT_CU(cuCtxGetDevice(&device));
    EXPECT_EQ(device, 0);
}

TEST_F(LaunchTest, PrimaryContextsAreShared) {
    CUcontext a = nullptr;
    CUcontext b = nullptr;
    unsigned flags = 0;
    int active = -1;
    ASSERT_CU(cuDevicePrimaryCtxGetState(3, &flags, &active));
    EXPECT_EQ(active, 0);
    ASSERT_CU(cuDevicePrimaryCtxSetFlags(3, CU_CTX_SCHED_YIELD));
    ASSERT_CU(cuDevicePrimaryCtxRetain(&a, 3));
    ASSERT_CU(cuDevicePrimaryCtxRetain(&b, 3));
    EXPECT_EQ(a, b);
    ASSERT_CU(cuDevicePrimaryCtxGetState(3, &flags, &active));
    EXPECT_EQ(active, 1);
    EXPECT_EQ(flags, static_cast<unsigned>(CU_CTX_SCHED_YIELD));
    EXPECT_EQ(cuCtxDestroy(a), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuCtxPushCurrent(a));
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAlloc(&p, 4096));
    ASSERT_CU(cuDevicePrimaryCtxRelease(3));
    EXPECT_CU(cuCtxSynchronize());
    ASSERT_CU(cuDevicePrimaryCtxRelease(3));
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_CONTEXT_IS_DESTROYED);
    EXPECT_EQ(cuDevicePrimaryCtxRelease(3), CUDA_ERROR_INVALID_CONTEXT);
    ASSERT_CU(cuDevicePrimaryCtxRetain(&b, 3));
    EXPECT_EQ(a, b);
    EXPECT_CU(cuCtxSynchronize());
    std::size_t free = 0;
    std::size_t total = 0;
    ASSERT_CU(cuMemGetInfo(&free, &total));
    EXPECT_EQ(free, total);  // memory went with the context
    ASSERT_CU(cuCtxPopCurrent(nullptr));
    ASSERT_CU(cuDevicePrimaryCtxRelease(3));
    EXPECT_EQ(cuDevicePrimaryCtxRetain(&b, 4), CUDA_ERROR_INVALID_DEVICE);
}

TEST_F(LaunchTest, OccupancyFollowsTheBlock) {
    int blocks = 0;
    const CUfunction f = kernel("shape");
    ASSERT_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 256, 0));
    EXPECT_EQ(blocks, 8);
    ASSERT_CU(cuOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, f, 32, 0));
    EXPECT_EQ(blocks, 32);
    int grid = 0;
    int block = 0;
    ASSERT_CU(cuOccupancyMaxPotentialBlockSize(&grid, &block, f, nullptr, 0, 0));
    EXPECT_EQ(block, 1024);
    EXPECT_EQ(grid, 2 * 132);
}

}  // namespace
}  // namespace simgpu::test
