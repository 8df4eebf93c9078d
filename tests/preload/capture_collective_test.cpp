// SPDX-License-Identifier: Apache-2.0
// Graphs whose capture contained a collective, with the library preloaded into this very test:
// their launches are seen as communication, however the graph came to be. Two ranks on two devices,
// a thread each; another job wants the first device.
#include <nccl.h>

#include <array>
#include <atomic>

#include "capture_fixture.hpp"

#undef cuGraphInstantiate
extern "C" {
CUresult CUDAAPI cuGraphInstantiate(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec*, CUgraph, CUgraphNode*, char*, size_t);
CUresult CUDAAPI cuGraphInstantiateWithParams_ptsz(CUgraphExec*, CUgraph,
                                                   CUDA_GRAPH_INSTANTIATE_PARAMS*);
}

namespace crossover::test {
namespace {

#define EXPECT_NCCL(call) EXPECT_EQ(call, ncclSuccess)

constexpr std::size_t kCount = 4 << 20;  // floats of one all-reduce: more than a millisecond

class Collectives : public Captures {
  protected:
    struct Rank {
        CUcontext context = nullptr;
        CUstream stream = nullptr;
        CUstream side = nullptr;
        CUevent fork = nullptr;
        CUevent join = nullptr;
        CUdeviceptr data = 0;
        CUdeviceptr number = 0;
        ncclComm_t comm = nullptr;
    };
    void SetUp() override {
        Captures::SetUp();
        for (int i = 0; i < 2; ++i) {
            Rank& rank = ranks_[static_cast<std::size_t>(i)];
            ASSERT_CU(cuDevicePrimaryCtxRetain(&rank.context, i));
            ASSERT_CU(cuCtxSetCurrent(rank.context));
            ASSERT_CU(cuStreamCreate(&rank.stream, CU_STREAM_NON_BLOCKING));
            ASSERT_CU(cuStreamCreate(&rank.side, CU_STREAM_NON_BLOCKING));
            ASSERT_CU(cuEventCreate(&rank.fork, CU_EVENT_DISABLE_TIMING));
            ASSERT_CU(cuEventCreate(&rank.join, CU_EVENT_DISABLE_TIMING));
            ASSERT_CU(cuMemAlloc(&rank.data, kCount * sizeof(float)));
            ASSERT_CU(cuMemAlloc(&rank.number, sizeof(int)));
            ASSERT_CU(cuMemsetD32(rank.number, 0, 1));
        }
        const std::array<int, 2> devices{0, 1};
        std::array<ncclComm_t, 2> comms{};
        ASSERT_EQ(ncclCommInitAll(comms.data(), 2, devices.data()), ncclSuccess);
        ranks_[0].comm = comms[0];
        ranks_[1].comm = comms[1];
        ASSERT_CU(cuCtxSetCurrent(context_));
    }
    void TearDown() override {
        on_both([&](Rank& rank) { EXPECT_NCCL(ncclCommDestroy(rank.comm)); });
    }
    void on_both(const std::function<void(Rank&)>& body) {
        std::array<std::thread, 2> threads;
        for (std::size_t i = 0; i < 2; ++i) {
            threads[i] = std::thread([&, i] {
                EXPECT_CU(cuCtxSetCurrent(ranks_[i].context));
                body(ranks_[i]);
            });
        }
        for (std::thread& each : threads) each.join();
    }
    CUresult add(const Rank& rank, CUstream stream, unsigned cost_us = 300) {
        CUdeviceptr at = rank.number;
        int value = 1;
        int count = 1;
        void* parameters[] = {&at, &value, &count, &cost_us};
        return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    }
    static void all_reduce(const Rank& rank, CUstream stream) {
        auto* data = reinterpret_cast<void*>(rank.data);
        EXPECT_NCCL(ncclAllReduce(data, data, kCount, ncclFloat, ncclSum, rank.comm, stream));
    }
    enum class Content { kCompute, kCommunicate, kBoth, kForked };
    CUgraph capture(const Rank& rank, Content content) {
        EXPECT_CU(cuStreamBeginCapture(rank.stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        if (content != Content::kCommunicate) {
            EXPECT_CU(add(rank, rank.stream));
        }
        if (content == Content::kForked) {
            EXPECT_CU(cuEventRecord(rank.fork, rank.stream));
            EXPECT_CU(cuStreamWaitEvent(rank.side, rank.fork, 0));
            all_reduce(rank, rank.side);
            EXPECT_CU(cuEventRecord(rank.join, rank.side));
            EXPECT_CU(cuStreamWaitEvent(rank.stream, rank.join, 0));
        } else if (content != Content::kCompute) {
            all_reduce(rank, rank.stream);
        }
        CUgraph graph = nullptr;
        EXPECT_CU(cuStreamEndCapture(rank.stream, &graph));
        return graph;
    }
    using Instantiate = std::function<CUresult(CUgraphExec*, CUgraph)>;
    static CUresult plain(CUgraphExec* executable, CUgraph graph) {
        return cuGraphInstantiateWithFlags(executable, graph, 0);
    }
    std::array<CUgraphExec, 2> make(Content content, const Instantiate& instantiate = plain) {
        std::array<CUgraphExec, 2> made{};
        on_both([&](Rank& rank) {
            const CUgraph graph = capture(rank, content);
            EXPECT_CU(instantiate(&made[static_cast<std::size_t>(&rank - ranks_.data())], graph));
            EXPECT_CU(cuGraphDestroy(graph));
        });
        return made;
    }
    // Launches on both ranks and waits; gives how many collectives were seen on the first device.
    std::uint64_t launched(const std::array<CUgraphExec, 2>& executables) {
        const std::uint64_t before = own().collectives;
        on_both([&](Rank& rank) {
            EXPECT_CU(cuMemsetD32Async(rank.data, 0x3F800000, kCount, rank.stream));  // 1.0
            EXPECT_CU(cuGraphLaunch(executables[static_cast<std::size_t>(&rank - ranks_.data())],
                                    rank.stream));
            EXPECT_CU(cuStreamSynchronize(rank.stream));
        });
        return own().collectives - before;
    }
    void expect_summed() {
        on_both([&](Rank& rank) {
            float value = 0;
            EXPECT_CU(cuMemcpyDtoH(&value, rank.data + (kCount - 1) * sizeof value, sizeof value));
            EXPECT_EQ(value, 2.0F);
        });
    }
    static void destroy(const std::array<CUgraphExec, 2>& executables) {
        for (const CUgraphExec each : executables) EXPECT_CU(cuGraphExecDestroy(each));
    }
    std::array<Rank, 2> ranks_;
};

TEST_F(Collectives, InGraphsMadeInEveryWay) {
    let_peer_hold();
    const std::pair<const char*, Instantiate> ways[] = {
        {"first form",
         [](CUgraphExec* e, CUgraph g) { return cuGraphInstantiate(e, g, nullptr, nullptr, 0); }},
        {"second form", [](CUgraphExec* e,
                           CUgraph g) { return cuGraphInstantiate_v2(e, g, nullptr, nullptr, 0); }},
        {"with flags", plain},
        {"with parameters",
         [](CUgraphExec* e, CUgraph g) {
             CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
             return cuGraphInstantiateWithParams(e, g, &parameters);
         }},
        {"with parameters, per-thread",
         [](CUgraphExec* e, CUgraph g) {
             CUDA_GRAPH_INSTANTIATE_PARAMS parameters{};
             return cuGraphInstantiateWithParams_ptsz(e, g, &parameters);
         }},
        {"of a copy",
         [](CUgraphExec* e, CUgraph g) {
             CUgraph copy = nullptr;
             EXPECT_CU(cuGraphClone(&copy, g));
             const CUresult result = plain(e, copy);
             EXPECT_CU(cuGraphDestroy(copy));
             return result;
         }},
    };
    for (const auto& [name, instantiate] : ways) {
        for (const Content content : {Content::kBoth, Content::kForked, Content::kCommunicate}) {
            SCOPED_TRACE(name);
            const auto executables = make(content, instantiate);
            EXPECT_EQ(launched(executables), 1U);
            EXPECT_EQ(launched(executables), 1U);
            expect_summed();
            destroy(executables);
        }
        // Handles come again, what they stood for does not.
        const auto compute = make(Content::kCompute, instantiate);
        EXPECT_EQ(launched(compute), 0U);
        destroy(compute);
    }
}

TEST_F(Collectives, CapturedAloneAndLaunchedBesideAnotherJob) {
    const auto both = make(Content::kBoth);
    const auto only = make(Content::kCommunicate);
    const auto compute = make(Content::kCompute);
    let_peer_hold();
    EXPECT_EQ(launched(both), 1U);
    EXPECT_EQ(launched(only), 1U);
    expect_summed();
    EXPECT_EQ(launched(compute), 0U);
}

TEST_F(Collectives, OfAGraphInsideAnother) {
    let_peer_hold();
    for (const Content content : {Content::kBoth, Content::kCommunicate, Content::kCompute}) {
        const auto inner = make(content);
        std::array<CUgraphExec, 2> outer{};
        on_both([&](Rank& rank) {
            const auto i = static_cast<std::size_t>(&rank - ranks_.data());
            EXPECT_CU(cuStreamBeginCapture(rank.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
            EXPECT_CU(cuGraphLaunch(inner[i], rank.stream));
            CUgraph graph = nullptr;
            EXPECT_CU(cuStreamEndCapture(rank.stream, &graph));
            EXPECT_CU(plain(&outer[i], graph));
        });
        EXPECT_EQ(launched(outer), content == Content::kCompute ? 0U : 1U);
    }
}

TEST_F(Collectives, ABrokenCaptureLeavesNothing) {
    let_peer_hold();
    on_both([&](Rank& rank) {
        EXPECT_CU(cuStreamBeginCapture(rank.stream, CU_STREAM_CAPTURE_MODE_RELAXED));
        all_reduce(rank, rank.stream);
        EXPECT_CU(cuEventRecord(rank.fork, rank.stream));
        EXPECT_CU(cuStreamWaitEvent(rank.side, rank.fork, 0));
        EXPECT_CU(add(rank, rank.side));
        CUgraph graph = nullptr;
        EXPECT_EQ(cuStreamEndCapture(rank.stream, &graph), CUDA_ERROR_STREAM_CAPTURE_UNJOINED);
    });
    const auto compute = make(Content::kCompute);
    EXPECT_EQ(launched(compute), 0U);
}

// A graph of nothing but communication behind compute: the job's window, and no turn taken.
TEST_F(Collectives, AGraphOfCommunicationOpensAWindowAndIsNotHeld) {
    const auto only = make(Content::kCommunicate);
    const auto compute = make(Content::kCompute);
    let_peer_hold();
    const std::uint64_t turns_before = turns();
    EXPECT_EQ(launched(only), 1U);
    EXPECT_EQ(turns(), turns_before) << "communication took a turn";

    const std::uint64_t windows = own().windows;
    const std::uint64_t communicated = own().communicated_ns;
    await([&] {
        EXPECT_EQ(launched(compute), 0U);
        EXPECT_EQ(launched(only), 1U);
        return HasFailure() || own().windows > windows;
    });
    await([&] { return own().communicated_ns > communicated; });
}

// A graph of compute and communication waits for its peer ranks inside, so it neither takes a turn
// nor keeps one: what comes behind it takes its own, at the graph's end.
TEST_F(Collectives, AGraphOfBothTakesNoTurnAndWhatComesBehindItDoes) {
    const auto both = make(Content::kBoth);
    let_peer_hold();
    const std::uint64_t before = turns();
    const std::uint64_t windows = own().windows;
    EXPECT_EQ(launched(both), 1U);
    expect_summed();
    EXPECT_EQ(turns(), before) << "a turn was held across a collective";
    EXPECT_EQ(own().windows, windows) << "its compute is none of a window";
    on_both([&](Rank& rank) {
        EXPECT_CU(
            cuGraphLaunch(both[static_cast<std::size_t>(&rank - ranks_.data())], rank.stream));
        EXPECT_CU(add(rank, rank.stream));
        EXPECT_CU(cuStreamSynchronize(rank.stream));
    });
    EXPECT_GT(turns(), before);
}

// The turn that compute before the graph has taken goes while the graph waits for its peer.
TEST_F(Collectives, AGraphOfBothLetsTheTurnOfEarlierComputeGo) {
    const auto both = make(Content::kBoth);
    let_peer_hold();
    const std::uint64_t before = turns();
    const std::uint64_t expired = device().jobs.at("captures").expired;
    ASSERT_CU(cuCtxSetCurrent(ranks_[0].context));
    EXPECT_CU(add(ranks_[0], ranks_[0].stream));
    EXPECT_CU(cuGraphLaunch(both[0], ranks_[0].stream));
    await([&] { return turns() > before; });
    // It ends only with its peer's, which is not there yet.
    await([&] { return !own().claims; });
    EXPECT_EQ(cuStreamQuery(ranks_[0].stream), CUDA_ERROR_NOT_READY);
    ASSERT_CU(cuCtxSetCurrent(ranks_[1].context));
    EXPECT_CU(cuGraphLaunch(both[1], ranks_[1].stream));
    EXPECT_CU(cuStreamSynchronize(ranks_[1].stream));
    ASSERT_CU(cuCtxSetCurrent(ranks_[0].context));
    EXPECT_CU(cuStreamSynchronize(ranks_[0].stream));
    EXPECT_EQ(device().jobs.at("captures").expired, expired) << "only its lease took the turn away";
}

}  // namespace
}  // namespace crossover::test
