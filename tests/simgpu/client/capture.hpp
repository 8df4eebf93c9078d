// SPDX-License-Identifier: Apache-2.0
// Stream capture and graphs: what a capture collects, which calls it forbids, and how a graph is
// replayed.
#pragma once

#include <pthread.h>

#include "stream.hpp"

struct CUgraphNode_st {
    CUgraph graph = nullptr;
    std::size_t index = 0;  // in its graph's order of creation
    simgpu::Work work;
    std::vector<CUgraphNode> dependencies;
};

struct CUgraph_st {
    std::vector<std::unique_ptr<CUgraphNode_st>> nodes;
    std::vector<std::shared_ptr<void>>
        owned;  // memory of captured allocations; executable graphs share it
};

namespace simgpu {

struct Capture {
    std::uint64_t id = 0;
    CUstreamCaptureMode mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    pthread_t thread{};
    CUstream origin = nullptr;
    std::unordered_set<CUstream> streams;  // origin included
    std::unique_ptr<CUgraph_st> graph;
    bool into_graph = false;     // the program's graph, which it keeps
    std::size_t first_node = 0;  // of the capture's own in it
    bool invalidated = false;
    ~Capture() {
        if (into_graph) static_cast<void>(graph.release());
    }
};

// For calls that may break a capture (allocation, synchronisation, queries, …): an error, and the
// captures in the way are invalidated, unless the thread's capture mode allows the call.
CUresult check_unsafe_call(Driver& d);
// The same for a call on `stream` itself, which no mode allows while it captures.
CUresult check_not_capturing(Driver& d, CUstream stream);
// For calls that touch all streams of a context.
CUresult check_not_capturing(Driver& d, CUcontext context);

// Adds a node behind the stream's frontier. The stream captures.
CUresult add_captured(Driver& d, CUstream stream, Work work);
CUresult record_captured(CUstream stream, CUevent event);
// `stream` joins the capture of `event`.
CUresult wait_captured(Driver& d, CUstream stream, CUevent event);
// Takes the stream out of its capture when it is destroyed.
void leave_capture(Driver& d, CUstream stream);

CUgraphNode add_node(CUgraph_st& graph, Work work, std::vector<CUgraphNode> dependencies);

}  // namespace simgpu
