// SPDX-License-Identifier: Apache-2.0
// Captures and graphs with the library preloaded into this very test, beside another job that wants
// the device: no capture breaks, nothing captured is taken for work, graph launches are. Runs on a
// virtual machine of its own.
#include <atomic>

#include "capture_fixture.hpp"

#undef cuGraphInstantiate
#undef cuStreamBeginCapture
extern "C" {
CUresult CUDAAPI cuStreamBeginCapture(CUstream);
CUresult CUDAAPI cuStreamBeginCapture_v2(CUstream, CUstreamCaptureMode);
}

namespace crossover::test {
namespace {

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

TEST_F(Captures, InEveryMode) {
    for (const CUstreamCaptureMode mode : {kGlobal, kThreadLocal, kRelaxed}) {
        SCOPED_TRACE(static_cast<int>(mode));
        capture_hundred([&] { return cuStreamBeginCapture_v2(stream_, mode); });
    }
}

TEST_F(Captures, BegunWithoutAMode) {
    capture_hundred([&] { return cuStreamBeginCapture(stream_); });
}

TEST_F(Captures, IntoAGraphThatIsThere) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    capture_hundred(
        [&] { return cuStreamBeginCaptureToGraph(stream_, graph, nullptr, nullptr, 0, kGlobal); });
}

// Refused attempts to end a capture do not end it.
TEST_F(Captures, EndRefusedToAnotherThreadAndStream) {
    capture_hundred([&] {
        const CUresult began = cuStreamBeginCapture_v2(stream_, kThreadLocal);
        CUgraph none = nullptr;
        std::thread([&] {
            EXPECT_CU(cuCtxSetCurrent(context_));
            EXPECT_EQ(cuStreamEndCapture(stream_, &none), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
        }).join();
        EXPECT_EQ(cuStreamEndCapture(other_, &none), CUDA_ERROR_ILLEGAL_STATE);
        EXPECT_EQ(cuStreamEndCapture(stream_, nullptr), CUDA_ERROR_INVALID_VALUE);
        return began;
    });
}

// Captures that break off in every way leave the next one whole.
TEST_F(Captures, AfterBrokenOnes) {
    let_peer_hold();
    CUgraph none = nullptr;
    ASSERT_CU(cuStreamBeginCapture_v2(stream_, kGlobal));
    EXPECT_CU(launch(stream_));
    EXPECT_EQ(cuStreamSynchronize(other_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(launch(stream_), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(cuStreamEndCapture(stream_, &none), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    ASSERT_CU(cuStreamBeginCapture_v2(stream_, kRelaxed));
    ASSERT_CU(cuEventRecord(event_, stream_));
    ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
    EXPECT_CU(launch(other_));
    EXPECT_EQ(cuStreamEndCapture(stream_, &none), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);

    CUstream gone = nullptr;
    ASSERT_CU(cuStreamCreate(&gone, CU_STREAM_NON_BLOCKING));
    ASSERT_CU(cuStreamBeginCapture_v2(gone, kGlobal));
    EXPECT_CU(launch(gone));
    ASSERT_CU(cuStreamDestroy(gone));

    expect_gated([&] { return launch(stream_); });
    capture_hundred([&] { return cuStreamBeginCapture_v2(stream_, kGlobal); });
}

// Work on the legacy stream that nothing has marked yet, and a blocking stream that captures: the
// library's own marker would depend on the capture.
TEST_F(Captures, OfABlockingStreamAfterWorkOnTheLegacyOne) {
    let_peer_hold();
    CUstream blocking = nullptr;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    for (int round = 0; round < 20; ++round) {
        ASSERT_CU(launch(nullptr));
        ASSERT_CU(launch(blocking));
        ASSERT_CU(cuStreamBeginCapture_v2(blocking, kGlobal));
        for (int i = 0; i < 10; ++i) {
            ASSERT_CU(launch(blocking));
            ::usleep(300);
        }
        CUgraph graph = nullptr;
        ASSERT_CU(cuStreamEndCapture(blocking, &graph));
        EXPECT_EQ(kernels_in(graph), 10U);
        ASSERT_CU(cuGraphDestroy(graph));
    }
    EXPECT_CU(cuStreamDestroy(blocking));
}

TEST_F(Captures, SeveralThreadsAtOnceBesideOneThatComputes) {
    let_peer_hold();
    std::atomic<bool> stop{false};
    std::atomic<int> begun{0};
    std::vector<std::thread> threads;
    for (int i = 0; i < 6; ++i) {
        threads.emplace_back([&, i] {
            EXPECT_CU(cuCtxSetCurrent(context_));
            CUstream mine = nullptr;
            EXPECT_CU(cuStreamCreate(&mine, CU_STREAM_NON_BLOCKING));
            begun.fetch_add(1);
            for (int round = 0; round < 30; ++round) {
                ASSERT_CU(cuStreamBeginCapture_v2(mine, i % 2 == 0 ? kThreadLocal : kRelaxed));
                for (int n = 0; n < 20; ++n) ASSERT_CU(launch(mine));
                CUgraph graph = nullptr;
                ASSERT_CU(cuStreamEndCapture(mine, &graph));
                EXPECT_EQ(kernels_in(graph), 20U);
                ASSERT_CU(cuGraphDestroy(graph));
                ASSERT_CU(launch(mine));
            }
        });
    }
    std::thread computing([&] {
        EXPECT_CU(cuCtxSetCurrent(context_));
        while (!stop.load()) {
            EXPECT_CU(launch(other_));
            ::usleep(500);
        }
    });
    for (std::thread& each : threads) each.join();
    stop.store(true);
    computing.join();
    EXPECT_CU(cuCtxSynchronize());
}

// An event recorded into a capture says nothing of the stream any more, and one recorded outside of
// it again does.
TEST_F(Captures, EventsUsedInsideAndOutside) {
    let_peer_hold();
    for (int round = 0; round < 10; ++round) {
        ASSERT_CU(launch(stream_));
        ASSERT_CU(cuEventRecord(event_, stream_));
        ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
        ASSERT_CU(cuStreamBeginCapture_v2(stream_, kGlobal));
        ASSERT_CU(launch(stream_));
        ASSERT_CU(cuEventRecord(event_, stream_));
        ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
        ASSERT_CU(launch(other_));
        ASSERT_CU(cuEventRecord(back_, other_));
        ASSERT_CU(cuStreamWaitEvent(stream_, back_, 0));
        CUgraph graph = nullptr;
        ASSERT_CU(cuStreamEndCapture(stream_, &graph));
        EXPECT_EQ(kernels_in(graph), 2U);
        ASSERT_CU(cuGraphDestroy(graph));
        ASSERT_CU(launch(other_));
    }
    EXPECT_CU(cuCtxSynchronize());
}

}  // namespace
}  // namespace crossover::test
