// SPDX-License-Identifier: Apache-2.0
// The virtual GPU's CUDA runtime as a program compiled by nvcc sees it. Stream ordering rules
// themselves are the driver's and tested there.
#include <cuda.h>
#include <cuda_runtime_api.h>
#include <dlfcn.h>
#include <gtest/gtest.h>

#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>
#include <vector>

#include "kernels.hpp"

namespace simgpu::test {
namespace {

#define EXPECT_CUDA(call) EXPECT_EQ(cudaSuccess, (call))
#define ASSERT_CUDA(call) ASSERT_EQ(cudaSuccess, (call))

std::vector<int> sequence(int count) {
    std::vector<int> values(static_cast<std::size_t>(count));
    std::iota(values.begin(), values.end(), 0);
    return values;
}

class Cudart : public testing::Test {
  protected:
    static constexpr int kCount = 1000;

    void SetUp() override {
        void* pointer = nullptr;
        ASSERT_CUDA(cudaMalloc(&pointer, kCount * sizeof(int)));
        data_ = static_cast<int*>(pointer);
        ASSERT_CUDA(cudaMemset(data_, 0, kCount * sizeof(int)));
        ASSERT_CUDA(cudaStreamCreateWithFlags(&stream_, cudaStreamNonBlocking));
    }
    void TearDown() override {
        EXPECT_CUDA(cudaStreamDestroy(stream_));
        EXPECT_CUDA(cudaFree(data_));
    }
    std::vector<int> read() {
        std::vector<int> values(kCount);
        EXPECT_CUDA(cudaMemcpyAsync(values.data(), data_, kCount * sizeof(int),
                                    cudaMemcpyDeviceToHost, stream_));
        EXPECT_CUDA(cudaStreamSynchronize(stream_));
        return values;
    }

    int* data_ = nullptr;
    cudaStream_t stream_ = nullptr;
};

TEST_F(Cudart, EveryWayToLaunchRunsTheKernel) {
    int count = kCount;
    int factor = 3;
    void* arguments[] = {&data_, &count, &factor};
    std::vector<int> want(kCount);
    const auto step = [&] {
        for (int i = 0; i < kCount; ++i) {
            want[static_cast<std::size_t>(i)] = want[static_cast<std::size_t>(i)] * factor + i;
        }
    };
    launch_scale(data_, kCount, 3, stream_);
    EXPECT_CUDA(cudaGetLastError());
    step();
    EXPECT_EQ(want, read());
    EXPECT_CUDA(cudaLaunchKernel(scale_kernel(), dim3(16), dim3(64), arguments, 0, stream_));
    // Values count as they were at the launch.
    factor = 5;
    EXPECT_CUDA(
        cudaLaunchCooperativeKernel(scale_kernel(), dim3(16), dim3(64), arguments, 0, stream_));
    factor = 3;
    step();
    factor = 5;
    step();
    EXPECT_EQ(want, read());
    cudaLaunchConfig_t config{};
    config.gridDim = dim3(16);
    config.blockDim = dim3(64);
    config.stream = stream_;
    EXPECT_CUDA(cudaLaunchKernelExC(&config, scale_kernel(), arguments));
    step();
    EXPECT_EQ(want, read());
    cudaKernel_t kernel = nullptr;
    ASSERT_CUDA(cudaGetKernel(&kernel, scale_kernel()));
    EXPECT_CUDA(cudaLaunchKernel(reinterpret_cast<const void*>(kernel), dim3(16), dim3(64),
                                 arguments, 0, stream_));
    step();
    EXPECT_EQ(want, read());
    const char* name = nullptr;
    EXPECT_CUDA(cudaFuncGetName(&name, scale_kernel()));
    EXPECT_STREQ("cudart_test_scale", name);
}

TEST_F(Cudart, KernelsAreFoundByMangledName) {
    void* pointer = nullptr;
    ASSERT_CUDA(cudaMallocManaged(&pointer, sizeof(double), cudaMemAttachGlobal));
    auto* const value = static_cast<double*>(pointer);
    *value = 1.5;
    launch_add(value, 2.25, stream_);
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_EQ(3.75, *value);
    EXPECT_CUDA(cudaFree(pointer));
}

TEST_F(Cudart, ErrorsStayWithTheirThread) {
    int unknown = 0;
    EXPECT_EQ(cudaErrorInvalidDeviceFunction,
              cudaLaunchKernel(&unknown, dim3(1), dim3(1), nullptr, 0, stream_));
    std::thread([] { EXPECT_CUDA(cudaPeekAtLastError()); }).join();
    EXPECT_EQ(cudaErrorInvalidDeviceFunction, cudaPeekAtLastError());
    EXPECT_EQ(cudaErrorInvalidDeviceFunction, cudaGetLastError());
    EXPECT_CUDA(cudaGetLastError());
    // A bad size shows in the last error alone: triple chevrons return nothing.
    launch_scale(data_, 0, 1, stream_);
    EXPECT_EQ(cudaErrorInvalidConfiguration, cudaGetLastError());
    EXPECT_EQ(cudaErrorInvalidMemcpyDirection,
              cudaMemcpy(data_, data_, 4, static_cast<cudaMemcpyKind>(9)));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaSetDevice(99));
    EXPECT_EQ(cudaErrorInvalidDevice, cudaGetLastError());
    EXPECT_STREQ("cudaErrorInvalidDevice", cudaGetErrorName(cudaErrorInvalidDevice));
    EXPECT_STREQ("invalid device ordinal", cudaGetErrorString(cudaErrorInvalidDevice));
    EXPECT_STREQ("unrecognized error code", cudaGetErrorName(static_cast<cudaError_t>(12345)));
}

TEST_F(Cudart, DevicesBelongToThreads) {
    int count = 0;
    ASSERT_CUDA(cudaGetDeviceCount(&count));
    ASSERT_EQ(2, count);
    ASSERT_CUDA(cudaSetDevice(1));
    std::thread([] {
        int device = -1;
        EXPECT_CUDA(cudaGetDevice(&device));
        EXPECT_EQ(0, device);
    }).join();
    int device = -1;
    EXPECT_CUDA(cudaGetDevice(&device));
    EXPECT_EQ(1, device);
    EXPECT_CUDA(cudaSetDevice(0));
    cudaDeviceProp properties{};
    ASSERT_CUDA(cudaGetDeviceProperties(&properties, 1));
    int processors = 0;
    EXPECT_CUDA(cudaDeviceGetAttribute(&processors, cudaDevAttrMultiProcessorCount, 1));
    EXPECT_GT(processors, 0);
    EXPECT_EQ(processors, properties.multiProcessorCount);
    EXPECT_EQ(9, properties.major);
    int can = 0;
    EXPECT_CUDA(cudaDeviceCanAccessPeer(&can, 0, 1));
    EXPECT_EQ(1, can);
    char bus[32] = {};
    EXPECT_CUDA(cudaDeviceGetPCIBusId(bus, sizeof(bus), 1));
    EXPECT_CUDA(cudaDeviceGetByPCIBusId(&device, bus));
    EXPECT_EQ(1, device);
}

TEST_F(Cudart, EventsTimeAndOrderStreams) {
    cudaEvent_t begin = nullptr;
    cudaEvent_t end = nullptr;
    ASSERT_CUDA(cudaEventCreate(&begin));
    ASSERT_CUDA(cudaEventCreate(&end));
    cudaStream_t other = nullptr;
    ASSERT_CUDA(cudaStreamCreateWithPriority(&other, cudaStreamNonBlocking, -1));
    EXPECT_CUDA(cudaEventRecord(begin, stream_));
    launch_long(stream_);
    EXPECT_CUDA(cudaEventRecord(end, stream_));
    EXPECT_CUDA(cudaStreamWaitEvent(other, end, 0));
    EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(other));
    EXPECT_EQ(cudaErrorNotReady, cudaEventQuery(end));
    EXPECT_CUDA(cudaStreamSynchronize(other));
    EXPECT_CUDA(cudaEventQuery(end));
    float ms = 0.0F;
    EXPECT_CUDA(cudaEventElapsedTime(&ms, begin, end));
    EXPECT_GE(ms, 20.0F);
    cudaGetLastError();
    int priority = 0;
    EXPECT_CUDA(cudaStreamGetPriority(other, &priority));
    EXPECT_EQ(-1, priority);
    EXPECT_CUDA(cudaEventDestroy(begin));
    EXPECT_CUDA(cudaEventDestroy(end));
    EXPECT_CUDA(cudaStreamDestroy(other));
}

TEST_F(Cudart, HostFunctionsRunInStreamOrder) {
    std::vector<int> order;
    const auto first = [](void* data) { static_cast<std::vector<int>*>(data)->push_back(1); };
    launch_long(stream_);
    EXPECT_CUDA(cudaLaunchHostFunc(stream_, first, &order));
    EXPECT_CUDA(cudaStreamAddCallback(
        stream_,
        [](cudaStream_t, cudaError_t status, void* data) {
            static_cast<std::vector<int>*>(data)->push_back(status == cudaSuccess ? 2 : -1);
        },
        &order, 0));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_EQ((std::vector<int>{1, 2}), order);
    EXPECT_EQ(cudaErrorInvalidValue, cudaStreamAddCallback(stream_, nullptr, nullptr, 0));
}

TEST_F(Cudart, CaptureReplays) {
    cudaGraph_t graph = nullptr;
    cudaGraphExec_t exec = nullptr;
    ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    cudaStreamCaptureStatus status{};
    EXPECT_CUDA(cudaStreamIsCapturing(stream_, &status));
    EXPECT_EQ(cudaStreamCaptureStatusActive, status);
    launch_scale(data_, kCount, 1, stream_);
    ASSERT_CUDA(cudaStreamEndCapture(stream_, &graph));
    EXPECT_EQ(std::vector<int>(kCount), read());
    ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
    for (int i = 0; i < 3; ++i) {
        EXPECT_CUDA(cudaGraphLaunch(exec, stream_));
    }
    std::vector<int> want = sequence(kCount);
    for (int& value : want) {
        value *= 3;
    }
    EXPECT_EQ(want, read());
    EXPECT_CUDA(cudaGraphExecDestroy(exec));
    EXPECT_CUDA(cudaGraphDestroy(graph));
}

TEST_F(Cudart, UnsafeCallsInvalidateACapture) {
    ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeGlobal));
    EXPECT_EQ(cudaErrorStreamCaptureUnsupported, cudaDeviceSynchronize());
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaErrorStreamCaptureInvalidated, cudaStreamEndCapture(stream_, &graph));
    EXPECT_EQ(nullptr, graph);
    cudaGetLastError();
    // Under a relaxed thread the same kind of call is allowed.
    ASSERT_CUDA(cudaStreamBeginCapture(stream_, cudaStreamCaptureModeRelaxed));
    void* pointer = nullptr;
    EXPECT_CUDA(cudaMalloc(&pointer, 16));
    EXPECT_CUDA(cudaStreamEndCapture(stream_, &graph));
    EXPECT_CUDA(cudaGraphDestroy(graph));
    EXPECT_CUDA(cudaFree(pointer));
    cudaStreamCaptureMode mode = cudaStreamCaptureModeRelaxed;
    EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(cudaStreamCaptureModeGlobal, mode);
    EXPECT_CUDA(cudaThreadExchangeStreamCaptureMode(&mode));
    EXPECT_EQ(cudaStreamCaptureModeRelaxed, mode);
}

TEST_F(Cudart, VariablesAreReachedBySymbol) {
    const int values[] = {1, 2, 3, 4};
    std::size_t size = 0;
    EXPECT_CUDA(cudaGetSymbolSize(&size, device_table()));
    EXPECT_EQ(8 * sizeof(int), size);
    EXPECT_CUDA(cudaMemcpyToSymbol(device_table(), values, sizeof(values), 2 * sizeof(int),
                                   cudaMemcpyHostToDevice));
    std::vector<int> got(8, -1);
    EXPECT_CUDA(cudaMemcpyFromSymbol(got.data(), device_table(), 8 * sizeof(int), 0,
                                     cudaMemcpyDeviceToHost));
    EXPECT_EQ((std::vector<int>{0, 0, 1, 2, 3, 4, 0, 0}), got);
    EXPECT_EQ(cudaErrorInvalidValue, cudaMemcpyToSymbol(device_table(), values, sizeof(values),
                                                        5 * sizeof(int), cudaMemcpyHostToDevice));
    EXPECT_EQ(cudaErrorInvalidSymbol, cudaGetSymbolSize(&size, values));
}

TEST_F(Cudart, MemoryKindsAndCopies) {
    const std::vector<int> values = sequence(kCount);
    EXPECT_CUDA(cudaMemcpy(data_, values.data(), kCount * sizeof(int), cudaMemcpyDefault));
    EXPECT_EQ(values, read());
    // Every second int of four rows.
    std::vector<int> column(8, -1);
    EXPECT_CUDA(cudaMemcpy2D(column.data(), 2 * sizeof(int), data_, 10 * sizeof(int), sizeof(int),
                             4, cudaMemcpyDeviceToHost));
    EXPECT_EQ((std::vector<int>{0, -1, 10, -1, 20, -1, 30, -1}), column);
    EXPECT_CUDA(cudaMemset2DAsync(data_, 10 * sizeof(int), 0, sizeof(int), 4, stream_));
    const std::vector<int> after = read();
    EXPECT_EQ(0, after[30]);
    EXPECT_EQ(31, after[31]);
    EXPECT_EQ(40, after[40]);
    cudaPointerAttributes attributes{};
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, data_));
    EXPECT_EQ(cudaMemoryTypeDevice, attributes.type);
    EXPECT_EQ(0, attributes.device);
    int local = 0;
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, &local));
    EXPECT_EQ(cudaMemoryTypeUnregistered, attributes.type);
    void* host = nullptr;
    ASSERT_CUDA(cudaMallocHost(&host, 64));
    EXPECT_CUDA(cudaPointerGetAttributes(&attributes, host));
    EXPECT_EQ(cudaMemoryTypeHost, attributes.type);
    EXPECT_CUDA(cudaFreeHost(host));
    void* async = nullptr;
    ASSERT_CUDA(cudaMallocAsync(&async, 64, stream_));
    EXPECT_CUDA(cudaMemsetAsync(async, 1, 64, stream_));
    EXPECT_CUDA(cudaFreeAsync(async, stream_));
    EXPECT_CUDA(cudaStreamSynchronize(stream_));
    EXPECT_CUDA(cudaFree(nullptr));
    EXPECT_EQ(cudaErrorInvalidValue, cudaFree(&local));
    EXPECT_EQ(cudaErrorMemoryAllocation, cudaMalloc(&host, std::size_t{1} << 50));
}

TEST_F(Cudart, AttributesAndOccupancy) {
    cudaFuncAttributes attributes{};
    ASSERT_CUDA(cudaFuncGetAttributes(&attributes, scale_kernel()));
    EXPECT_EQ(1024, attributes.maxThreadsPerBlock);
    int blocks = 0;
    EXPECT_CUDA(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, scale_kernel(), 256, 0));
    EXPECT_GE(blocks, 1);
    EXPECT_CUDA(
        cudaFuncSetAttribute(scale_kernel(), cudaFuncAttributeMaxDynamicSharedMemorySize, 1024));
    cudaFunction_t function = nullptr;
    EXPECT_CUDA(cudaGetFuncBySymbol(&function, scale_kernel()));
    EXPECT_NE(nullptr, function);
}

TEST_F(Cudart, DriverEntryPointsFollowTheDefaultStream) {
    const auto find = [](const char* name, unsigned long long flags,
                         cudaDriverEntryPointQueryResult* status) {
        void* pointer = nullptr;
        EXPECT_CUDA(cudaGetDriverEntryPointByVersion(name, &pointer, 12000, flags, status));
        return pointer;
    };
    cudaDriverEntryPointQueryResult status{};
    void* const legacy = find("cuLaunchKernel", cudaEnableDefault, &status);
    EXPECT_EQ(cudaDriverEntryPointSuccess, status);
    EXPECT_EQ(legacy, find("cuLaunchKernel", cudaEnableLegacyStream, &status));
    void* const per_thread = find("cuLaunchKernel", cudaEnablePerThreadDefaultStream, &status);
    EXPECT_NE(nullptr, per_thread);
    EXPECT_NE(legacy, per_thread);
    void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(nullptr, library);
    EXPECT_EQ(dlsym(library, "cuLaunchKernel"), legacy);
    EXPECT_EQ(dlsym(library, "cuLaunchKernel_ptsz"), per_thread);
    EXPECT_EQ(nullptr, find("cuNoSuchFunction", cudaEnableDefault, &status));
    EXPECT_EQ(cudaDriverEntryPointSymbolNotFound, status);
}

TEST_F(Cudart, ResetEndsTheContextAndTheNextCallMakesAnother) {
    EXPECT_CUDA(cudaSetDevice(1));
    void* pointer = nullptr;
    EXPECT_CUDA(cudaMalloc(&pointer, 64));
    EXPECT_CUDA(cudaDeviceReset());
    EXPECT_CUDA(cudaMalloc(&pointer, 64));
    EXPECT_CUDA(cudaFree(pointer));
    EXPECT_CUDA(cudaSetDevice(0));
}

TEST(Releases, EachHasItsNameVersionAndLayout) {
    int version = 0;
    EXPECT_CUDA(cudaRuntimeGetVersion(&version));
    EXPECT_EQ(CUDART_VERSION, version);
    int driver = 0;
    EXPECT_CUDA(cudaDriverGetVersion(&driver));
    EXPECT_GE(driver, version);
    void* const older = dlopen("libcudart.so.12", RTLD_NOW | RTLD_LOCAL);
    ASSERT_NE(nullptr, older) << dlerror();
    EXPECT_NE(nullptr, dlvsym(older, "cudaLaunchKernel", "libcudart.so.12"));
    EXPECT_EQ(nullptr, dlvsym(older, "cudaLaunchKernel", "libcudart.so.13"));
    void* const newer = dlopen("libcudart.so.13", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(nullptr, newer);
    EXPECT_NE(nullptr, dlvsym(newer, "cudaLaunchKernel", "libcudart.so.13"));
    const auto get_version =
        reinterpret_cast<cudaError_t (*)(int*)>(dlsym(older, "cudaRuntimeGetVersion"));
    ASSERT_NE(nullptr, get_version);
    EXPECT_CUDA(get_version(&version));
    EXPECT_EQ(12080, version);
    // Release 12 has clock rates in the middle, so compute capability stands elsewhere than in
    // release 13.
    const auto properties =
        reinterpret_cast<cudaError_t (*)(void*, int)>(dlsym(older, "cudaGetDeviceProperties_v2"));
    ASSERT_NE(nullptr, properties);
    constexpr std::size_t kSize = 1032;
    constexpr std::size_t kMajorOffset = 360;
    std::vector<char> buffer(kSize + 64, 0x5a);
    EXPECT_CUDA(properties(buffer.data(), 0));
    int major = 0;
    std::memcpy(&major, buffer.data() + kMajorOffset, sizeof(major));
    EXPECT_EQ(9, major);
    EXPECT_EQ(std::vector<char>(64, 0x5a), std::vector<char>(buffer.begin() + kSize, buffer.end()));
}

}  // namespace
}  // namespace simgpu::test
