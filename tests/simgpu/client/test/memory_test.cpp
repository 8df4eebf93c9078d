// SPDX-License-Identifier: Apache-2.0
// Memory: allocation and its limits, copies, fills, pools, pointer attributes.

#include <cstring>
#include <numeric>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

class MemoryTest : public ContextTest {
  protected:
    std::size_t used() {
        std::size_t free = 0;
        std::size_t total = 0;
        EXPECT_CU(cuMemGetInfo(&free, &total));
        return total - free;
    }
};

TEST_F(MemoryTest, CopiesRoundTrip) {
    std::vector<int> out(1000);
    std::iota(out.begin(), out.end(), 5);
    const std::size_t bytes = out.size() * sizeof(int);
    CUdeviceptr a = 0;
    CUdeviceptr b = 0;
    ASSERT_CU(cuMemAlloc(&a, bytes));
    ASSERT_CU(cuMemAlloc(&b, bytes));
    EXPECT_EQ(a % 512, 0U);
    ASSERT_CU(cuMemcpyHtoD(a, out.data(), bytes));
    ASSERT_CU(cuMemcpyDtoD(b, a, bytes));
    EXPECT_EQ(read_ints(b, out.size()), out);
    std::vector<int> back(out.size());
    ASSERT_CU(cuMemcpy(reinterpret_cast<CUdeviceptr>(back.data()), b, bytes));
    EXPECT_EQ(back, out);
}

TEST_F(MemoryTest, PageableSourcesAreStagedAtTheCall) {
    CUstream s = nullptr;
    ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr p = zeroed(1);
    const Gate gate;
    gate.hold(s);
    int value = 42;
    ASSERT_CU(cuMemcpyHtoDAsync(p, &value, sizeof value, s));
    value = 43;
    gate.open();
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(read_ints(p, 1)[0], 42);
}

TEST_F(MemoryTest, PinnedSourcesAreReadWhenTheCopyRuns) {
    CUstream s = nullptr;
    ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr p = zeroed(1);
    const Gate gate;
    void* host = nullptr;
    ASSERT_CU(cuMemHostAlloc(&host, sizeof(int), 0));
    *static_cast<int*>(host) = 42;
    gate.hold(s);
    ASSERT_CU(cuMemcpyHtoDAsync(p, host, sizeof(int), s));
    *static_cast<int*>(host) = 43;
    gate.open();
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(read_ints(p, 1)[0], 43);
    ASSERT_CU(cuMemFreeHost(host));
}

TEST_F(MemoryTest, PageableDestinationsAreThereAtTheReturn) {
    CUstream s = nullptr;
    ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr p = zeroed(1);
    ASSERT_CU(launch_add(s, p, 9, 1, 20'000));
    int value = 0;
    ASSERT_CU(cuMemcpyDtoHAsync(&value, p, sizeof value, s));
    EXPECT_EQ(value, 9);
}

TEST_F(MemoryTest, RangesBeyondAnAllocationAreRefused) {
    const CUdeviceptr p = zeroed(4);
    int values[8] = {};
    EXPECT_EQ(cuMemcpyHtoD(p, values, 32), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyDtoH(values, p + 12, 8), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemcpyHtoD(reinterpret_cast<CUdeviceptr>(values), values, 4),
              CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD32(p, 1, 5), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemsetD32(p + 2, 1, 1), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFree(p + 4), CUDA_ERROR_INVALID_VALUE);
    EXPECT_EQ(cuMemFreeHost(reinterpret_cast<void*>(p)), CUDA_ERROR_INVALID_VALUE);
    EXPECT_CU(cuMemFree(p));
    EXPECT_EQ(cuMemFree(p), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, FillsOfEveryWidth) {
    const CUdeviceptr p = zeroed(8);
    ASSERT_CU(cuMemsetD8(p, 0x11, 4));
    ASSERT_CU(cuMemsetD16(p + 4, 0x2233, 2));
    ASSERT_CU(cuMemsetD32(p + 8, 0x44556677, 1));
    ASSERT_CU(cuMemsetD2D8(p + 16, 8, 0x7f, 2, 2));
    const std::vector<int> expected = {0x11111111, 0x22332233, 0x44556677, 0, 0x7f7f, 0, 0x7f7f, 0};
    EXPECT_EQ(read_ints(p, 8), expected);
}

TEST_F(MemoryTest, RectanglesKeepTheirPitch) {
    CUdeviceptr p = 0;
    std::size_t pitch = 0;
    ASSERT_CU(cuMemAllocPitch(&p, &pitch, 12, 3, 4));
    EXPECT_EQ(pitch % 512, 0U);
    const int rows[3][4] = {{1, 2, 3, -1}, {4, 5, 6, -1}, {7, 8, 9, -1}};
    CUDA_MEMCPY2D c{};
    c.srcMemoryType = CU_MEMORYTYPE_HOST;
    c.srcHost = rows;
    c.srcPitch = sizeof rows[0];
    c.dstMemoryType = CU_MEMORYTYPE_DEVICE;
    c.dstDevice = p;
    c.dstPitch = pitch;
    c.WidthInBytes = 12;
    c.Height = 3;
    ASSERT_CU(cuMemcpy2D(&c));
    EXPECT_EQ(read_ints(p + pitch, 3), (std::vector<int>{4, 5, 6}));
    int cell[2] = {};
    c = {};
    c.srcMemoryType = CU_MEMORYTYPE_DEVICE;
    c.srcDevice = p;
    c.srcPitch = pitch;
    c.srcXInBytes = 4;
    c.srcY = 1;
    c.dstMemoryType = CU_MEMORYTYPE_HOST;
    c.dstHost = cell;
    c.dstPitch = 4;
    c.WidthInBytes = 4;
    c.Height = 2;
    ASSERT_CU(cuMemcpy2D(&c));
    EXPECT_EQ(cell[0], 5);
    EXPECT_EQ(cell[1], 8);
    c.dstPitch = 2;
    EXPECT_EQ(cuMemcpy2D(&c), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, TheDevicesSizeIsALimit) {
    std::size_t free = 0;
    std::size_t total = 0;
    ASSERT_CU(cuMemGetInfo(&free, &total));
    std::size_t device_total = 0;
    ASSERT_CU(cuDeviceTotalMem(&device_total, 0));
    EXPECT_EQ(total, device_total);
    CUdeviceptr p = 0;
    EXPECT_EQ(cuMemAlloc(&p, total + 1), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&p, free + 512), CUDA_ERROR_OUT_OF_MEMORY);
    EXPECT_EQ(cuMemAlloc(&p, 0), CUDA_ERROR_INVALID_VALUE);
    const std::size_t before = used();
    ASSERT_CU(cuMemAlloc(&p, 1000));
    EXPECT_EQ(used(), before + 1024);
    ASSERT_CU(cuMemFree(p));
    EXPECT_EQ(used(), before);
}

TEST_F(MemoryTest, FreeingWaitsForTheContext) {
    CUstream s = nullptr;
    ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const CUdeviceptr p = zeroed(1);
    const CUdeviceptr other = zeroed(1);
    ASSERT_CU(launch_add(s, p, 1, 1, 20'000));
    ASSERT_CU(cuMemFree(other));
    EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
}

TEST_F(MemoryTest, AFreeInAStreamComesAfterItsWork) {
    CUstream s = nullptr;
    ASSERT_CU(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING));
    const Gate gate;
    const std::size_t before = used();
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAllocAsync(&p, 4096, s));
    gate.hold(s);
    ASSERT_CU(cuMemsetD32Async(p, 3, 1024, s));
    ASSERT_CU(launch_add(s, p, 1, 1, 10));
    int first = 0;
    void* host = nullptr;
    ASSERT_CU(cuMemHostAlloc(&host, sizeof first, 0));
    ASSERT_CU(cuMemcpyDtoHAsync(host, p, sizeof first, s));
    ASSERT_CU(cuMemFreeAsync(p, s));
    EXPECT_EQ(used(), before + 4096);
    gate.open();
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(used(), before);
    EXPECT_EQ(*static_cast<int*>(host), 4);
    ASSERT_CU(cuMemFreeHost(host));
}

TEST_F(MemoryTest, PoolsCountWhatTheyGave) {
    CUmemPoolProps properties{};
    properties.allocType = CU_MEM_ALLOCATION_TYPE_PINNED;
    properties.location = {CU_MEM_LOCATION_TYPE_DEVICE, {0}};
    CUmemoryPool pool = nullptr;
    ASSERT_CU(cuMemPoolCreate(&pool, &properties));
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAllocFromPoolAsync(&p, 2048, pool, nullptr));
    cuuint64_t used_bytes = 0;
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes));
    EXPECT_EQ(used_bytes, 2048U);
    CUmemoryPool holder = nullptr;
    ASSERT_CU(cuPointerGetAttribute(&holder, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE, p));
    EXPECT_EQ(holder, pool);
    ASSERT_CU(cuMemFreeAsync(p, nullptr));
    ASSERT_CU(cuStreamSynchronize(nullptr));
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used_bytes));
    EXPECT_EQ(used_bytes, 0U);
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_USED_MEM_HIGH, &used_bytes));
    EXPECT_EQ(used_bytes, 2048U);
    cuuint64_t threshold = UINT64_MAX;
    ASSERT_CU(cuMemPoolSetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    threshold = 0;
    ASSERT_CU(cuMemPoolGetAttribute(pool, CU_MEMPOOL_ATTR_RELEASE_THRESHOLD, &threshold));
    EXPECT_EQ(threshold, UINT64_MAX);
    ASSERT_CU(cuMemPoolDestroy(pool));
    EXPECT_EQ(cuMemPoolDestroy(pool), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(MemoryTest, PointersTellWhatTheyAre) {
    const CUdeviceptr p = zeroed(16);
    unsigned type = 0;
    int ordinal = -1;
    CUcontext context = nullptr;
    CUdeviceptr start = 0;
    std::size_t size = 0;
    unsigned managed = 1;
    CUpointer_attribute names[] = {
        CU_POINTER_ATTRIBUTE_MEMORY_TYPE, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL,
        CU_POINTER_ATTRIBUTE_CONTEXT,     CU_POINTER_ATTRIBUTE_RANGE_START_ADDR,
        CU_POINTER_ATTRIBUTE_RANGE_SIZE,  CU_POINTER_ATTRIBUTE_IS_MANAGED};
    void* data[] = {&type, &ordinal, &context, &start, &size, &managed};
    ASSERT_CU(cuPointerGetAttributes(6, names, data, p + 8));
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_DEVICE));
    EXPECT_EQ(ordinal, 0);
    EXPECT_EQ(context, context_);
    EXPECT_EQ(start, p);
    EXPECT_EQ(size, 64U);
    EXPECT_EQ(managed, 0U);
    int local = 0;
    const auto unknown = reinterpret_cast<CUdeviceptr>(&local);
    EXPECT_EQ(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE, unknown),
              CUDA_ERROR_INVALID_VALUE);
    ASSERT_CU(cuPointerGetAttributes(1, names, data, unknown));
    EXPECT_EQ(type, 0U);
}

TEST_F(MemoryTest, HostMemoryIsRegisteredOnce) {
    alignas(4096) static char memory[8192];
    ASSERT_CU(cuMemHostRegister(memory, sizeof memory, 0));
    EXPECT_EQ(cuMemHostRegister(memory + 4096, 100, 0), CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
    unsigned type = 0;
    ASSERT_CU(cuPointerGetAttribute(&type, CU_POINTER_ATTRIBUTE_MEMORY_TYPE,
                                    reinterpret_cast<CUdeviceptr>(memory + 5000)));
    EXPECT_EQ(type, static_cast<unsigned>(CU_MEMORYTYPE_HOST));
    CUdeviceptr mapped = 0;
    ASSERT_CU(cuMemHostGetDevicePointer(&mapped, memory, 0));
    EXPECT_EQ(mapped, reinterpret_cast<CUdeviceptr>(memory));
    ASSERT_CU(cuMemHostUnregister(memory));
    EXPECT_EQ(cuMemHostUnregister(memory), CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
}

TEST_F(MemoryTest, ManagedMemoryIsReadableByTheHost) {
    CUdeviceptr p = 0;
    ASSERT_CU(cuMemAllocManaged(&p, sizeof(int), CU_MEM_ATTACH_GLOBAL));
    *reinterpret_cast<int*>(p) = 3;
    ASSERT_CU(launch_add(nullptr, p, 4, 1, 1));
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(*reinterpret_cast<int*>(p), 7);
    ASSERT_CU(cuMemFree(p));
}

}  // namespace
}  // namespace simgpu::test
