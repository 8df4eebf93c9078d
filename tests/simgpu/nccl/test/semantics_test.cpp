// SPDX-License-Identifier: Apache-2.0
// What calls of the virtual GPU's libnccl mean: data movement, groups, streams, capture,
// communicators and their ends, errors. Arithmetic is in numerics_test.cpp.
#include <dlfcn.h>
#include <time.h>

#include <numeric>
#include <thread>

#include "ranks.hpp"

namespace simgpu::test {
namespace {

std::vector<int> sequence(std::size_t count, int first) {
    std::vector<int> values(count);
    std::iota(values.begin(), values.end(), first);
    return values;
}

void pause() {
    const timespec ms{0, 1'000'000};
    nanosleep(&ms, nullptr);
}

// Polls a non-blocking communicator; the test's watchdog bounds it.
ncclResult_t settle(ncclComm_t comm) {
    ncclResult_t state = ncclInProgress;
    while (state == ncclInProgress) {
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
        pause();
    }
    return state;
}

TEST(Movement, AllGatherAndBroadcast) {
    run_ranks(3, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 3, id);
        const Array<int> mine(sequence(1000, rank * 1000));
        const Array<int> all(3000);
        EXPECT_NCCL(ncclAllGather(mine.get(), all.get(), 1000, ncclInt32, self.comm, self.stream));
        const Array<int> copy(1000);
        EXPECT_NCCL(
            ncclBroadcast(mine.get(), copy.get(), 1000, ncclInt32, 1, self.comm, self.stream));
        const Array<int> in_place(sequence(7, rank));
        EXPECT_NCCL(ncclBcast(in_place.get(), 7, ncclInt32, 2, self.comm, self.stream));
        self.synchronize();
        EXPECT_EQ(sequence(3000, 0), all.read());
        EXPECT_EQ(sequence(1000, 1000), copy.read());
        EXPECT_EQ(sequence(7, 2), in_place.read());
    });
}

TEST(Movement, AllGatherInPlace) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        const Array<int> all(sequence(200, rank == 0 ? 0 : 1000));
        EXPECT_NCCL(ncclAllGather(all.get() + rank * 100, all.get(), 100, ncclInt32, self.comm,
                                  self.stream));
        self.synchronize();
        std::vector<int> want = sequence(100, 0);
        const std::vector<int> second = sequence(100, 1100);
        want.insert(want.end(), second.begin(), second.end());
        EXPECT_EQ(want, all.read());
    });
}

TEST(Movement, SendReceiveRing) {
    run_ranks(3, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 3, id);
        const int next = (rank + 1) % 3;
        const int before = (rank + 2) % 3;
        for (int round = 0; round < 20; ++round) {
            const Array<int> out(sequence(500, rank * 10000 + round));
            const Array<int> in(500);
            EXPECT_NCCL(ncclGroupStart());
            EXPECT_NCCL(ncclSend(out.get(), 500, ncclInt32, next, self.comm, self.stream));
            EXPECT_NCCL(ncclRecv(in.get(), 500, ncclInt32, before, self.comm, self.stream));
            EXPECT_NCCL(ncclGroupEnd());
            self.synchronize();
            EXPECT_EQ(sequence(500, before * 10000 + round), in.read());
        }
    });
}

TEST(Movement, SendToSelfNeedsAMatchingReceive) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        const Array<int> out(sequence(10, rank));
        const Array<int> in(10);
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclSend(out.get(), 10, ncclInt32, rank, self.comm, self.stream));
        EXPECT_NCCL(ncclRecv(in.get(), 10, ncclInt32, rank, self.comm, self.stream));
        EXPECT_NCCL(ncclGroupEnd());
        self.synchronize();
        EXPECT_EQ(sequence(10, rank), in.read());
        EXPECT_EQ(ncclInvalidUsage,
                  ncclSend(out.get(), 10, ncclInt32, rank, self.comm, self.stream));
    });
}

TEST(Movement, AlltoAllGatherScatter) {
    run_ranks(3, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 3, id);
        const Array<int> out(sequence(30, rank * 100));
        const Array<int> exchanged(30);
        const Array<int> gathered(30);
        const Array<int> scattered(10);
        EXPECT_NCCL(
            ncclAlltoAll(out.get(), exchanged.get(), 10, ncclInt32, self.comm, self.stream));
        EXPECT_NCCL(
            ncclGather(out.get(), gathered.get(), 10, ncclInt32, 1, self.comm, self.stream));
        EXPECT_NCCL(
            ncclScatter(out.get(), scattered.get(), 10, ncclInt32, 2, self.comm, self.stream));
        self.synchronize();
        std::vector<int> want;
        std::vector<int> want_gathered;
        for (int from = 0; from < 3; ++from) {
            const std::vector<int> part = sequence(10, from * 100 + rank * 10);
            want.insert(want.end(), part.begin(), part.end());
            const std::vector<int> first = sequence(10, from * 100);
            want_gathered.insert(want_gathered.end(), first.begin(), first.end());
        }
        EXPECT_EQ(want, exchanged.read());
        if (rank == 1) {
            EXPECT_EQ(want_gathered, gathered.read());
        }
        EXPECT_EQ(sequence(10, 200 + rank * 10), scattered.read());
    });
}

TEST(Group, FusesSeveralCollectivesAndStreams) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        cudaStream_t other = nullptr;
        ASSERT_CUDA(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking));
        const Array<int> a(sequence(100, rank));
        const Array<int> b(sequence(300, 10 * rank));
        const Array<int> c(sequence(2, rank * 50));
        const Array<int> received(2);
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(
            ncclAllReduce(a.get(), a.get(), 100, ncclInt32, ncclSum, self.comm, self.stream));
        EXPECT_NCCL(ncclGroupEnd());
        // The inner end launches nothing.
        EXPECT_CUDA(cudaStreamSynchronize(self.stream));
        EXPECT_EQ(sequence(100, rank), a.read());
        EXPECT_NCCL(ncclAllReduce(b.get(), b.get(), 300, ncclInt32, ncclMax, self.comm, other));
        EXPECT_NCCL(ncclSend(c.get(), 2, ncclInt32, 1 - rank, self.comm, other));
        EXPECT_NCCL(ncclRecv(received.get(), 2, ncclInt32, 1 - rank, self.comm, other));
        EXPECT_NCCL(ncclGroupEnd());
        EXPECT_CUDA(cudaStreamSynchronize(other));
        EXPECT_EQ(sequence(300, 10), b.read());
        EXPECT_EQ(sequence(2, (1 - rank) * 50), received.read());
        self.synchronize();
        std::vector<int> want = sequence(100, 0);
        for (int& value : want) {
            value = 2 * value + 1;
        }
        EXPECT_EQ(want, a.read());
        EXPECT_CUDA(cudaStreamDestroy(other));
    });
}

TEST(Group, AFailureInsideSpoilsAllOfIt) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        const Array<int> a(sequence(10, rank));
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(
            ncclAllReduce(a.get(), a.get(), 10, ncclInt32, ncclSum, self.comm, self.stream));
        EXPECT_EQ(ncclInvalidArgument,
                  ncclBroadcast(a.get(), a.get(), 10, ncclInt32, 2, self.comm, self.stream));
        EXPECT_EQ(ncclInvalidArgument, ncclGroupEnd());
        self.synchronize();
        EXPECT_EQ(sequence(10, rank), a.read());
        EXPECT_EQ(ncclInvalidUsage, ncclGroupEnd());
    });
}

TEST(Group, OneProcessDrivesAllRanks) {
    run_ranks(1, [](int, const ncclUniqueId&) {
        ncclComm_t comms[3] = {};
        const int twice[] = {0, 1, 0};
        EXPECT_EQ(ncclInvalidUsage, ncclCommInitAll(comms, 3, twice));
        const int devices[] = {2, 0, 1};
        ASSERT_NCCL(ncclCommInitAll(comms, 3, devices));
        cudaStream_t streams[3] = {};
        std::vector<int*> buffers;
        for (int rank = 0; rank < 3; ++rank) {
            int device = -1;
            EXPECT_NCCL(ncclCommCuDevice(comms[rank], &device));
            EXPECT_EQ(devices[rank], device);
            ASSERT_CUDA(cudaSetDevice(device));
            ASSERT_CUDA(cudaStreamCreate(&streams[rank]));
            void* pointer = nullptr;
            ASSERT_NCCL(ncclMemAlloc(&pointer, 100 * sizeof(int)));
            const std::vector<int> values = sequence(100, rank);
            ASSERT_CUDA(
                cudaMemcpy(pointer, values.data(), 100 * sizeof(int), cudaMemcpyHostToDevice));
            buffers.push_back(static_cast<int*>(pointer));
        }
        EXPECT_NCCL(ncclGroupStart());
        for (int rank = 0; rank < 3; ++rank) {
            int* const buffer = buffers[static_cast<std::size_t>(rank)];
            EXPECT_NCCL(
                ncclAllReduce(buffer, buffer, 100, ncclInt32, ncclSum, comms[rank], streams[rank]));
        }
        EXPECT_NCCL(ncclGroupEnd());
        int current = -1;
        EXPECT_CUDA(cudaGetDevice(&current));
        EXPECT_EQ(1, current);
        std::vector<int> want = sequence(100, 0);
        for (int& value : want) {
            value = 3 * value + 3;
        }
        for (int rank = 0; rank < 3; ++rank) {
            EXPECT_CUDA(cudaStreamSynchronize(streams[rank]));
            std::vector<int> got(100);
            int* const buffer = buffers[static_cast<std::size_t>(rank)];
            EXPECT_CUDA(cudaMemcpy(got.data(), buffer, 100 * sizeof(int), cudaMemcpyDeviceToHost));
            EXPECT_EQ(want, got);
            EXPECT_NCCL(ncclMemFree(buffer));
            EXPECT_NCCL(ncclCommDestroy(comms[rank]));
        }
    });
}

TEST(Capture, ReplaysACollectiveWithEachLaunch) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        const Array<int> a(sequence(64, rank));
        cudaGraph_t graph = nullptr;
        cudaGraphExec_t exec = nullptr;
        ASSERT_CUDA(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeGlobal));
        EXPECT_NCCL(
            ncclAllReduce(a.get(), a.get(), 64, ncclInt32, ncclSum, self.comm, self.stream));
        ASSERT_CUDA(cudaStreamEndCapture(self.stream, &graph));
        ASSERT_CUDA(cudaGraphInstantiate(&exec, graph, 0));
        EXPECT_EQ(sequence(64, rank), a.read());
        std::vector<int> want = sequence(64, 0);
        for (int replay = 0; replay < 5; ++replay) {
            EXPECT_CUDA(cudaGraphLaunch(exec, self.stream));
            for (int& value : want) {
                value = replay == 0 ? 2 * value + 1 : 2 * value;
            }
        }
        self.synchronize();
        EXPECT_EQ(want, a.read());
        EXPECT_CUDA(cudaGraphExecDestroy(exec));
        EXPECT_CUDA(cudaGraphDestroy(graph));
    });
}

TEST(Communicator, SplitOrdersByKeyAndLeavesOutNoColor) {
    run_ranks(3, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 3, id);
        ncclComm_t part = nullptr;
        // Ranks 0 and 2 form one communicator in reverse order.
        ASSERT_NCCL(
            ncclCommSplit(self.comm, rank == 1 ? NCCL_SPLIT_NOCOLOR : 5, -rank, &part, nullptr));
        if (rank == 1) {
            EXPECT_EQ(nullptr, part);
            return;
        }
        int size = 0;
        int own = -1;
        EXPECT_NCCL(ncclCommCount(part, &size));
        EXPECT_NCCL(ncclCommUserRank(part, &own));
        EXPECT_EQ(2, size);
        EXPECT_EQ(rank == 2 ? 0 : 1, own);
        const Array<int> a(std::vector<int>{rank + 1});
        EXPECT_NCCL(ncclAllReduce(a.get(), a.get(), 1, ncclInt32, ncclSum, part, self.stream));
        self.synchronize();
        EXPECT_EQ(std::vector<int>{4}, a.read());
        EXPECT_NCCL(ncclCommDestroy(part));
    });
}

TEST(Communicator, ShrinkClosesTheGap) {
    run_ranks(3, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 3, id);
        if (rank == 0) {
            return;
        }
        int gone[] = {0};
        ncclComm_t rest = nullptr;
        ASSERT_NCCL(ncclCommShrink(self.comm, gone, 1, &rest, nullptr, NCCL_SHRINK_DEFAULT));
        int own = -1;
        EXPECT_NCCL(ncclCommUserRank(rest, &own));
        EXPECT_EQ(rank - 1, own);
        const Array<int> a(std::vector<int>{rank});
        EXPECT_NCCL(ncclAllReduce(a.get(), a.get(), 1, ncclInt32, ncclSum, rest, self.stream));
        self.synchronize();
        EXPECT_EQ(std::vector<int>{3}, a.read());
        EXPECT_NCCL(ncclCommDestroy(rest));
    });
}

TEST(Communicator, NonBlockingCallsReturnBeforeTheyAreDone) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_CUDA(cudaSetDevice(rank));
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclComm_t comm = nullptr;
        ASSERT_EQ(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, rank, &config));
        ASSERT_NE(nullptr, comm);
        ASSERT_EQ(ncclSuccess, settle(comm));
        const Array<int> a(sequence(10, rank));
        EXPECT_EQ(ncclInProgress,
                  ncclAllReduce(a.get(), a.get(), 10, ncclInt32, ncclSum, comm, nullptr));
        EXPECT_EQ(ncclSuccess, settle(comm));
        EXPECT_CUDA(cudaStreamSynchronize(nullptr));
        std::vector<int> want = sequence(10, 0);
        for (int& value : want) {
            value = 2 * value + 1;
        }
        EXPECT_EQ(want, a.read());
        EXPECT_EQ(ncclInProgress, ncclCommFinalize(comm));
        EXPECT_EQ(ncclSuccess, settle(comm));
        EXPECT_EQ(ncclInvalidUsage,
                  ncclAllReduce(a.get(), a.get(), 10, ncclInt32, ncclSum, comm, nullptr));
        EXPECT_NCCL(ncclCommDestroy(comm));
    });
}

TEST(Communicator, AbortEndsAnInitialisationThatNobodyJoins) {
    run_ranks(1, [](int, const ncclUniqueId& id) {
        ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
        config.blocking = 0;
        ncclComm_t comm = nullptr;
        ASSERT_EQ(ncclInProgress, ncclCommInitRankConfig(&comm, 2, id, 0, &config));
        EXPECT_EQ(ncclInvalidArgument,
                  ncclAllReduce(&comm, &comm, 1, ncclInt8, ncclSum, comm, nullptr));
        EXPECT_NCCL(ncclCommAbort(comm));
    });
}

TEST(Communicator, AbortLetsAStuckCollectiveGo) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_CUDA(cudaSetDevice(rank));
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
        if (rank == 1) {
            // Never calls the collective; goes once its peer has given up.
            ncclResult_t state = ncclSuccess;
            EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
            EXPECT_EQ(ncclSuccess, state);
            EXPECT_NCCL(ncclCommDestroy(comm));
            return;
        }
        cudaStream_t stream = nullptr;
        ASSERT_CUDA(cudaStreamCreate(&stream));
        const Array<int> a(sequence(10, 7));
        EXPECT_NCCL(ncclAllReduce(a.get(), a.get(), 10, ncclInt32, ncclSum, comm, stream));
        pause();
        EXPECT_EQ(cudaErrorNotReady, cudaStreamQuery(stream));
        EXPECT_NCCL(ncclCommAbort(comm));
        EXPECT_CUDA(cudaStreamSynchronize(stream));
        EXPECT_EQ(sequence(10, 7), a.read());
        EXPECT_EQ(ncclInvalidArgument,
                  ncclAllReduce(a.get(), a.get(), 10, ncclInt32, ncclSum, comm, stream));
        EXPECT_CUDA(cudaStreamDestroy(stream));
    });
}

TEST(Communicator, TwoRanksOnOneDeviceAreRefused) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_CUDA(cudaSetDevice(0));
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclInvalidUsage, ncclCommInitRank(&comm, 2, id, rank));
        EXPECT_EQ(nullptr, comm);
    });
}

// Each of them takes itself for another host, as people do who have too few GPUs.
TEST(Communicator, RanksWithHostIdsOfTheirOwnMayShareADevice) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_EQ(0, setenv("NCCL_HOSTID", rank == 0 ? "one" : "other", 1));
        const Rank self(rank, 2, id, 0);
        const Array<int> a(sequence(1000, rank));
        EXPECT_NCCL(
            ncclAllReduce(a.get(), a.get(), 1000, ncclInt32, ncclSum, self.comm, self.stream));
        // A part of the communicator is of the same hosts.
        ncclComm_t part = nullptr;
        EXPECT_NCCL(ncclCommSplit(self.comm, 0, rank, &part, nullptr));
        EXPECT_NCCL(ncclAllReduce(a.get(), a.get(), 1000, ncclInt32, ncclSum, part, self.stream));
        self.synchronize();
        EXPECT_EQ(2, a.read()[0]);
        EXPECT_EQ(2 * (999 + 1000), a.read()[999]);
        EXPECT_NCCL(ncclCommDestroy(part));
    });
}

TEST(Communicator, ASharedHostIdDoesNotExcuseASharedDevice) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_EQ(0, setenv("NCCL_HOSTID", "one", 1));
        ASSERT_CUDA(cudaSetDevice(0));
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclInvalidUsage, ncclCommInitRank(&comm, 2, id, rank));
    });
}

TEST(Communicator, SeveralRanksADeviceNeedARecentRelease) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_EQ(0, setenv("NCCL_MULTI_RANK_GPU_ENABLE", "1", 1));
        ASSERT_CUDA(cudaSetDevice(0));
        const bool known = NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 3);
        ncclComm_t comm = nullptr;
        EXPECT_EQ(known ? ncclSuccess : ncclInvalidUsage, ncclCommInitRank(&comm, 2, id, rank));
        EXPECT_NCCL(ncclCommDestroy(comm));
    });
}

TEST(Communicator, OneRankCopiesAndLaunchesNoKernel) {
    run_ranks(1, [](int, const ncclUniqueId& id) {
        const Rank self(0, 1, id);
        const Array<int> a(sequence(100, 5));
        const Array<int> b(100);
        const Array<int> c(100);
        const Array<int> d(100);
        EXPECT_NCCL(
            ncclAllReduce(a.get(), b.get(), 100, ncclInt32, ncclAvg, self.comm, self.stream));
        EXPECT_NCCL(ncclGroupStart());
        EXPECT_NCCL(ncclSend(a.get(), 100, ncclInt32, 0, self.comm, self.stream));
        EXPECT_NCCL(ncclRecv(c.get(), 100, ncclInt32, 0, self.comm, self.stream));
        EXPECT_NCCL(ncclGroupEnd());
        int three = 3;
        ncclRedOp_t op{};
        EXPECT_NCCL(
            ncclRedOpCreatePreMulSum(&op, &three, ncclInt32, ncclScalarHostImmediate, self.comm));
        EXPECT_NCCL(ncclAllReduce(a.get(), d.get(), 100, ncclInt32, op, self.comm, self.stream));
        self.synchronize();
        EXPECT_EQ(a.read(), b.read());
        EXPECT_EQ(a.read(), c.read());
        std::vector<int> want = a.read();
        for (int& value : want) {
            value *= 3;
        }
        EXPECT_EQ(want, d.read());
        // Captured: a copy node, not a kernel node.
        cudaGraph_t graph = nullptr;
        ASSERT_CUDA(cudaStreamBeginCapture(self.stream, cudaStreamCaptureModeThreadLocal));
        EXPECT_NCCL(
            ncclAllReduce(a.get(), b.get(), 100, ncclInt32, ncclSum, self.comm, self.stream));
        ASSERT_CUDA(cudaStreamEndCapture(self.stream, &graph));
        cudaGraphNode_t node = nullptr;
        std::size_t nodes = 1;
        ASSERT_CUDA(cudaGraphGetNodes(graph, &node, &nodes));
        ASSERT_EQ(1U, nodes);
        cudaGraphNodeType type{};
        EXPECT_CUDA(cudaGraphNodeGetType(node, &type));
        EXPECT_EQ(cudaGraphNodeTypeMemcpy, type);
        EXPECT_CUDA(cudaGraphDestroy(graph));
    });
}

TEST(Errors, DifferentCollectivesAreNoticed) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        ASSERT_CUDA(cudaSetDevice(rank));
        ncclComm_t comm = nullptr;
        ASSERT_NCCL(ncclCommInitRank(&comm, 2, id, rank));
        const Array<int> a(sequence(10, rank));
        EXPECT_NCCL(ncclAllReduce(a.get(), a.get(), 10, ncclInt32, rank == 0 ? ncclSum : ncclMax,
                                  comm, nullptr));
        EXPECT_CUDA(cudaStreamSynchronize(nullptr));
        ncclResult_t state = ncclSuccess;
        EXPECT_NCCL(ncclCommGetAsyncError(comm, &state));
        EXPECT_EQ(ncclInternalError, state);
        EXPECT_EQ(sequence(10, rank), a.read());
        EXPECT_NCCL(ncclCommDestroy(comm));
    });
}

TEST(Errors, BadArguments) {
    run_ranks(2, [](int rank, const ncclUniqueId& id) {
        const Rank self(rank, 2, id);
        const Array<int> a(4);
        int* const p = a.get();
        const auto reduce = [&](void* send, int type, int op, ncclComm_t comm) {
            return ncclAllReduce(send, p, 1, static_cast<ncclDataType_t>(type),
                                 static_cast<ncclRedOp_t>(op), comm, self.stream);
        };
        EXPECT_EQ(ncclInvalidArgument, reduce(p, ncclInt32, ncclSum, nullptr));
        EXPECT_EQ(ncclInvalidArgument, reduce(p, ncclNumTypes, ncclSum, self.comm));
        EXPECT_EQ(ncclInvalidArgument, reduce(p, ncclInt32, ncclNumOps, self.comm));
        EXPECT_EQ(ncclInvalidArgument, reduce(nullptr, ncclInt32, ncclSum, self.comm));
        EXPECT_EQ(ncclInvalidArgument, ncclSend(p, 1, ncclInt32, 2, self.comm, self.stream));
        EXPECT_EQ(ncclInvalidArgument, ncclRecv(p, 1, ncclInt32, -1, self.comm, self.stream));
        ncclComm_t comm = nullptr;
        EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 2, id, 2));
        EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(&comm, 0, id, 0));
        EXPECT_EQ(ncclInvalidArgument, ncclCommInitRank(nullptr, 1, id, 0));
        ncclConfig_t config{};
        EXPECT_EQ(ncclInvalidArgument, ncclCommInitRankConfig(&comm, 1, id, 0, &config));
        EXPECT_EQ(ncclInvalidArgument, ncclGetUniqueId(nullptr));
        int count = 0;
        EXPECT_EQ(ncclInvalidArgument, ncclCommCount(nullptr, &count));
        // No elements: nothing happens, on no rank.
        EXPECT_NCCL(ncclAllReduce(nullptr, nullptr, 0, ncclInt32, ncclSum, self.comm, self.stream));
        self.synchronize();
    });
}

TEST(Library, ExportsEveryFunctionTwice) {
    for (const char* const name :
         {"ncclAllReduce", "ncclGroupEnd", "ncclCommInitRank", "ncclGetVersion"}) {
        void* const plain = dlsym(RTLD_DEFAULT, name);
        void* const prefixed = dlsym(RTLD_DEFAULT, (std::string("p") + name).c_str());
        EXPECT_NE(nullptr, plain) << name;
        EXPECT_EQ(plain, prefixed) << name;
    }
    int version = 0;
    EXPECT_NCCL(ncclGetVersion(&version));
    EXPECT_EQ(NCCL_VERSION_CODE, version);
    // The embedded runtime stays inside.
    void* const library = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD);
    ASSERT_NE(nullptr, library);
    EXPECT_STREQ("no error", ncclGetErrorString(ncclSuccess));
    EXPECT_STREQ("NCCL operation in progress", ncclGetErrorString(ncclInProgress));
}

}  // namespace
}  // namespace simgpu::test
