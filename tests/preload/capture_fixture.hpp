// SPDX-License-Identifier: Apache-2.0
// For tests that have the library preloaded into themselves: a context with streams and events on
// the first device, and another job that wants it. No test here.
#pragma once

#include <cuda.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "guest_machine.hpp"

#define ASSERT_CU(call) ASSERT_EQ(call, CUDA_SUCCESS)
#define EXPECT_CU(call) EXPECT_EQ(call, CUDA_SUCCESS)

namespace crossover::test {

class Captures : public testing::Test {
  protected:
    void SetUp() override {
        ASSERT_CU(cuInit(0));
        ASSERT_CU(cuDevicePrimaryCtxRetain(&context_, 0));
        ASSERT_CU(cuCtxSetCurrent(context_));
        CUlibrary library = nullptr;
        CUkernel kernel = nullptr;
        ASSERT_CU(cuLibraryLoadData(&library, "image", nullptr, nullptr, 0, nullptr, nullptr, 0));
        ASSERT_CU(cuLibraryGetKernel(&kernel, library, "add"));
        ASSERT_CU(cuKernelGetFunction(&add_, kernel));
        ASSERT_CU(cuMemAlloc(&at_, sizeof(int)));
        ASSERT_CU(cuMemsetD32(at_, 0, 1));
        ASSERT_CU(cuStreamCreate(&stream_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuStreamCreate(&other_, CU_STREAM_NON_BLOCKING));
        ASSERT_CU(cuEventCreate(&event_, CU_EVENT_DISABLE_TIMING));
        ASSERT_CU(cuEventCreate(&back_, CU_EVENT_DISABLE_TIMING));
        ASSERT_CU(launch(stream_));  // attaches
        ASSERT_CU(cuCtxSynchronize());
    }
    // The other job takes the device and keeps it as long as nobody else waits.
    void let_peer_hold() {
        if (peer_ == nullptr) {
            peer_ = std::make_unique<Guest>(
                std::vector<std::string>{"loop", "1000"},
                std::vector<std::string>{"CROSSOVER_JOB=peer", "CROSSOVER_LEASE_MS=20"});
            ASSERT_TRUE(peer_->wait_for_line("ready"));
        }
        await([&] {
            const auto theirs = device().of(peer_->pid());
            return !own().claims && theirs.size() == 1 && theirs[0].claims;
        });
        // A turn that its lease ended is seen to be over once our watcher has woken.
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
    }
    CUresult launch(CUstream stream) {
        int value = 1;
        int count = 1;
        unsigned cost_us = 100;
        void* parameters[] = {&at_, &value, &count, &cost_us};
        return cuLaunchKernel(add_, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    }
    // The first device, and this process on it.
    static DeviceSeen device() {
        for (const auto& [uuid, seen] : look()) {
            for (const ClientSeen& client : seen.of(getpid())) {
                if (client.ordinal == 0) return seen;
            }
        }
        return {};
    }
    static ClientSeen own() {
        const auto found = device().of(getpid());
        EXPECT_EQ(found.size(), 1U);
        return found.empty() ? ClientSeen{} : found[0];
    }
    // Our job's turns on it: every gated launch after the peer's turn takes one.
    static std::uint64_t turns() { return device().jobs.at("captures").turns; }
    void expect_gated(const std::function<CUresult()>& call) {
        let_peer_hold();
        const std::uint64_t before = turns();
        EXPECT_CU(call());
        EXPECT_CU(cuCtxSynchronize());  // the GPU may be what waits for the turn
        EXPECT_GT(turns(), before);
    }
    int value() {
        int result = -1;
        EXPECT_CU(cuMemcpyDtoH(&result, at_, sizeof result));
        return result;
    }
    static std::size_t kernels_in(CUgraph graph) {
        std::size_t count = 0;
        EXPECT_CU(cuGraphGetNodes(graph, nullptr, &count));
        std::vector<CUgraphNode> nodes(count);
        EXPECT_CU(cuGraphGetNodes(graph, nodes.data(), &count));
        std::size_t kernels = 0;
        for (const CUgraphNode node : nodes) {
            CUgraphNodeType type = CU_GRAPH_NODE_TYPE_EMPTY;
            EXPECT_CU(cuGraphNodeGetType(node, &type));
            kernels += type == CU_GRAPH_NODE_TYPE_KERNEL ? 1 : 0;
        }
        return kernels;
    }
    // Captures 100 launches on a stream and its fork, slowly enough for whatever of the library's
    // might interfere, while the peer holds the turn. Ends valid, and no turn was taken for it.
    void capture_hundred(const std::function<CUresult()>& begin) {
        let_peer_hold();
        const std::uint64_t before = turns();
        const auto fill = [&] {
            for (int i = 0; i < 50; ++i) {
                ASSERT_CU(launch(stream_));
                ASSERT_CU(cuEventRecord(event_, stream_));
                ASSERT_CU(cuStreamWaitEvent(other_, event_, 0));
                ASSERT_CU(launch(other_));
                ASSERT_CU(cuEventRecord(back_, other_));
                ASSERT_CU(cuStreamWaitEvent(stream_, back_, 0));
                if (i % 10 == 0) ::usleep(3000);
            }
        };
        ASSERT_CU(begin());
        fill();
        EXPECT_EQ(turns(), before) << "captured launches took a turn";
        CUgraph graph = nullptr;
        ASSERT_CU(cuStreamEndCapture(stream_, &graph));
        EXPECT_EQ(kernels_in(graph), 100U);
        EXPECT_EQ(turns(), before);
        CUgraphExec executable = nullptr;
        ASSERT_CU(cuGraphInstantiateWithFlags(&executable, graph, 0));
        const int unchanged = value();
        expect_gated([&] { return cuGraphLaunch(executable, stream_); });
        EXPECT_EQ(value(), unchanged + 100);
        expect_gated([&] { return launch(stream_); });
        EXPECT_CU(cuGraphExecDestroy(executable));
        EXPECT_CU(cuGraphDestroy(graph));
    }

    std::unique_ptr<Guest> peer_;
    CUcontext context_ = nullptr;
    CUfunction add_ = nullptr;
    CUdeviceptr at_ = 0;
    CUstream stream_ = nullptr;
    CUstream other_ = nullptr;
    CUevent event_ = nullptr;
    CUevent back_ = nullptr;
};

}  // namespace crossover::test
