// SPDX-License-Identifier: Apache-2.0
// Stream capture: what becomes a graph, which calls break it, in which modes and from which
// threads.

#include <functional>
#include <thread>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

class CaptureTest : public ContextTest {
  protected:
    void SetUp() override {
        ContextTest::SetUp();
        ASSERT_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
        memory_ = zeroed(4);
    }
    void begin(CUstreamCaptureMode mode) { ASSERT_CU(cuStreamBeginCapture(stream_, mode)); }
    CUresult end(CUgraph* graph = nullptr) {
        CUgraph mine = nullptr;
        return cuStreamEndCapture(stream_, graph != nullptr ? graph : &mine);
    }
    CUstreamCaptureStatus status(CUstream stream) {
        CUstreamCaptureStatus result = CU_STREAM_CAPTURE_STATUS_NONE;
        EXPECT_CU(cuStreamIsCapturing(stream, &result));
        return result;
    }
    // Runs `call` on another thread that has the context.
    CUresult on_thread(const std::function<CUresult()>& call) {
        CUresult result = CUDA_ERROR_UNKNOWN;
        std::thread([&] {
            EXPECT_CU(cuCtxSetCurrent(context_));
            result = call();
        }).join();
        return result;
    }
    CUstream stream_ = nullptr;
    CUstream other_ = nullptr;
    CUevent event_ = nullptr;
    CUdeviceptr memory_ = 0;
};

constexpr auto kGlobal = CU_STREAM_CAPTURE_MODE_GLOBAL;
constexpr auto kThreadLocal = CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
constexpr auto kRelaxed = CU_STREAM_CAPTURE_MODE_RELAXED;

TEST_F(CaptureTest, CapturedWorkDoesNotRun) {
    begin(kGlobal);
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 1));
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 1));
    CUgraph graph = nullptr;
    ASSERT_CU(end(&graph));
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_NONE);
    EXPECT_EQ(read_ints(memory_, 1)[0], 0);
    std::size_t nodes = 0;
    ASSERT_CU(cuGraphGetNodes(graph, nullptr, &nodes));
    EXPECT_EQ(nodes, 2U);
    ASSERT_CU(cuGraphDestroy(graph));
}

struct UnsafeCall {
    const char* name;
    std::function<CUresult(CUstream free_stream, CUevent event, CUdeviceptr memory)> call;
};

std::vector<UnsafeCall> unsafe_calls() {
    return {
        {"event query", [](CUstream, CUevent e, CUdeviceptr) { return cuEventQuery(e); }},
        {"event synchronize",
         [](CUstream, CUevent e, CUdeviceptr) { return cuEventSynchronize(e); }},
        {"stream query", [](CUstream s, CUevent, CUdeviceptr) { return cuStreamQuery(s); }},
        {"stream synchronize",
         [](CUstream s, CUevent, CUdeviceptr) { return cuStreamSynchronize(s); }},
        {"allocate",
         [](CUstream, CUevent, CUdeviceptr) {
             CUdeviceptr p = 0;
             return cuMemAlloc(&p, 4);
         }},
        {"free", [](CUstream, CUevent, CUdeviceptr m) { return cuMemFree(m); }},
        {"synchronous copy",
         [](CUstream, CUevent, CUdeviceptr m) {
             int value = 0;
             return cuMemcpyDtoH(&value, m, 4);
         }},
    };
}

TEST_F(CaptureTest, UnsafeCallsBreakACaptureByTheModesRules) {
    for (const UnsafeCall& unsafe : unsafe_calls()) {
        SCOPED_TRACE(unsafe.name);
        const auto call = [&] { return unsafe.call(other_, event_, memory_); };

        begin(kGlobal);
        EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_INVALIDATED);
        EXPECT_EQ(launch_add(stream_, memory_, 1, 1, 1), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
        EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

        begin(kGlobal);
        EXPECT_EQ(on_thread(call), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

        begin(kThreadLocal);
        EXPECT_EQ(call(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
        EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    }
}

TEST_F(CaptureTest, AskingTheLegacyStreamBreaksNothing) {
    CUstream blocking = nullptr;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASSERT_CU(cuStreamBeginCapture(blocking, kGlobal));
    CUstreamCaptureStatus unspecified = CU_STREAM_CAPTURE_STATUS_NONE;
    EXPECT_EQ(cuStreamIsCapturing(nullptr, &unspecified), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    ASSERT_CU(launch_add(blocking, memory_, 1, 1, 1));
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamEndCapture(blocking, &graph));
    ASSERT_CU(cuGraphDestroy(graph));
    ASSERT_CU(cuStreamDestroy(blocking));
}

TEST_F(CaptureTest, IntoAGraphThatIsThere) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    EXPECT_EQ(cuStreamBeginCaptureToGraph(stream_, nullptr, nullptr, nullptr, 0, kGlobal),
              CUDA_ERROR_INVALID_VALUE);
    CUgraphNode last = nullptr;
    for (int round = 1; round <= 2; ++round) {
        ASSERT_CU(cuStreamBeginCaptureToGraph(stream_, graph, last == nullptr ? nullptr : &last,
                                              nullptr, last == nullptr ? 0 : 1, kGlobal));
        ASSERT_CU(launch_affine(stream_, memory_, 3, round, 1));
        CUgraph same = nullptr;
        ASSERT_CU(end(&same));
        EXPECT_EQ(same, graph);
        std::vector<CUgraphNode> nodes(static_cast<std::size_t>(round));
        std::size_t count = nodes.size();
        ASSERT_CU(cuGraphGetNodes(graph, nodes.data(), &count));
        ASSERT_EQ(count, nodes.size());
        last = nodes.back();
    }
    // A capture that breaks leaves the graph to the program.
    ASSERT_CU(cuStreamBeginCaptureToGraph(stream_, graph, &last, nullptr, 1, kGlobal));
    EXPECT_EQ(cuStreamQuery(other_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    CUgraphExec executable = nullptr;
    ASSERT_CU(cuGraphInstantiate(&executable, graph, 0));
    ASSERT_CU(cuGraphLaunch(executable, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 5);  // (0 * 3 + 1) * 3 + 2
    ASSERT_CU(cuGraphExecDestroy(executable));
    ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(CaptureTest, ThreadLocalCapturesIgnoreOtherThreads) {
    begin(kThreadLocal);
    EXPECT_EQ(on_thread([&] { return cuEventQuery(event_); }), CUDA_SUCCESS);
    EXPECT_EQ(on_thread([&] { return cuStreamSynchronize(other_); }), CUDA_SUCCESS);
    EXPECT_CU(end());
}

TEST_F(CaptureTest, RelaxedCapturesAllowAllButTheirOwnStreams) {
    begin(kRelaxed);
    EXPECT_CU(cuEventQuery(event_));
    EXPECT_CU(cuStreamSynchronize(other_));
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(cuStreamSynchronize(stream_), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    begin(kRelaxed);
    EXPECT_EQ(cuCtxSynchronize(), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, AThreadMayExchangeItsMode) {
    begin(kGlobal);
    const auto careful = [&] {
        CUstreamCaptureMode mode = kRelaxed;
        EXPECT_CU(cuThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(mode, kGlobal);  // what a thread starts with
        const CUresult result = cuEventQuery(event_);
        EXPECT_CU(cuThreadExchangeStreamCaptureMode(&mode));
        EXPECT_EQ(mode, kRelaxed);
        return result;
    };
    EXPECT_CU(on_thread(careful));
    EXPECT_CU(careful());
    EXPECT_EQ(status(stream_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_CU(end());
}

TEST_F(CaptureTest, EventsOfACaptureBelongToIt) {
    begin(kRelaxed);
    ASSERT_CU(cuEventRecord(event_, stream_));
    EXPECT_EQ(cuEventQuery(event_), CUDA_ERROR_CAPTURED_EVENT);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    ASSERT_CU(cuEventRecord(event_, other_));  // an ordinary one again
    EXPECT_CU(cuEventSynchronize(event_));
}

TEST_F(CaptureTest, ForkedStreamsMustJoin) {
    begin(kGlobal);
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 1));
    ASSERT_CU(cuEventRecord(event_, stream_));
    ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
    EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_ACTIVE);
    ASSERT_CU(launch_add(other_, memory_, 1, 1, 1));
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_UNMATCHED);
    EXPECT_EQ(end(&graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    EXPECT_EQ(graph, nullptr);
    EXPECT_EQ(status(other_), CU_STREAM_CAPTURE_STATUS_NONE);

    begin(kGlobal);
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 1));
    ASSERT_CU(cuEventRecord(event_, stream_));
    ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
    ASSERT_CU(launch_add(other_, memory_, 1, 1, 1));
    ASSERT_CU(cuEventRecord(event_, other_));
    ASSERT_CU(cuStreamWaitEvent(stream_, event_, 0));
    ASSERT_CU(end(&graph));
    std::size_t edges = 0;
    ASSERT_CU(cuGraphGetEdges(graph, nullptr, nullptr, nullptr, &edges));
    EXPECT_EQ(edges, 1U);
    ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(CaptureTest, CapturesStayApart) {
    CUevent outside = nullptr;
    ASSERT_CU(cuEventCreate(&outside, CU_EVENT_DISABLE_TIMING));
    ASSERT_CU(cuEventRecord(outside, other_));
    begin(kRelaxed);
    EXPECT_EQ(cuStreamWaitEvent(stream_, outside, 0), CUDA_ERROR_STREAM_CAPTURE_ISOLATION);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);

    begin(kRelaxed);
    ASSERT_CU(cuStreamBeginCapture(other_, kRelaxed));
    ASSERT_CU(cuEventRecord(event_, stream_));
    EXPECT_EQ(cuStreamWaitEvent(other_, event_, 0), CUDA_ERROR_STREAM_CAPTURE_MERGE);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(other_, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
    EXPECT_EQ(end(), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, TheLegacyStreamCannotTakePart) {
    EXPECT_EQ(cuStreamBeginCapture(nullptr, kGlobal), CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED);
    begin(kRelaxed);  // a non-blocking stream: the legacy stream does not depend on it
    EXPECT_CU(launch_add(nullptr, memory_, 1, 1, 1));
    EXPECT_CU(end());

    CUstream blocking = nullptr;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    ASSERT_CU(cuStreamBeginCapture(blocking, kRelaxed));
    EXPECT_EQ(launch_add(nullptr, memory_, 1, 1, 1), CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
    CUgraph graph = nullptr;
    EXPECT_EQ(cuStreamEndCapture(blocking, &graph), CUDA_ERROR_STREAM_CAPTURE_INVALIDATED);
}

TEST_F(CaptureTest, AnotherThreadMayEndOnlyARelaxedCapture) {
    begin(kGlobal);
    EXPECT_EQ(on_thread([&] { return end(); }), CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD);
    EXPECT_CU(end());
    begin(kRelaxed);
    EXPECT_CU(on_thread([&] { return end(); }));
    EXPECT_EQ(end(), CUDA_ERROR_ILLEGAL_STATE);
}

TEST_F(CaptureTest, InfoTellsTheFrontier) {
    begin(kRelaxed);
    CUstreamCaptureStatus state = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t first = 0;
    cuuint64_t second = 0;
    CUgraph graph = nullptr;
    const CUgraphNode* nodes = nullptr;
    const CUgraphEdgeData* edges = nullptr;
    std::size_t count = 9;
    ASSERT_CU(cuStreamGetCaptureInfo(stream_, &state, &first, &graph, &nodes, &edges, &count));
    EXPECT_EQ(state, CU_STREAM_CAPTURE_STATUS_ACTIVE);
    EXPECT_EQ(count, 0U);
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 1));
    ASSERT_CU(cuStreamGetCaptureInfo(stream_, &state, &second, &graph, &nodes, &edges, &count));
    EXPECT_EQ(first, second);
    ASSERT_EQ(count, 1U);
    CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
    ASSERT_CU(cuGraphNodeGetType(nodes[0], &type));
    EXPECT_EQ(type, CU_GRAPH_NODE_TYPE_KERNEL);
    std::size_t size = 0;
    ASSERT_CU(cuGraphGetNodes(graph, nullptr, &size));
    EXPECT_EQ(size, 1U);
    EXPECT_CU(end());
    begin(kRelaxed);
    ASSERT_CU(cuStreamGetCaptureInfo(stream_, &state, &second, nullptr, nullptr, nullptr, nullptr));
    EXPECT_NE(first, second);
    EXPECT_CU(end());
}

TEST_F(CaptureTest, DestroyingTheStreamEndsItsCapture) {
    begin(kGlobal);
    ASSERT_CU(cuStreamDestroy(stream_));
    EXPECT_CU(cuEventQuery(event_));
    EXPECT_CU(cuCtxSynchronize());
}

}  // namespace
}  // namespace simgpu::test
