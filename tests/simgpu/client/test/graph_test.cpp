// SPDX-License-Identifier: Apache-2.0
// Graphs: replay of everything a capture holds, order inside and around it, copies of graphs.

#include <atomic>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

class GraphTest : public ContextTest {
  protected:
    void SetUp() override {
        ContextTest::SetUp();
        ASSERT_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuStreamCreate(&side_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuEventCreate(&fork_, CU_EVENT_DISABLE_TIMING));
        ASSERT_CU(cuEventCreate(&join_, CU_EVENT_DISABLE_TIMING));
        memory_ = zeroed(4);
    }
    void begin() { ASSERT_CU(cuStreamBeginCapture(stream_, CU_STREAM_CAPTURE_MODE_GLOBAL)); }
    CUgraphExec end() {
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        EXPECT_CU(cuStreamEndCapture(stream_, &graph));
        EXPECT_CU(cuGraphInstantiate(&exec, graph, 0));
        EXPECT_CU(cuGraphDestroy(graph));
        return exec;
    }
    CUstream stream_ = nullptr;
    CUstream side_ = nullptr;
    CUevent fork_ = nullptr;
    CUevent join_ = nullptr;
    CUdeviceptr memory_ = 0;
};

TEST_F(GraphTest, ReplaysEveryTime) {
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(launch_affine(stream_, memory_, 10, 2, 10));
    const CUgraphExec exec = end();
    for (int i = 0; i < 3; ++i) ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 121212);
    ASSERT_CU(cuGraphExecDestroy(exec));
    EXPECT_EQ(cuGraphLaunch(exec, stream_), CUDA_ERROR_INVALID_VALUE);
}

TEST_F(GraphTest, KeepsForksAndJoins) {
    const CUdeviceptr other = memory_ + 4;
    const Gate gate;
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(cuEventRecord(fork_, stream_));
    ASSERT_CU(cuStreamWaitEvent(side_, fork_, 0));
    gate.hold(
        stream_);  // one branch waits for a value that the other one writes: they run side by side
    ASSERT_CU(launch_affine(stream_, memory_, 10, 2, 10));
    ASSERT_CU(launch_affine(side_, memory_, 10, 3, 10));
    ASSERT_CU(cuStreamWriteValue32(side_, gate.address(), 1, 0));
    ASSERT_CU(launch_affine(side_, other, 10, 7, 10));
    ASSERT_CU(cuEventRecord(join_, side_));
    ASSERT_CU(cuStreamWaitEvent(stream_, join_, 0));
    ASSERT_CU(cuMemcpyDtoDAsync(memory_ + 8, other, 4, stream_));  // behind both
    ASSERT_CU(launch_affine(stream_, memory_, 10, 4, 10));
    const CUgraphExec exec = end();
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(launch_affine(stream_, memory_, 10, 5, 10));  // the graph is one unit in the stream
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 3), (std::vector<int>{13245, 7, 7}));
    ASSERT_CU(cuGraphExecDestroy(exec));
}

TEST_F(GraphTest, BeginsBehindTheStreamsWork) {
    const Gate gate;
    begin();
    ASSERT_CU(cuEventRecord(fork_, stream_));
    ASSERT_CU(cuStreamWaitEvent(side_, fork_, 0));
    ASSERT_CU(launch_affine(side_, memory_, 10, 2, 10));
    ASSERT_CU(launch_affine(stream_, memory_ + 4, 10, 2, 10));
    ASSERT_CU(cuEventRecord(join_, side_));
    ASSERT_CU(cuStreamWaitEvent(stream_, join_, 0));
    const CUgraphExec exec = end();
    gate.hold(stream_);
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    gate.open();
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 2), (std::vector<int>{12, 2}));
    ASSERT_CU(cuGraphExecDestroy(exec));
}

TEST_F(GraphTest, LaunchesOfOneExecutableFollowEachOther) {
    const Gate gate;
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(launch_affine(stream_, memory_, 10, 2, 10));
    const CUgraphExec exec = end();
    gate.hold(stream_);
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuGraphLaunch(exec, side_));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(memory_, 1)[0], 1212);
    ASSERT_CU(cuGraphExecDestroy(exec));
}

TEST_F(GraphTest, HoldsHostFunctionsFillsAndCopies) {
    std::atomic<int> calls{0};
    int* host = nullptr;
    ASSERT_CU(cuMemHostAlloc(reinterpret_cast<void**>(&host), sizeof(int), 0));
    begin();
    ASSERT_CU(cuMemsetD32Async(memory_, 5, 1, stream_));
    ASSERT_CU(launch_add(stream_, memory_, 1, 1, 10));
    ASSERT_CU(cuMemcpyDtoHAsync(host, memory_, sizeof(int), stream_));
    ASSERT_CU(cuLaunchHostFunc(
        stream_, [](void* data) { ++*static_cast<std::atomic<int>*>(data); }, &calls));
    CUgraph graph = nullptr;
    ASSERT_CU(cuStreamEndCapture(stream_, &graph));
    CUgraphNode nodes[8] = {};
    std::size_t count = 8;
    ASSERT_CU(cuGraphGetNodes(graph, nodes, &count));
    ASSERT_EQ(count, 4U);
    const CUgraphNodeType expected[] = {CU_GRAPH_NODE_TYPE_MEMSET, CU_GRAPH_NODE_TYPE_KERNEL,
                                        CU_GRAPH_NODE_TYPE_MEMCPY, CU_GRAPH_NODE_TYPE_HOST};
    for (std::size_t i = 0; i < 4; ++i) {
        CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
        ASSERT_CU(cuGraphNodeGetType(nodes[i], &type));
        EXPECT_EQ(type, expected[i]);
    }
    CUgraphNode before = nullptr;
    std::size_t one = 1;
    ASSERT_CU(cuGraphNodeGetDependencies(nodes[2], &before, nullptr, &one));
    EXPECT_EQ(one, 1U);
    EXPECT_EQ(before, nodes[1]);
    CUgraph clone = nullptr;
    ASSERT_CU(cuGraphClone(&clone, graph));
    ASSERT_CU(cuGraphDestroy(graph));
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, clone, 0));
    ASSERT_CU(cuGraphDestroy(clone));
    for (int i = 0; i < 2; ++i) ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(*host, 6);
    EXPECT_EQ(calls, 2);
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuMemFreeHost(host));
}

TEST_F(GraphTest, MemoryOfACaptureLivesWithIt) {
    std::size_t before = 0;
    std::size_t total = 0;
    ASSERT_CU(cuMemGetInfo(&before, &total));
    begin();
    CUdeviceptr inner = 0;
    ASSERT_CU(cuMemAllocAsync(&inner, 4096, stream_));
    ASSERT_CU(cuMemsetD32Async(inner, 9, 1, stream_));
    ASSERT_CU(cuMemcpyDtoDAsync(memory_, inner, 4, stream_));
    ASSERT_CU(cuMemFreeAsync(inner, stream_));
    const CUgraphExec exec = end();
    for (int i = 0; i < 2; ++i) ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuGraphExecDestroy(exec));  // while it runs
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 9);
    std::size_t after = 0;
    ASSERT_CU(cuMemGetInfo(&after, &total));
    EXPECT_EQ(after, before);
}

TEST_F(GraphTest, AGraphLaunchedInACaptureIsPartOfIt) {
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 2, 10));
    const CUgraphExec inner = end();
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(cuGraphLaunch(inner, stream_));
    ASSERT_CU(launch_affine(stream_, memory_, 10, 3, 10));
    const CUgraphExec outer = end();
    ASSERT_CU(cuGraphExecDestroy(inner));
    ASSERT_CU(cuGraphLaunch(outer, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 123);
    ASSERT_CU(cuGraphExecDestroy(outer));
}

TEST_F(GraphTest, LegacyStreamOrdersGraphsLikeOtherWork) {
    const Gate gate;
    CUstream blocking = nullptr;
    ASSERT_CU(cuStreamCreate(&blocking, CU_STREAM_DEFAULT));
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 2, 10));
    const CUgraphExec exec = end();
    gate.hold(nullptr);
    ASSERT_CU(launch_affine(nullptr, memory_, 10, 1, 10));
    ASSERT_CU(cuGraphLaunch(exec, blocking));
    ASSERT_CU(launch_affine(nullptr, memory_, 10, 3, 10));
    gate.open();
    ASSERT_CU(cuCtxSynchronize());
    EXPECT_EQ(read_ints(memory_, 1)[0], 123);
    ASSERT_CU(cuGraphExecDestroy(exec));
}

TEST_F(GraphTest, ExternalEventsAreRecordedAtEachReplay) {
    const Gate gate;
    CUevent outside = nullptr;
    ASSERT_CU(cuEventCreate(&outside, CU_EVENT_DEFAULT));
    EXPECT_EQ(cuEventRecordWithFlags(outside, stream_, CU_EVENT_RECORD_EXTERNAL),
              CUDA_ERROR_ILLEGAL_STATE);
    begin();
    ASSERT_CU(launch_affine(stream_, memory_, 10, 1, 10));
    ASSERT_CU(cuEventRecordWithFlags(outside, stream_, CU_EVENT_RECORD_EXTERNAL));
    const CUgraphExec exec = end();
    gate.hold(stream_);
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    EXPECT_EQ(cuEventQuery(outside), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuStreamWaitEvent(side_, outside, 0));
    ASSERT_CU(launch_affine(side_, memory_, 10, 2, 1));
    gate.open();
    ASSERT_CU(cuStreamSynchronize(side_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 12);
    ASSERT_CU(cuGraphExecDestroy(exec));
}

TEST_F(GraphTest, KernelsAndFillsByHandFollowTheEdges) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    int factor = 10;
    int value = 3;
    unsigned cost = 10;
    void* parameters[] = {&memory_, &factor, &value, &cost};
    CUDA_KERNEL_NODE_PARAMS k{};
    k.func = kernel("affine");
    k.gridDimX = k.gridDimY = k.gridDimZ = k.blockDimX = k.blockDimY = k.blockDimZ = 1;
    k.kernelParams = parameters;
    CUgraphNode launch = nullptr;
    ASSERT_CU(cuGraphAddKernelNode(&launch, graph, nullptr, 0, &k));
    value = 99;  // copied
    CUDA_MEMSET_NODE_PARAMS m{};
    m.dst = memory_;
    m.value = 4;
    m.elementSize = 4;
    m.width = 1;
    m.height = 1;
    CUgraphNode fill = nullptr;
    ASSERT_CU(cuGraphAddMemsetNode(&fill, graph, nullptr, 0, &m, context_));
    ASSERT_CU(cuGraphAddDependencies(graph, &fill, &launch, nullptr,
                                     1));  // against the order of creation
    EXPECT_EQ(cuGraphAddDependencies(graph, &fill, &launch, nullptr, 1), CUDA_ERROR_INVALID_VALUE);
    CUgraph clone = nullptr;
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphClone(&clone, graph));
    ASSERT_CU(cuGraphInstantiate(&exec, clone, 0));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(read_ints(memory_, 1)[0], 43);
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuGraphAddDependencies(graph, &launch, &fill, nullptr, 1));
    EXPECT_EQ(cuGraphInstantiate(&exec, graph, 0), CUDA_ERROR_INVALID_VALUE);  // a cycle
    ASSERT_CU(cuGraphDestroy(clone));
    ASSERT_CU(cuGraphDestroy(graph));
}

TEST_F(GraphTest, MadeByHand) {
    CUgraph graph = nullptr;
    ASSERT_CU(cuGraphCreate(&graph, 0));
    std::atomic<int> calls{0};
    CUDA_HOST_NODE_PARAMS parameters{};
    parameters.fn = [](void* data) { ++*static_cast<std::atomic<int>*>(data); };
    parameters.userData = &calls;
    CUgraphNode first = nullptr;
    CUgraphNode second = nullptr;
    ASSERT_CU(cuGraphAddEmptyNode(&first, graph, nullptr, 0));
    ASSERT_CU(cuGraphAddHostNode(&second, graph, &first, 1, &parameters));
    std::size_t roots = 0;
    ASSERT_CU(cuGraphGetRootNodes(graph, nullptr, &roots));
    EXPECT_EQ(roots, 1U);
    CUgraphExec exec = nullptr;
    ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
    ASSERT_CU(cuGraphLaunch(exec, stream_));
    ASSERT_CU(cuStreamSynchronize(stream_));
    EXPECT_EQ(calls, 1);
    ASSERT_CU(cuGraphExecDestroy(exec));
    ASSERT_CU(cuGraphDestroy(graph));
}

}  // namespace
}  // namespace simgpu::test
