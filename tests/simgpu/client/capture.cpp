// SPDX-License-Identifier: Apache-2.0
// Stream capture: which calls it forbids, and how operations, forks and joins become a graph.

#include "capture.hpp"

#include <algorithm>

#include "memory.hpp"
#include "twins.hpp"

namespace simgpu {
namespace {

bool on_thread(const Capture& capture) {
    return pthread_equal(capture.thread, pthread_self()) != 0;
}

// Whether a capture forbids this thread's potentially unsafe calls, by the rules of the thread's
// capture mode.
bool forbids(const Capture& capture, CUstreamCaptureMode thread_mode) {
    if (thread_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
    if (on_thread(capture)) return capture.mode != CU_STREAM_CAPTURE_MODE_RELAXED;
    return thread_mode == CU_STREAM_CAPTURE_MODE_GLOBAL &&
           capture.mode == CU_STREAM_CAPTURE_MODE_GLOBAL;
}

void merge(std::vector<CUgraphNode>* into, const std::vector<CUgraphNode>& nodes) {
    for (CUgraphNode node : nodes)
        if (std::find(into->begin(), into->end(), node) == into->end()) into->push_back(node);
}

// Whether every captured operation stands before the origin's end.
bool all_joined(const Capture& capture) {
    std::vector<bool> reached(capture.graph->nodes.size(), false);
    std::vector<CUgraphNode> open = capture.origin->capture_frontier;
    while (!open.empty()) {
        CUgraphNode node = open.back();
        open.pop_back();
        if (reached[node->index]) continue;
        reached[node->index] = true;
        open.insert(open.end(), node->dependencies.begin(), node->dependencies.end());
    }
    return std::all_of(reached.begin() + static_cast<std::ptrdiff_t>(capture.first_node),
                       reached.end(), [](bool r) { return r; });
}

void release_streams(Driver& d, Capture& capture) {
    const std::vector<CUstream> streams(capture.streams.begin(), capture.streams.end());
    std::shared_ptr<Capture> keep;
    for (CUstream stream : streams) {
        keep = stream->capture;
        stream->capture.reset();
        stream->capture_frontier.clear();
    }
    capture.streams.clear();
    std::erase_if(d.captures, [&](const auto& other) { return other.get() == &capture; });
    d.capture_count = d.captures.size();
}

template <typename Body>
CUresult with_stream(CUstream handle, DefaultStream meaning, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        CUstream stream = nullptr;
        if (const CUresult rc = resolve_stream(d, handle, meaning, &stream); rc != CUDA_SUCCESS)
            return rc;
        return body(d, stream);
    });
}

bool contains(const CUgraph_st& graph, CUgraphNode node) {
    return std::any_of(graph.nodes.begin(), graph.nodes.end(),
                       [&](const auto& known) { return known.get() == node; });
}

// `into` is nullptr, or a graph that receives what is captured, behind `after`.
CUresult begin(CUstream handle, DefaultStream meaning, CUstreamCaptureMode mode,
               CUgraph into = nullptr, std::vector<CUgraphNode> after = {}) {
    if (mode < CU_STREAM_CAPTURE_MODE_GLOBAL || mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream) -> CUresult {
        if (stream->legacy) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
        if (stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
        if (into != nullptr && (!d.graphs.contains(into) ||
                                !std::all_of(after.begin(), after.end(), [&](CUgraphNode node) {
                                    return contains(*into, node);
                                })))
            return CUDA_ERROR_INVALID_VALUE;
        auto capture = std::make_shared<Capture>();
        capture->id = d.next_capture_id++;
        capture->mode = mode;
        capture->thread = pthread_self();
        capture->origin = stream;
        capture->streams.insert(stream);
        capture->into_graph = into != nullptr;
        if (into != nullptr) {
            capture->graph.reset(into);
            capture->first_node = into->nodes.size();
        } else {
            capture->graph = std::make_unique<CUgraph_st>();
        }
        d.captures.push_back(capture);
        d.capture_count = d.captures.size();
        stream->capture = std::move(capture);
        stream->capture_frontier = std::move(after);
        return CUDA_SUCCESS;
    });
}

CUresult begin_into(CUstream stream, DefaultStream meaning, CUgraph graph, const CUgraphNode* after,
                    std::size_t count, CUstreamCaptureMode mode) {
    if (graph == nullptr || (count != 0 && after == nullptr)) return CUDA_ERROR_INVALID_VALUE;
    return begin(stream, meaning, mode, graph, {after, after + count});
}

CUresult end(CUstream handle, DefaultStream meaning, CUgraph* graph) {
    if (graph == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream) -> CUresult {
        const std::shared_ptr<Capture> capture = stream->capture;
        if (!capture) return CUDA_ERROR_ILLEGAL_STATE;
        if (capture->origin != stream) return CUDA_ERROR_STREAM_CAPTURE_UNMATCHED;
        if (capture->mode != CU_STREAM_CAPTURE_MODE_RELAXED && !on_thread(*capture))
            return CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
        const bool joined = all_joined(*capture);
        release_streams(d, *capture);
        *graph = nullptr;
        if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        if (!joined) return CUDA_ERROR_STREAM_CAPTURE_UNJOINED;
        d.graphs.insert(capture->graph.get());
        *graph = capture->graph.release();
        return CUDA_SUCCESS;
    });
}

CUstreamCaptureStatus status_of(const CUstream_st& stream) {
    if (!stream.capture) return CU_STREAM_CAPTURE_STATUS_NONE;
    return stream.capture->invalidated ? CU_STREAM_CAPTURE_STATUS_INVALIDATED
                                       : CU_STREAM_CAPTURE_STATUS_ACTIVE;
}

CUresult info(CUstream handle, DefaultStream meaning, CUstreamCaptureStatus* status, cuuint64_t* id,
              CUgraph* graph, const CUgraphNode** dependencies, const CUgraphEdgeData** edges,
              std::size_t* count) {
    if (status == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver& d, CUstream stream) -> CUresult {
        // A question breaks no capture, unlike work.
        for (const auto& capture : d.captures)
            if (depends_on_capture(stream, *capture)) return CUDA_ERROR_STREAM_CAPTURE_IMPLICIT;
        *status = status_of(*stream);
        if (!stream->capture) return CUDA_SUCCESS;
        if (id != nullptr) *id = stream->capture->id;
        if (graph != nullptr) *graph = stream->capture->graph.get();
        if (dependencies != nullptr) *dependencies = stream->capture_frontier.data();
        if (edges != nullptr) *edges = nullptr;  // all edges are plain ones
        if (count != nullptr) *count = stream->capture_frontier.size();
        return CUDA_SUCCESS;
    });
}

CUresult is_capturing(CUstream handle, DefaultStream meaning, CUstreamCaptureStatus* status) {
    return info(handle, meaning, status, nullptr, nullptr, nullptr, nullptr, nullptr);
}

CUresult update(CUstream handle, DefaultStream meaning, const CUgraphNode* dependencies,
                std::size_t count, unsigned flags) {
    if (flags > CU_STREAM_SET_CAPTURE_DEPENDENCIES || (count != 0 && dependencies == nullptr))
        return CUDA_ERROR_INVALID_VALUE;
    return with_stream(handle, meaning, [&](Driver&, CUstream stream) -> CUresult {
        if (!stream->capture) return CUDA_ERROR_ILLEGAL_STATE;
        if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        const auto& nodes = stream->capture->graph->nodes;
        for (std::size_t i = 0; i < count; ++i) {
            const bool known = std::any_of(nodes.begin(), nodes.end(), [&](const auto& node) {
                return node.get() == dependencies[i];
            });
            if (!known) return CUDA_ERROR_INVALID_VALUE;
        }
        if (flags == CU_STREAM_SET_CAPTURE_DEPENDENCIES) stream->capture_frontier.clear();
        merge(&stream->capture_frontier, {dependencies, dependencies + count});
        return CUDA_SUCCESS;
    });
}

}  // namespace

CUresult check_unsafe_call(Driver& d) {
    if (d.captures.empty()) return CUDA_SUCCESS;
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : d.captures) {
        if (!forbids(*capture, this_thread().capture_mode)) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUresult check_not_capturing(Driver& d, CUstream stream) {
    if (!stream->capture) return check_legacy_implicit(d, stream);
    stream->capture->invalidated = true;
    return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
}

CUresult check_not_capturing(Driver& d, CUcontext context) {
    CUresult result = CUDA_SUCCESS;
    for (const auto& capture : d.captures) {
        const bool touches =
            std::any_of(capture->streams.begin(), capture->streams.end(),
                        [&](CUstream stream) { return stream->context == context; });
        if (!touches) continue;
        capture->invalidated = true;
        result = CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    return result;
}

CUgraphNode add_node(CUgraph_st& graph, Work work, std::vector<CUgraphNode> dependencies) {
    auto node = std::make_unique<CUgraphNode_st>();
    node->graph = &graph;
    node->index = graph.nodes.size();
    node->work = std::move(work);
    node->dependencies = std::move(dependencies);
    graph.nodes.push_back(std::move(node));
    return graph.nodes.back().get();
}

CUresult add_captured(Driver&, CUstream stream, Work work) {
    Capture& capture = *stream->capture;
    if (capture.invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    stream->capture_frontier = {
        add_node(*capture.graph, std::move(work), stream->capture_frontier)};
    return CUDA_SUCCESS;
}

CUresult record_captured(CUstream stream, CUevent event) {
    if (stream->capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    const std::lock_guard leaf(driver().events_mutex);
    event->captured = true;
    event->capture = stream->capture;
    event->capture_nodes = stream->capture_frontier;
    return CUDA_SUCCESS;
}

CUresult wait_captured(Driver&, CUstream stream, CUevent event) {
    const std::shared_ptr<Capture> capture = event->capture.lock();
    const bool over = !capture || capture->streams.empty();
    if (over) {
        // The capture has ended; the event means nothing outside of it.
        if (stream->capture) stream->capture->invalidated = true;
        return stream->capture ? CUDA_ERROR_STREAM_CAPTURE_ISOLATION : CUDA_ERROR_CAPTURED_EVENT;
    }
    if (capture->invalidated) return CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
    if (stream->legacy) {
        capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
    }
    if (stream->capture && stream->capture != capture) {
        capture->invalidated = true;
        stream->capture->invalidated = true;
        return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    }
    if (!stream->capture) {
        stream->capture = capture;
        stream->capture_frontier.clear();
        capture->streams.insert(stream);
    }
    merge(&stream->capture_frontier, event->capture_nodes);
    return CUDA_SUCCESS;
}

void leave_capture(Driver& d, CUstream stream) {
    const std::shared_ptr<Capture> capture = stream->capture;
    if (!capture) return;
    capture->invalidated = true;
    if (capture->origin == stream) {
        release_streams(d, *capture);
    } else {
        capture->streams.erase(stream);
    }
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_PTSZ(cuStreamBeginCapture, (CUstream stream),
            begin(stream, kDefault, CU_STREAM_CAPTURE_MODE_GLOBAL))
SIMGPU_PTSZ(cuStreamBeginCapture_v2, (CUstream stream, CUstreamCaptureMode mode),
            begin(stream, kDefault, mode))
SIMGPU_PTSZ(cuStreamBeginCaptureToGraph,
            (CUstream stream, CUgraph graph, const CUgraphNode* dependencies,
             const CUgraphEdgeData*, std::size_t count, CUstreamCaptureMode mode),
            begin_into(stream, kDefault, graph, dependencies, count, mode))
SIMGPU_PTSZ(cuStreamEndCapture, (CUstream stream, CUgraph* graph), end(stream, kDefault, graph))
SIMGPU_PTSZ(cuStreamIsCapturing, (CUstream stream, CUstreamCaptureStatus* status),
            is_capturing(stream, kDefault, status))
SIMGPU_PTSZ(cuStreamGetCaptureInfo,
            (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id),
            info(stream, kDefault, status, id, nullptr, nullptr, nullptr, nullptr))
SIMGPU_PTSZ(cuStreamGetCaptureInfo_v2,
            (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
             const CUgraphNode** dependencies, std::size_t* count),
            info(stream, kDefault, status, id, graph, dependencies, nullptr, count))
SIMGPU_PTSZ(cuStreamGetCaptureInfo_v3,
            (CUstream stream, CUstreamCaptureStatus* status, cuuint64_t* id, CUgraph* graph,
             const CUgraphNode** dependencies, const CUgraphEdgeData** edges, std::size_t* count),
            info(stream, kDefault, status, id, graph, dependencies, edges, count))
SIMGPU_PTSZ(cuStreamUpdateCaptureDependencies,
            (CUstream stream, CUgraphNode* dependencies, std::size_t count, unsigned int flags),
            update(stream, kDefault, dependencies, count, flags))
SIMGPU_PTSZ(cuStreamUpdateCaptureDependencies_v2,
            (CUstream stream, CUgraphNode* dependencies, const CUgraphEdgeData*, std::size_t count,
             unsigned int flags),
            update(stream, kDefault, dependencies, count, flags))

SIMGPU_EXPORT CUresult CUDAAPI cuThreadExchangeStreamCaptureMode(CUstreamCaptureMode* mode) {
    if (mode == nullptr || *mode < CU_STREAM_CAPTURE_MODE_GLOBAL ||
        *mode > CU_STREAM_CAPTURE_MODE_RELAXED)
        return CUDA_ERROR_INVALID_VALUE;
    const CUresult alive = check_alive(driver());
    if (alive == CUDA_SUCCESS) std::swap(*mode, this_thread().capture_mode);
    return alive;
}
