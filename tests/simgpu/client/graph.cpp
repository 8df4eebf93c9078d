// SPDX-License-Identifier: Apache-2.0
// Executable graphs: instantiation and replay. A replay is one unit in its stream: branches
// run on lanes of their own, which begin behind the stream's last operation and end before its
// next.

#include <algorithm>
#include <cstring>

#include "capture.hpp"
#include "twins.hpp"

namespace {

// One node of an executable graph.
struct Step {
    simgpu::Work work;
    std::vector<std::size_t> dependencies;  // earlier steps
    std::size_t lane = 0;                   // 0: the stream it is launched into
};

}  // namespace

struct CUgraphExec_st {
    CUcontext context = nullptr;
    cuuint64_t flags = 0;
    std::vector<Step> steps;
    std::vector<std::shared_ptr<void>> owned;
    std::vector<CUstream> lanes;  // made at the first launch; lane i + 1
    simgpu::OpId last_op =
        0;  // end of the last launch: launches of one executable graph follow each other
};

namespace simgpu {
namespace {

// Gives each step the lane of a dependency that is that lane's newest step, else a new one.
std::size_t assign_lanes(std::vector<Step>* steps) {
    std::vector<std::size_t> newest;  // by lane
    for (std::size_t i = 0; i < steps->size(); ++i) {
        Step& step = (*steps)[i];
        std::size_t lane = newest.size();
        for (const std::size_t dependency : step.dependencies)
            if (newest[(*steps)[dependency].lane] == dependency)
                lane = std::min(lane, (*steps)[dependency].lane);
        if (lane == newest.size()) newest.push_back(i);
        newest[lane] = i;
        step.lane = lane;
    }
    return newest.size();
}

// The graph's nodes, each behind those it depends on; fewer than all when there is a cycle.
std::vector<CUgraphNode> in_order(const CUgraph_st& graph) {
    std::vector<CUgraphNode> order;
    std::vector<bool> placed(graph.nodes.size(), false);
    for (bool progress = true; progress;) {
        progress = false;
        // Nodes mostly stand in order already: one round does it for every captured graph.
        for (const auto& node : graph.nodes) {
            const auto& before = node->dependencies;
            if (placed[node->index] ||
                !std::all_of(before.begin(), before.end(),
                             [&](CUgraphNode other) { return placed[other->index]; }))
                continue;
            placed[node->index] = true;
            order.push_back(node.get());
            progress = true;
        }
    }
    return order;
}

CUresult instantiate(CUgraphExec* handle, CUgraph graph, cuuint64_t flags) {
    constexpr cuuint64_t kKnown = CUDA_GRAPH_INSTANTIATE_FLAG_AUTO_FREE_ON_LAUNCH |
                                  CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD |
                                  CUDA_GRAPH_INSTANTIATE_FLAG_USE_NODE_PRIORITY;
    if (handle == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if ((flags & ~kKnown) != 0) return CUDA_ERROR_NOT_SUPPORTED;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (!d.graphs.contains(graph)) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        auto exec = std::make_unique<CUgraphExec_st>();
        exec->context = context;
        exec->flags = flags;
        exec->owned = graph->owned;
        const std::vector<CUgraphNode> order = in_order(*graph);
        if (order.size() != graph->nodes.size()) return CUDA_ERROR_INVALID_VALUE;
        std::vector<std::size_t> position(order.size());
        for (CUgraphNode node : order) {
            position[node->index] = exec->steps.size();
            Step& step = exec->steps.emplace_back();
            step.work = node->work;
            for (CUgraphNode dependency : node->dependencies)
                step.dependencies.push_back(position[dependency->index]);
        }
        assign_lanes(&exec->steps);
        d.execs.insert(exec.get());
        *handle = exec.release();
        return CUDA_SUCCESS;
    });
}

CUresult enqueue_step(Driver& d, const Step& step, const Queue& queue) {
    if (step.work.node_type == CU_GRAPH_NODE_TYPE_EVENT_RECORD ||
        step.work.node_type == CU_GRAPH_NODE_TYPE_WAIT_EVENT) {
        if (!d.events.contains(step.work.event)) return CUDA_ERROR_INVALID_HANDLE;
        return step.work.node_type == CU_GRAPH_NODE_TYPE_EVENT_RECORD
                   ? record_event(d, step.work.event, queue)
                   : wait_event(d, step.work.event, queue);
    }
    return enqueue(d, queue, step.work);
}

CUresult replay(Driver& d, CUgraphExec_st& exec, CUstream stream) {
    Queue main = queue_of(stream);
    if (const CUresult rc = enqueue_wait(d, main, exec.last_op); rc != CUDA_SUCCESS) return rc;
    std::size_t lanes = 0;
    for (const Step& step : exec.steps) lanes = std::max(lanes, step.lane + 1);
    // Lanes are non-blocking streams: the default streams' rules apply to the unit, not to its
    // parts. They go away with their context, which a primary one survives.
    std::erase_if(exec.lanes, [&](CUstream lane) { return !d.streams.contains(lane); });
    while (exec.lanes.size() + 1 < lanes)
        exec.lanes.push_back(
            make_stream(d, stream->context, CU_STREAM_NON_BLOCKING, stream->priority, false));
    main.in_flight = nullptr;  // a graph counts as one operation, at its end
    if (lanes > 1) {
        if (const CUresult rc = enqueue(d, main, Work{}); rc != CUDA_SUCCESS) return rc;
        for (CUstream lane : exec.lanes) {
            if (const CUresult rc = enqueue_wait(d, queue_of(lane), stream->last_op);
                rc != CUDA_SUCCESS)
                return rc;
        }
    }
    std::vector<OpId> ops(exec.steps.size());
    for (std::size_t i = 0; i < exec.steps.size(); ++i) {
        const Step& step = exec.steps[i];
        Queue queue = step.lane == 0 ? main : queue_of(exec.lanes[step.lane - 1]);
        queue.in_flight = nullptr;
        for (const std::size_t dependency : step.dependencies) {
            if (exec.steps[dependency].lane == step.lane) continue;
            if (const CUresult rc = enqueue_wait(d, queue, ops[dependency]); rc != CUDA_SUCCESS)
                return rc;
        }
        if (const CUresult rc = enqueue_step(d, step, queue); rc != CUDA_SUCCESS) return rc;
        ops[i] = *queue.last_op;
    }
    for (CUstream lane : exec.lanes) {
        if (const CUresult rc = enqueue_wait(d, main, lane->last_op); rc != CUDA_SUCCESS) return rc;
    }
    Work unit_end;
    if (!exec.owned.empty())
        unit_end.effect = [keep = exec.owned] { static_cast<void>(keep.size()); };
    const CUresult rc = enqueue(d, queue_of(stream), unit_end);
    exec.last_op = stream->last_op;
    return rc;
}

CUresult launch(CUgraphExec exec, CUstream handle, DefaultStream meaning) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!d.execs.contains(exec)) return CUDA_ERROR_INVALID_VALUE;
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (stream->capture) {
            // A child graph: its nodes enter the capture with their dependencies.
            if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
            CUgraph_st& graph = *stream->capture->graph;
            const std::vector<CUgraphNode> before = stream->capture_frontier;
            std::vector<CUgraphNode> nodes;
            for (const Step& step : exec->steps) {
                std::vector<CUgraphNode> dependencies;
                for (const std::size_t dependency : step.dependencies)
                    dependencies.push_back(nodes[dependency]);
                if (dependencies.empty()) dependencies = before;
                nodes.push_back(add_node(graph, step.work, std::move(dependencies)));
            }
            if (!nodes.empty()) stream->capture_frontier = {add_node(graph, Work{}, nodes)};
            graph.owned.insert(graph.owned.end(), exec->owned.begin(), exec->owned.end());
            return CUDA_SUCCESS;
        }
        if (const CUresult rc = wait_for_room(d, stream, lock); rc != CUDA_SUCCESS) return rc;
        if (!d.execs.contains(exec)) return CUDA_ERROR_INVALID_VALUE;
        if (stream->context->device != exec->context->device) return CUDA_ERROR_INVALID_VALUE;
        if (const CUresult rc = check_legacy_implicit(d, stream); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = enqueue_implicit_waits(d, stream); rc != CUDA_SUCCESS) return rc;
        return replay(d, *exec, stream);
    });
}

CUresult upload(CUgraphExec exec, CUstream handle, DefaultStream meaning) {
    return call([&](Driver& d, auto& lock) -> CUresult {
        if (!d.execs.contains(exec)) return CUDA_ERROR_INVALID_VALUE;
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        if (const CUresult rc = check_not_capturing(d, stream); rc != CUDA_SUCCESS) return rc;
        return submit(d, stream, Work{},
                      lock);  // there is nothing to upload but an order in the stream
    });
}

CUresult instantiate_with(CUgraphExec* exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* p,
                          DefaultStream meaning) {
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    p->hErrNode_out = nullptr;
    const CUresult rc = instantiate(exec, graph, p->flags);
    p->result_out =
        rc == CUDA_SUCCESS ? CUDA_GRAPH_INSTANTIATE_SUCCESS : CUDA_GRAPH_INSTANTIATE_ERROR;
    if (rc != CUDA_SUCCESS || (p->flags & CUDA_GRAPH_INSTANTIATE_FLAG_UPLOAD) == 0) return rc;
    return upload(*exec, p->hUploadStream, meaning);
}

CUresult instantiate_v1(CUgraphExec* exec, CUgraph graph, CUgraphNode* error_node, char* log,
                        std::size_t log_size) {
    if (error_node != nullptr) *error_node = nullptr;
    if (log != nullptr && log_size > 0) *log = '\0';
    return instantiate(exec, graph, 0);
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuGraphInstantiate(CUgraphExec* exec, CUgraph graph,
                                                  CUgraphNode* error_node, char* log,
                                                  std::size_t log_size) {
    return instantiate_v1(exec, graph, error_node, log, log_size);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphInstantiate_v2(CUgraphExec* exec, CUgraph graph,
                                                     CUgraphNode* error_node, char* log,
                                                     std::size_t log_size) {
    return instantiate_v1(exec, graph, error_node, log, log_size);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphInstantiateWithFlags(CUgraphExec* exec, CUgraph graph,
                                                           unsigned long long flags) {
    return instantiate(exec, graph, flags);
}
SIMGPU_PTSZ(cuGraphInstantiateWithParams,
            (CUgraphExec * exec, CUgraph graph, CUDA_GRAPH_INSTANTIATE_PARAMS* parameters),
            instantiate_with(exec, graph, parameters, kDefault))
SIMGPU_PTSZ(cuGraphUpload, (CUgraphExec exec, CUstream stream), upload(exec, stream, kDefault))
SIMGPU_PTSZ(cuGraphLaunch, (CUgraphExec exec, CUstream stream), launch(exec, stream, kDefault))

SIMGPU_EXPORT CUresult CUDAAPI cuGraphExecGetFlags(CUgraphExec exec, cuuint64_t* flags) {
    if (flags == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (!d.execs.contains(exec)) return CUDA_ERROR_INVALID_VALUE;
        *flags = exec->flags;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphExecDestroy(CUgraphExec exec) {
    return call([&](Driver& d, auto&) -> CUresult {
        if (d.execs.erase(exec) == 0) return CUDA_ERROR_INVALID_VALUE;
        for (CUstream lane : exec->lanes)
            if (d.streams.contains(lane)) destroy_stream(d, lane);
        delete exec;  // launches in flight go on: what they need is in the table of operations
        return CUDA_SUCCESS;
    });
}
