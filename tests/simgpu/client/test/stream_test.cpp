// SPDX-License-Identifier: Apache-2.0
// Streams and events: order, default streams, waits, host functions, memory operations, times.

#include <sys/mman.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "test_machine.hpp"

extern "C" {  // per-thread twins; the header names them only when it maps everything to them
CUresult cuStreamSynchronize_ptsz(CUstream);
CUresult cuStreamQuery_ptsz(CUstream);
CUresult cuEventRecord_ptsz(CUevent, CUstream);
CUresult cuStreamGetId_ptsz(CUstream, unsigned long long*);
}

namespace simgpu::test {
namespace {

class StreamTest : public ContextTest {
  protected:
    CUstream stream(unsigned flags = CU_STREAM_NON_BLOCKING) {
        CUstream made = nullptr;
        EXPECT_CU(cuStreamCreate(&made, flags));
        return made;
    }
    CUevent event(unsigned flags = CU_EVENT_DEFAULT) {
        CUevent made = nullptr;
        EXPECT_CU(cuEventCreate(&made, flags));
        return made;
    }
};

TEST_F(StreamTest, WorkOfAStreamTakesEffectInOrder) {
    const CUdeviceptr p = zeroed(1);
    const CUstream s = stream();
    for (int i = 1; i <= 5; ++i) ASSERT_CU(launch_affine(s, p, 10, i, 100));
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(read_ints(p, 1)[0], 12345);
}

TEST_F(StreamTest, QueryAndSynchronizeFollowTheWork) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream s = stream();
    EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
    gate.hold(s);
    ASSERT_CU(launch_add(s, p, 1, 1, 10));
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    gate.open();
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(cuStreamQuery(s), CUDA_SUCCESS);
    EXPECT_EQ(read_ints(p, 1)[0], 1);
}

TEST_F(StreamTest, AnEventHoldsAnotherStream) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent e = event();
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(cuEventRecord(e, a));
    ASSERT_CU(cuStreamWaitEvent(b, e, 0));
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));
    gate.open();
    ASSERT_CU(cuStreamSynchronize(b));
    EXPECT_EQ(read_ints(p, 1)[0], 12);
}

TEST_F(StreamTest, WithoutAWaitStreamsPassEachOther) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream();
    const CUstream b = stream();
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));
    ASSERT_CU(cuStreamSynchronize(b));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 21);
}

TEST_F(StreamTest, AWaitTakesTheRecordBeforeIt) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent e = event();
    ASSERT_CU(cuEventRecord(e, a));
    ASSERT_CU(cuStreamWaitEvent(b, e, 0));
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(cuEventRecord(e, a));
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));  // behind the first record only
    ASSERT_CU(cuStreamSynchronize(b));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 21);
}

TEST_F(StreamTest, LegacyStreamStandsBetweenBlockingStreams) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream(CU_STREAM_DEFAULT);
    const CUstream b = stream(CU_STREAM_DEFAULT);
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(launch_affine(nullptr, p, 10, 2, 10));
    ASSERT_CU(launch_affine(b, p, 10, 3, 1));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 123);
}

TEST_F(StreamTest, LegacyStreamPassesNonBlockingStreams) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream(CU_STREAM_NON_BLOCKING);
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(launch_affine(CU_STREAM_LEGACY, p, 10, 2, 1));
    ASSERT_CU(cuStreamSynchronize(CU_STREAM_LEGACY));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 21);
}

TEST_F(StreamTest, BlockingStreamsDoNotWaitForEachOther) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream(CU_STREAM_DEFAULT);
    const CUstream b = stream(CU_STREAM_DEFAULT);
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));
    ASSERT_CU(cuStreamSynchronize(b));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 21);
}

TEST_F(StreamTest, ADestroyedStreamsWorkStillCompletesAndHoldsTheLegacyStream) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream(CU_STREAM_DEFAULT);
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(cuStreamDestroy(a));
    EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(launch_affine(nullptr, p, 10, 2, 1));
    gate.open();
    ASSERT_CU(cuStreamSynchronize(nullptr));
    EXPECT_EQ(read_ints(p, 1)[0], 12);
}

TEST_F(StreamTest, PerThreadStreamsAreTheThreadsOwn) {
    unsigned long long mine = 0;
    unsigned long long again = 0;
    unsigned long long legacy = 0;
    unsigned long long other = 0;
    ASSERT_CU(cuStreamGetId_ptsz(nullptr, &mine));
    ASSERT_CU(cuStreamGetId(CU_STREAM_PER_THREAD, &again));
    ASSERT_CU(cuStreamGetId(nullptr, &legacy));
    std::thread([&] {
        EXPECT_CU(cuCtxSetCurrent(context_));
        EXPECT_CU(cuStreamGetId_ptsz(nullptr, &other));
    }).join();
    EXPECT_EQ(mine, again);
    EXPECT_NE(mine, legacy);
    EXPECT_NE(mine, other);
    EXPECT_NE(other, legacy);
}

TEST_F(StreamTest, PerThreadStreamIsABlockingStream) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    gate.hold(CU_STREAM_PER_THREAD);
    ASSERT_CU(launch_affine(CU_STREAM_PER_THREAD, p, 10, 1, 10));
    ASSERT_CU(launch_affine(CU_STREAM_LEGACY, p, 10, 2, 1));
    ASSERT_CU(launch_affine(CU_STREAM_PER_THREAD, p, 10, 3, 1));
    gate.open();
    ASSERT_CU(cuStreamSynchronize_ptsz(nullptr));
    EXPECT_EQ(cuStreamQuery_ptsz(nullptr), CUDA_SUCCESS);
    EXPECT_EQ(read_ints(p, 1)[0], 123);
}

TEST_F(StreamTest, ElapsedTimeIsTheNominalDeviceTime) {
    const CUdeviceptr p = zeroed(1);
    const CUstream s = stream();
    const CUevent begin = event();
    const CUevent end = event();
    const Gate gate;  // so that everything is queued when the first event is due
    gate.hold(s);
    ASSERT_CU(cuEventRecord(begin, s));
    for (int i = 0; i < 4; ++i) ASSERT_CU(launch_add(s, p, 1, 1, 5000));
    ASSERT_CU(cuEventRecord(end, s));
    float ms = -1;
    EXPECT_EQ(cuEventElapsedTime(&ms, begin, end), CUDA_ERROR_NOT_READY);
    gate.open();
    ASSERT_CU(cuEventSynchronize(end));
    ASSERT_CU(cuEventElapsedTime(&ms, begin, end));
    // 4 kernels of 5 ms and the gaps between operations: nominal, so no late wake-up shows.
    EXPECT_GE(ms, 20.0F);
    EXPECT_LT(ms, 20.5F);
    float back = 0;
    ASSERT_CU(cuEventElapsedTime(&back, end, begin));
    EXPECT_FLOAT_EQ(back, -ms);
}

TEST_F(StreamTest, EventsThatHaveNoTime) {
    const CUstream s = stream();
    const CUevent timed = event();
    const CUevent untimed = event(CU_EVENT_DISABLE_TIMING);
    float ms = 0;
    EXPECT_EQ(cuEventElapsedTime(&ms, timed, timed), CUDA_ERROR_INVALID_HANDLE);  // never recorded
    EXPECT_EQ(cuEventQuery(timed), CUDA_SUCCESS);
    EXPECT_EQ(cuEventSynchronize(timed), CUDA_SUCCESS);
    ASSERT_CU(cuEventRecord(timed, s));
    ASSERT_CU(cuEventRecord(untimed, s));
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(cuEventElapsedTime(&ms, timed, untimed), CUDA_ERROR_INVALID_HANDLE);
    EXPECT_EQ(cuEventElapsedTime(&ms, timed, timed), CUDA_SUCCESS);
    EXPECT_EQ(ms, 0.0F);
}

TEST_F(StreamTest, AnEventMayBeDestroyedWhilePending) {
    const Gate gate;
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream();
    const CUstream b = stream();
    const CUevent e = event();
    gate.hold(a);
    ASSERT_CU(launch_affine(a, p, 10, 1, 10));
    ASSERT_CU(cuEventRecord(e, a));
    ASSERT_CU(cuStreamWaitEvent(b, e, 0));
    ASSERT_CU(cuEventDestroy(e));
    EXPECT_EQ(cuEventQuery(e), CUDA_ERROR_INVALID_HANDLE);
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(p, 1)[0], 12);
}

struct HostCall {
    std::atomic<int> calls{0};
    std::atomic<int> seen{-1};
    std::atomic<CUresult> inner{CUDA_SUCCESS};
    std::atomic<bool> go{false};
    const int* value = nullptr;
};

TEST_F(StreamTest, HostFunctionsRunInOrderAndMayNotCallCuda) {
    const CUdeviceptr p = zeroed(1);
    const CUstream s = stream();
    HostCall call;
    call.value = reinterpret_cast<const int*>(p);
    ASSERT_CU(launch_add(s, p, 7, 1, 1000));
    ASSERT_CU(cuLaunchHostFunc(
        s,
        [](void* data) {
            auto* c = static_cast<HostCall*>(data);
            c->seen = *c->value;
            c->inner = cuCtxSynchronize();
            ++c->calls;
        },
        &call));
    ASSERT_CU(launch_add(s, p, 1, 1, 1));
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(call.calls, 1);
    EXPECT_EQ(call.seen, 7);
    EXPECT_EQ(call.inner, CUDA_ERROR_NOT_PERMITTED);
    EXPECT_EQ(read_ints(p, 1)[0], 8);
}

TEST_F(StreamTest, AHostFunctionThatBlocksHoldsOnlyItsStream) {
    const CUdeviceptr p = zeroed(1);
    const CUstream a = stream();
    const CUstream b = stream();
    HostCall call;
    ASSERT_CU(cuLaunchHostFunc(
        a,
        [](void* data) {
            auto* c = static_cast<HostCall*>(data);
            while (!c->go) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        },
        &call));
    ASSERT_CU(launch_affine(a, p, 10, 1, 1));
    ASSERT_CU(launch_affine(b, p, 10, 2, 1));
    ASSERT_CU(cuStreamSynchronize(b));
    EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    call.go = true;
    ASSERT_CU(cuStreamSynchronize(a));
    EXPECT_EQ(read_ints(p, 1)[0], 21);
}

TEST_F(StreamTest, CallbacksGetTheirStream) {
    const CUstream s = stream();
    struct Seen {
        CUstream stream = nullptr;
        CUresult status = CUDA_ERROR_UNKNOWN;
    } seen;
    ASSERT_CU(cuStreamAddCallback(
        s,
        [](CUstream stream, CUresult status, void* data) {
            *static_cast<Seen*>(data) = {stream, status};
        },
        &seen, 0));
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(seen.stream, s);
    EXPECT_EQ(seen.status, CUDA_SUCCESS);
}

TEST_F(StreamTest, AValueInMemoryHoldsAndReleasesAStream) {
    const CUdeviceptr p = zeroed(1);
    const CUdeviceptr flag = zeroed(2);
    const CUstream a = stream();
    const CUstream b = stream();
    ASSERT_CU(cuStreamWaitValue32(a, flag, 5, CU_STREAM_WAIT_VALUE_GEQ));
    ASSERT_CU(launch_affine(a, p, 10, 1, 1));
    ASSERT_CU(launch_affine(b, p, 10, 2, 10));
    ASSERT_CU(cuStreamSynchronize(b));
    EXPECT_EQ(cuStreamQuery(a), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamWriteValue32(b, flag, 6, 0));
    ASSERT_CU(cuStreamSynchronize(a));
    EXPECT_EQ(read_ints(p, 1)[0], 21);
    EXPECT_EQ(read_ints(flag, 1)[0], 6);
    EXPECT_EQ(cuStreamWaitValue32(a, flag + 1, 5, 0), CUDA_ERROR_INVALID_VALUE);  // not aligned
    EXPECT_EQ(cuStreamWaitValue64(a, flag + 8, 5, 0),
              CUDA_ERROR_INVALID_VALUE);  // beyond the memory
}

TEST_F(StreamTest, AWaitOnTheProgramsOwnMemoryComparesCyclically) {
    constexpr std::size_t kBytes = 4096;
    void* const page =
        ::mmap(nullptr, kBytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    ASSERT_NE(page, MAP_FAILED);
    ASSERT_CU(cuMemHostRegister(page, kBytes, CU_MEMHOSTREGISTER_DEVICEMAP));
    CUdeviceptr address = 0;
    ASSERT_CU(cuMemHostGetDevicePointer(&address, page, 0));
    auto& word = *static_cast<std::atomic<std::uint32_t>*>(page);
    const CUdeviceptr p = zeroed(1);
    const CUstream s = stream();
    int done = 0;
    // The last of each row is the first that lets through.
    for (const std::vector<std::uint32_t>& words : std::vector<std::vector<std::uint32_t>>{
             {0, 0xFFFF'FFF0U, 1, 2}, {0x8000'0002U, 2}, {1, 0x8000'0001U}}) {
        word = words.front();
        ASSERT_CU(cuStreamWaitValue32(s, address, 2, CU_STREAM_WAIT_VALUE_GEQ));
        ASSERT_CU(launch_affine(s, p, 1, 1, 1));
        for (const std::uint32_t value : words) {
            EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY) << value;
            word = value;
        }
        ASSERT_CU(cuStreamSynchronize(s));
        EXPECT_EQ(read_ints(p, 1)[0], ++done);
    }
    ASSERT_CU(cuMemHostUnregister(page));
    ::munmap(page, kBytes);
}

TEST_F(StreamTest, BatchedMemoryOperationsKeepTheirOrder) {
    const CUdeviceptr memory = zeroed(4);
    const CUstream s = stream();
    CUstreamBatchMemOpParams ops[3]{};
    ops[0].waitValue.operation = CU_STREAM_MEM_OP_WAIT_VALUE_64;
    ops[0].waitValue.address = memory;
    ops[0].waitValue.value64 = std::uint64_t{1} << 40;
    ops[0].waitValue.flags = CU_STREAM_WAIT_VALUE_AND;
    ops[1].writeValue.operation = CU_STREAM_MEM_OP_WRITE_VALUE_32;
    ops[1].writeValue.address = memory + 8;
    ops[1].writeValue.value = 3;
    ops[2].writeValue = ops[1].writeValue;
    ops[2].writeValue.value = 4;
    ASSERT_CU(cuStreamBatchMemOp(s, 3, ops, 0));
    EXPECT_EQ(cuStreamQuery(s), CUDA_ERROR_NOT_READY);
    EXPECT_EQ(*reinterpret_cast<volatile int*>(memory + 8), 0);
    __atomic_store_n(reinterpret_cast<std::uint64_t*>(memory), std::uint64_t{7} << 40,
                     __ATOMIC_RELEASE);
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(read_ints(memory, 4)[2], 4);
}

TEST_F(StreamTest, AStreamThatIsFullHoldsTheCaller) {
    const CUdeviceptr p = zeroed(1);
    const CUdeviceptr flag = zeroed(1);
    const CUstream s = stream();
    constexpr int kMany = 3000;  // beyond a stream's depth
    ASSERT_CU(cuStreamWaitValue32(s, flag, 1, CU_STREAM_WAIT_VALUE_EQ));
    std::atomic<int> submitted{0};
    std::thread launcher([&] {
        EXPECT_CU(cuCtxSetCurrent(context_));
        for (int i = 0; i < kMany; ++i, ++submitted) EXPECT_CU(launch_add(s, p, 1, 1, 1));
    });
    int before = -1;
    while (before != submitted || before == 0) {  // until it gets no further
        before = submitted;
        std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    EXPECT_LT(submitted, kMany);
    __atomic_store_n(reinterpret_cast<int*>(flag), 1, __ATOMIC_RELEASE);
    launcher.join();
    ASSERT_CU(cuStreamSynchronize(s));
    EXPECT_EQ(read_ints(p, 1)[0], kMany);
}

TEST_F(StreamTest, PropertiesAreThoseAskedFor) {
    CUstream s = nullptr;
    int priority = 1;
    unsigned flags = 0;
    CUcontext context = nullptr;
    CUdevice device = -1;
    ASSERT_CU(cuStreamCreateWithPriority(&s, CU_STREAM_NON_BLOCKING, -100));
    ASSERT_CU(cuStreamGetPriority(s, &priority));
    ASSERT_CU(cuStreamGetFlags(s, &flags));
    ASSERT_CU(cuStreamGetCtx(s, &context));
    ASSERT_CU(cuStreamGetDevice(s, &device));
    int least = 1;
    int greatest = 1;
    ASSERT_CU(cuCtxGetStreamPriorityRange(&least, &greatest));
    EXPECT_EQ(least, 0);
    EXPECT_EQ(priority, greatest);  // clamped
    EXPECT_EQ(flags, static_cast<unsigned>(CU_STREAM_NON_BLOCKING));
    EXPECT_EQ(context, context_);
    EXPECT_EQ(device, 0);
    EXPECT_EQ(cuStreamCreate(&s, 16), CUDA_ERROR_INVALID_VALUE);
}

}  // namespace
}  // namespace simgpu::test
