// SPDX-License-Identifier: Apache-2.0
// The private interface for libnccl: joining, launches with callbacks, replay in graphs, abort,
// refusals. Both ranks live in this process, each on its own device and thread.

#include "../collective.h"

#include <array>
#include <atomic>
#include <functional>
#include <thread>

#include "test_machine.hpp"

namespace simgpu::test {
namespace {

std::atomic<std::uint64_t> next_key{1000};

// A sum over two ranks, the way libnccl does it: inputs to an exchange buffer at the start, the sum
// at the end.
struct Exchange {
    std::array<int, 2> input{};
};

struct Rank {
    std::uint64_t comm = 0;
    std::uint32_t rank = 0;
    Exchange* exchange = nullptr;
    int* send = nullptr;
    int* receive = nullptr;
    SimgpuRendezvous rendezvous{};
    std::uint64_t next_number = 0;
    std::atomic<int> prepared{0}, started{0}, done{0}, aborted{0}, released{0};
    bool refuse = false;
    bool left = false;
};

int prepare(void* user, SimgpuSubmission* submission) {
    auto* r = static_cast<Rank*>(user);
    if (r->refuse) return 1;
    ++r->prepared;
    r->rendezvous = {r->next_number++, 1'000'000, 2, 0};
    submission->comm = r->comm;
    submission->rank = r->rank;
    submission->rendezvous = &r->rendezvous;
    submission->rendezvous_count = 1;
    submission->instance = r;
    submission->on_start = [](void* instance) {
        auto* mine = static_cast<Rank*>(instance);
        mine->exchange->input[mine->rank] = *mine->send;
        ++mine->started;
    };
    submission->on_done = [](void* instance, int aborted) {
        auto* mine = static_cast<Rank*>(instance);
        if (aborted == 0) *mine->receive = mine->exchange->input[0] + mine->exchange->input[1];
        mine->aborted += aborted;
        ++mine->done;
    };
    return 0;
}

CUresult launch_sum(Rank* rank, CUstream stream) {
    SimgpuCollective collective{};
    collective.version = SIMGPU_COLLECTIVE_VERSION;
    collective.user = rank;
    collective.prepare = prepare;
    collective.release = [](void* user) { ++static_cast<Rank*>(user)->released; };
    std::size_t size = sizeof collective;
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &collective, CU_LAUNCH_PARAM_BUFFER_SIZE,
                     &size, CU_LAUNCH_PARAM_END};
    CUlaunchConfig config{};
    config.gridDimX = config.gridDimY = config.gridDimZ = 1;
    config.blockDimX = 512;
    config.blockDimY = config.blockDimZ = 1;
    config.hStream = stream;
    auto* function = static_cast<CUfunction>(
        simgpuCollectiveFunction("ncclDevKernel_AllReduce_Sum_i32_RING_LL"));
    return cuLaunchKernelEx(&config, function, nullptr, extra);
}

class CollectiveTest : public ::testing::Test {
  protected:
    // Joins both ranks and runs `body` on a thread of its own for each, with a context on device
    // `rank`.
    void on_both(const std::function<void(Rank&, CUstream)>& body) {
        const std::uint64_t key = next_key++;
        auto run = [&](std::uint32_t index) {
            Rank& rank = ranks_[index];
            CUcontext context = nullptr;
            CUstream stream = nullptr;
            ASSERT_CU(cuCtxCreate(&context, nullptr, 0, static_cast<CUdevice>(index)));
            ASSERT_CU(cuStreamCreate(&stream, CU_STREAM_NON_BLOCKING));
            rank.rank = index;
            rank.exchange = &exchange_;
            const CUdeviceptr memory = zeroed(2);
            rank.send = reinterpret_cast<int*>(memory);
            rank.receive = rank.send + 1;
            ASSERT_EQ(
                simgpuCommInit(key, index, 2, static_cast<int>(index), 0, nullptr, &rank.comm),
                SIMGPU_OK);
            body(rank, stream);
            EXPECT_EQ(simgpuCommDestroy(rank.comm, index), rank.left ? SIMGPU_INVALID : SIMGPU_OK);
            ASSERT_CU(cuCtxDestroy(context));
        };
        std::thread first(run, 0U);
        std::thread second(run, 1U);
        first.join();
        second.join();
    }
    std::array<Rank, 2> ranks_;
    Exchange exchange_;
};

TEST_F(CollectiveTest, SumsInStreamOrder) {
    on_both([](Rank& rank, CUstream stream) {
        const auto send = reinterpret_cast<CUdeviceptr>(rank.send);
        ASSERT_CU(launch_add(stream, send, static_cast<int>(rank.rank) + 5, 1, 3000));
        ASSERT_CU(launch_sum(&rank, stream));
        ASSERT_CU(launch_add(stream, reinterpret_cast<CUdeviceptr>(rank.receive), 100, 1, 10));
        ASSERT_CU(cuStreamSynchronize(stream));
        EXPECT_EQ(*rank.receive, 111);
        EXPECT_EQ(rank.started, 1);
        EXPECT_EQ(rank.done, 1);
        EXPECT_EQ(rank.aborted, 0);
    });
    for (const Rank& rank : ranks_) EXPECT_EQ(rank.released, 1);
}

TEST_F(CollectiveTest, ReplaysWithFreshNumbersFromAGraph) {
    on_both([](Rank& rank, CUstream stream) {
        ASSERT_CU(cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL));
        ASSERT_CU(launch_add(stream, reinterpret_cast<CUdeviceptr>(rank.send), 1, 1, 10));
        ASSERT_CU(launch_sum(&rank, stream));
        CUgraph graph = nullptr;
        CUgraphExec exec = nullptr;
        ASSERT_CU(cuStreamEndCapture(stream, &graph));
        EXPECT_EQ(rank.prepared, 0);
        ASSERT_CU(cuGraphInstantiate(&exec, graph, 0));
        ASSERT_CU(cuGraphDestroy(graph));
        for (int i = 0; i < 3; ++i) ASSERT_CU(cuGraphLaunch(exec, stream));
        ASSERT_CU(cuStreamSynchronize(stream));
        EXPECT_EQ(*rank.receive, 6);  // both at 3
        EXPECT_EQ(rank.prepared, 3);
        EXPECT_EQ(rank.done, 3);
        EXPECT_EQ(rank.released, 0);
        ASSERT_CU(cuGraphExecDestroy(exec));
        EXPECT_EQ(rank.released, 1);
    });
}

TEST_F(CollectiveTest, AbortFreesARankWhosePeerDoesNotCome) {
    on_both([](Rank& rank, CUstream stream) {
        if (rank.rank == 0) {
            ASSERT_CU(launch_sum(&rank, stream));
            EXPECT_EQ(cuStreamQuery(stream), CUDA_ERROR_NOT_READY);
            EXPECT_EQ(simgpuCommAbort(rank.comm, rank.rank), SIMGPU_OK);
            ASSERT_CU(cuStreamSynchronize(stream));
            EXPECT_EQ(rank.done, 1);
            EXPECT_EQ(rank.aborted, 1);
            rank.left = true;
            EXPECT_EQ(launch_sum(&rank, stream), CUDA_ERROR_LAUNCH_FAILED);
            EXPECT_EQ(rank.done, 2);
            EXPECT_EQ(rank.aborted, 2);
            EXPECT_EQ(rank.released, 2);
            EXPECT_CU(cuStreamSynchronize(stream));
        }
    });
}

TEST_F(CollectiveTest, ARefusedLaunchIsReleased) {
    on_both([](Rank& rank, CUstream stream) {
        rank.refuse = true;
        EXPECT_EQ(launch_sum(&rank, stream), CUDA_ERROR_LAUNCH_FAILED);
        EXPECT_EQ(rank.released, 1);
        EXPECT_EQ(rank.done, 0);
        EXPECT_CU(cuCtxSetCurrent(nullptr));
        EXPECT_EQ(launch_sum(&rank, stream), CUDA_ERROR_INVALID_CONTEXT);
        EXPECT_EQ(rank.released, 2);
    });
}

TEST_F(CollectiveTest, JoiningCanBeAborted) {
    volatile std::uint32_t flag = 0;
    const std::uint64_t key = next_key++;
    int result = SIMGPU_OK;
    std::thread joiner([&] {
        std::uint64_t comm = 0;
        result = simgpuCommInit(key, 0, 2, 0, 0, &flag, &comm);
    });
    __atomic_store_n(&flag, 1U, __ATOMIC_RELEASE);
    joiner.join();
    EXPECT_EQ(result, SIMGPU_ABORTED);
}

TEST_F(CollectiveTest, TwoRanksOnOneDeviceAreRefused) {
    const std::uint64_t key = next_key++;
    std::array<int, 2> results{};
    auto join = [&](std::uint32_t rank) {
        std::uint64_t comm = 0;
        results[rank] = simgpuCommInit(key, rank, 2, 1, 0, nullptr, &comm);
    };
    std::thread first(join, 0U);
    std::thread second(join, 1U);
    first.join();
    second.join();
    EXPECT_EQ(results[0], SIMGPU_DUPLICATE_DEVICE);
    EXPECT_EQ(results[1], SIMGPU_DUPLICATE_DEVICE);
}

TEST_F(CollectiveTest, RanksOfDifferentHostsMayShareADevice) {
    const std::uint64_t key = next_key++;
    std::array<int, 2> results{};
    std::array<std::uint64_t, 2> comms{};
    auto join = [&](std::uint32_t rank) {
        results[rank] = simgpuCommInit(key, rank, 2, 1, 7 + rank, nullptr, &comms[rank]);
    };
    std::thread first(join, 0U);
    std::thread second(join, 1U);
    first.join();
    second.join();
    EXPECT_EQ(results[0], SIMGPU_OK);
    EXPECT_EQ(results[1], SIMGPU_OK);
    EXPECT_EQ(comms[0], comms[1]);
}

TEST_F(CollectiveTest, ArgumentsAreChecked) {
    std::uint64_t comm = 0;
    EXPECT_EQ(simgpuCommInit(1, 2, 2, 0, 0, nullptr, &comm), SIMGPU_INVALID);
    EXPECT_EQ(simgpuCommInit(1, 0, 2, 17, 0, nullptr, &comm), SIMGPU_INVALID);
    EXPECT_EQ(simgpuCommInit(1, 0, 2, 0, 0, nullptr, nullptr), SIMGPU_INVALID);
    EXPECT_EQ(simgpuSameDevice(1, 1), 1);
    EXPECT_EQ(simgpuSameDevice(1, 2), 0);
    EXPECT_EQ(simgpuSameDevice(1, 9), -1);
    EXPECT_EQ(std::string(simgpuDataDirectory()), machine().dir() + "/data");
    EXPECT_EQ(simgpuCollectiveFunction("a"), simgpuCollectiveFunction("a"));
    EXPECT_NE(simgpuCollectiveFunction("a"), simgpuCollectiveFunction("b"));
    EXPECT_EQ(simgpuCollectiveFunction(""), nullptr);
    const char* name = nullptr;
    ASSERT_CU(cuFuncGetName(&name, static_cast<CUfunction>(simgpuCollectiveFunction("a"))));
    EXPECT_STREQ(name, "a");
}

}  // namespace
}  // namespace simgpu::test
