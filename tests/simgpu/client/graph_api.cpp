// SPDX-License-Identifier: Apache-2.0
// Graphs as objects: made by hand, copied, looked into. Instantiation and replay are in graph.cpp.

#include <algorithm>

#include "capture.hpp"
#include "copy.hpp"
#include "module.hpp"

namespace simgpu {
namespace {

template <typename Body>
CUresult with_graph(CUgraph graph, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        bool known = d.graphs.contains(graph);
        // A capture in progress hands its graph out too.
        for (const auto& capture : d.captures) known = known || capture->graph.get() == graph;
        return known ? body(d, *graph) : CUDA_ERROR_INVALID_VALUE;
    });
}

// Fills `out` (null: only the count) as the functions that list things do.
template <typename T>
CUresult list(const std::vector<T>& all, T* out, std::size_t* count) {
    if (count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    if (out == nullptr) {
        *count = all.size();
        return CUDA_SUCCESS;
    }
    for (std::size_t i = 0; i < *count; ++i) out[i] = i < all.size() ? all[i] : nullptr;
    *count = std::min(*count, all.size());
    return CUDA_SUCCESS;
}

CUresult add_by_hand(CUgraphNode* out, CUgraph handle, const CUgraphNode* dependencies,
                     std::size_t count, Work work) {
    if (out == nullptr || (count != 0 && dependencies == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    return with_graph(handle, [&](Driver&, CUgraph_st& graph) -> CUresult {
        for (std::size_t i = 0; i < count; ++i)
            if (dependencies[i] == nullptr || dependencies[i]->graph != &graph)
                return CUDA_ERROR_INVALID_VALUE;
        *out = add_node(graph, std::move(work), {dependencies, dependencies + count});
        return CUDA_SUCCESS;
    });
}

CUresult add_edges(CUgraph handle, const CUgraphNode* from, const CUgraphNode* to,
                   std::size_t count) {
    if (count != 0 && (from == nullptr || to == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    return with_graph(handle, [&](Driver&, CUgraph_st& graph) -> CUresult {
        for (std::size_t i = 0; i < count; ++i) {
            if (from[i] == nullptr || to[i] == nullptr || from[i] == to[i])
                return CUDA_ERROR_INVALID_VALUE;
            if (from[i]->graph != &graph || to[i]->graph != &graph) return CUDA_ERROR_INVALID_VALUE;
            const auto& known = to[i]->dependencies;
            if (std::find(known.begin(), known.end(), from[i]) != known.end())
                return CUDA_ERROR_INVALID_VALUE;
        }
        for (std::size_t i = 0; i < count; ++i) to[i]->dependencies.push_back(from[i]);
        return CUDA_SUCCESS;
    });
}

CUresult add_event_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                        std::size_t count, CUevent event, CUgraphNodeType type) {
    Work work;
    work.node_type = type;
    work.event = event;
    const CUresult known = call([&](Driver& d, auto&) {
        return d.events.contains(event) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
    });
    return known == CUDA_SUCCESS ? add_by_hand(node, graph, dependencies, count, std::move(work))
                                 : known;
}

CUresult add_kernel_node(CUgraphNode* node, CUgraph graph, const CUgraphNode* dependencies,
                         std::size_t count, const CUDA_KERNEL_NODE_PARAMS_v2& p) {
    Work work;
    const Launch launch{{p.gridDimX, p.gridDimY, p.gridDimZ},
                        {p.blockDimX, p.blockDimY, p.blockDimZ},
                        p.sharedMemBytes};
    const CUresult rc = call([&](Driver& d, auto&) {
        const CUfunction function =
            p.func != nullptr ? p.func : reinterpret_cast<CUfunction>(p.kern);
        return kernel_work(d, function, launch, p.kernelParams, p.extra, &work);
    });
    return rc == CUDA_SUCCESS ? add_by_hand(node, graph, dependencies, count, std::move(work)) : rc;
}

// All edges are plain ones: their data is zero.
void clear_edges(CUgraphEdgeData* data, std::size_t count) {
    if (data != nullptr) std::fill_n(data, count, CUgraphEdgeData{});
}

CUresult edges_of(CUgraph handle, CUgraphNode* from, CUgraphNode* to, CUgraphEdgeData* data,
                  std::size_t* count) {
    if ((from == nullptr) != (to == nullptr) || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_graph(handle, [&](Driver&, CUgraph_st& graph) -> CUresult {
        std::vector<CUgraphNode> sources;
        std::vector<CUgraphNode> targets;
        for (const auto& node : graph.nodes) {
            for (CUgraphNode dependency : node->dependencies) {
                sources.push_back(dependency);
                targets.push_back(node.get());
            }
        }
        if (from != nullptr) clear_edges(data, *count);
        std::size_t room = *count;
        list(sources, from, &room);
        return list(targets, to, count);
    });
}

CUresult dependencies_of(CUgraphNode node, CUgraphNode* nodes, CUgraphEdgeData* data,
                         std::size_t* count) {
    if (node == nullptr || count == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        if (nodes != nullptr) clear_edges(data, *count);
        return list(node->dependencies, nodes, count);
    });
}

}  // namespace
}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuGraphCreate(CUgraph* graph, unsigned int flags) {
    if (graph == nullptr || flags != 0) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        auto made = std::make_unique<CUgraph_st>();
        d.graphs.insert(made.get());
        *graph = made.release();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphDestroy(CUgraph graph) {
    return call([&](Driver& d, auto&) -> CUresult {
        if (d.graphs.erase(graph) == 0) return CUDA_ERROR_INVALID_VALUE;
        delete graph;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphClone(CUgraph* clone, CUgraph original) {
    if (clone == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_graph(original, [&](Driver& d, CUgraph_st& graph) -> CUresult {
        auto made = std::make_unique<CUgraph_st>();
        for (const auto& node : graph.nodes) add_node(*made, node->work, {});
        for (const auto& node : graph.nodes)
            for (CUgraphNode dependency : node->dependencies)
                made->nodes[node->index]->dependencies.push_back(
                    made->nodes[dependency->index].get());
        made->owned = graph.owned;
        d.graphs.insert(made.get());
        *clone = made.release();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddEmptyNode(CUgraphNode* node, CUgraph graph,
                                                   const CUgraphNode* dependencies,
                                                   std::size_t count) {
    return add_by_hand(node, graph, dependencies, count, Work{});
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddHostNode(CUgraphNode* node, CUgraph graph,
                                                  const CUgraphNode* dependencies,
                                                  std::size_t count,
                                                  const CUDA_HOST_NODE_PARAMS* parameters) {
    if (parameters == nullptr || parameters->fn == nullptr) return CUDA_ERROR_INVALID_VALUE;
    Work work;
    work.node_type = CU_GRAPH_NODE_TYPE_HOST;
    work.kind = OpKind::kClient;
    work.host_function = [function = parameters->fn, data = parameters->userData] {
        function(data);
    };
    return add_by_hand(node, graph, dependencies, count, std::move(work));
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddKernelNode(CUgraphNode* node, CUgraph graph,
                                                    const CUgraphNode* dependencies,
                                                    std::size_t count,
                                                    const CUDA_KERNEL_NODE_PARAMS_v1* p) {
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return add_kernel_node(
        node, graph, dependencies, count,
        {p->func, p->gridDimX, p->gridDimY, p->gridDimZ, p->blockDimX, p->blockDimY, p->blockDimZ,
         p->sharedMemBytes, p->kernelParams, p->extra, nullptr, nullptr});
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddKernelNode_v2(CUgraphNode* node, CUgraph graph,
                                                       const CUgraphNode* dependencies,
                                                       std::size_t count,
                                                       const CUDA_KERNEL_NODE_PARAMS_v2* p) {
    if (p == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return add_kernel_node(node, graph, dependencies, count, *p);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddMemsetNode(CUgraphNode* node, CUgraph graph,
                                                    const CUgraphNode* dependencies,
                                                    std::size_t count,
                                                    const CUDA_MEMSET_NODE_PARAMS* p, CUcontext) {
    if (p == nullptr || (p->elementSize != 1 && p->elementSize != 2 && p->elementSize != 4))
        return CUDA_ERROR_INVALID_VALUE;
    const Box box{p->width * p->elementSize, p->height, 1};
    const Place place{pointer_of(p->dst), p->pitch, 0};
    std::size_t bytes = 0;
    Allocation found;
    if (box.width == 0 || box.height == 0 || !extent(place, box, &bytes) ||
        !find_allocation(place.base, &found) ||
        bytes > found.size - static_cast<std::size_t>(place.base - found.base))
        return CUDA_ERROR_INVALID_VALUE;
    return add_by_hand(node, graph, dependencies, count,
                       fill_work(place, box, p->value, p->elementSize));
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddEventRecordNode(CUgraphNode* node, CUgraph graph,
                                                         const CUgraphNode* dependencies,
                                                         std::size_t count, CUevent event) {
    return add_event_node(node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_EVENT_RECORD);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddEventWaitNode(CUgraphNode* node, CUgraph graph,
                                                       const CUgraphNode* dependencies,
                                                       std::size_t count, CUevent event) {
    return add_event_node(node, graph, dependencies, count, event, CU_GRAPH_NODE_TYPE_WAIT_EVENT);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddDependencies(CUgraph graph, const CUgraphNode* from,
                                                      const CUgraphNode* to, std::size_t count) {
    return add_edges(graph, from, to, count);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphAddDependencies_v2(CUgraph graph, const CUgraphNode* from,
                                                         const CUgraphNode* to,
                                                         const CUgraphEdgeData*,
                                                         std::size_t count) {
    return add_edges(graph, from, to, count);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphGetNodes(CUgraph handle, CUgraphNode* nodes,
                                               std::size_t* count) {
    return with_graph(handle, [&](Driver&, CUgraph_st& graph) -> CUresult {
        std::vector<CUgraphNode> all;
        for (const auto& node : graph.nodes) all.push_back(node.get());
        return list(all, nodes, count);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphGetRootNodes(CUgraph handle, CUgraphNode* nodes,
                                                   std::size_t* count) {
    return with_graph(handle, [&](Driver&, CUgraph_st& graph) -> CUresult {
        std::vector<CUgraphNode> roots;
        for (const auto& node : graph.nodes)
            if (node->dependencies.empty()) roots.push_back(node.get());
        return list(roots, nodes, count);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphGetEdges(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                               std::size_t* count) {
    return edges_of(graph, from, to, nullptr, count);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphGetEdges_v2(CUgraph graph, CUgraphNode* from, CUgraphNode* to,
                                                  CUgraphEdgeData* data, std::size_t* count) {
    return edges_of(graph, from, to, data, count);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphNodeGetDependencies(CUgraphNode node, CUgraphNode* nodes,
                                                          std::size_t* count) {
    return dependencies_of(node, nodes, nullptr, count);
}
SIMGPU_EXPORT CUresult CUDAAPI cuGraphNodeGetDependencies_v2(CUgraphNode node, CUgraphNode* nodes,
                                                             CUgraphEdgeData* data,
                                                             std::size_t* count) {
    return dependencies_of(node, nodes, data, count);
}

SIMGPU_EXPORT CUresult CUDAAPI cuGraphNodeGetType(CUgraphNode node, CUgraphNodeType* type) {
    if (node == nullptr || type == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver&, auto&) -> CUresult {
        *type = node->work.node_type;
        return CUDA_SUCCESS;
    });
}
