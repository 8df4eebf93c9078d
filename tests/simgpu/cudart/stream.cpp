// SPDX-License-Identifier: Apache-2.0
// Streams, events and capture of the virtual GPU's CUDA runtime. Ordering rules live in the driver.
#include "runtime.hpp"

using namespace simgpu::cudart;

static_assert(sizeof(cudaLaunchAttributeValue) == sizeof(CUlaunchAttributeValue));

extern "C" cudaError_t cudaStreamCreate(cudaStream_t* stream) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuStreamCreate(stream, CU_STREAM_DEFAULT));
    });
}

extern "C" cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned int flags) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuStreamCreate(stream, flags)); });
}

extern "C" cudaError_t cudaStreamCreateWithPriority(cudaStream_t* stream, unsigned int flags,
                                                    int priority) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuStreamCreateWithPriority(stream, flags, priority));
    });
}

extern "C" cudaError_t cudaStreamDestroy(cudaStream_t stream) {
    return enter([&](const Driver& driver) { return to_error(driver.cuStreamDestroy(stream)); });
}

SIMGPU_STREAM_FUNCTION(cudaStreamQuery, _ptsz, (cudaStream_t stream), (stream)) {
    return to_error(driver.cuStreamQuery(stream));
}

SIMGPU_STREAM_FUNCTION(cudaStreamSynchronize, _ptsz, (cudaStream_t stream), (stream)) {
    return to_error(driver.cuStreamSynchronize(stream));
}

SIMGPU_STREAM_FUNCTION(cudaStreamWaitEvent, _ptsz,
                       (cudaStream_t stream, cudaEvent_t event, unsigned int flags),
                       (stream, event, flags)) {
    return to_error(driver.cuStreamWaitEvent(stream, event, flags));
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetFlags, _ptsz, (cudaStream_t stream, unsigned int* flags),
                       (stream, flags)) {
    return to_error(driver.cuStreamGetFlags(stream, flags));
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetPriority, _ptsz, (cudaStream_t stream, int* priority),
                       (stream, priority)) {
    return to_error(driver.cuStreamGetPriority(stream, priority));
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetId, _ptsz, (cudaStream_t stream, unsigned long long* id),
                       (stream, id)) {
    return to_error(driver.cuStreamGetId(stream, id));
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetDevice, _ptsz, (cudaStream_t stream, int* device),
                       (stream, device)) {
    return to_error(driver.cuStreamGetDevice(stream, device));
}

SIMGPU_STREAM_FUNCTION(cudaStreamCopyAttributes, _ptsz, (cudaStream_t target, cudaStream_t source),
                       (target, source)) {
    return to_error(driver.cuStreamCopyAttributes(target, source));
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetAttribute, _ptsz,
                       (cudaStream_t stream, cudaLaunchAttributeID attribute,
                        cudaLaunchAttributeValue* value),
                       (stream, attribute, value)) {
    return to_error(driver.cuStreamGetAttribute(stream, static_cast<CUlaunchAttributeID>(attribute),
                                                reinterpret_cast<CUlaunchAttributeValue*>(value)));
}

SIMGPU_STREAM_FUNCTION(cudaStreamSetAttribute, _ptsz,
                       (cudaStream_t stream, cudaLaunchAttributeID attribute,
                        const cudaLaunchAttributeValue* value),
                       (stream, attribute, value)) {
    return to_error(
        driver.cuStreamSetAttribute(stream, static_cast<CUlaunchAttributeID>(attribute),
                                    reinterpret_cast<const CUlaunchAttributeValue*>(value)));
}

SIMGPU_STREAM_FUNCTION(cudaLaunchHostFunc, _ptsz,
                       (cudaStream_t stream, cudaHostFn_t function, void* data),
                       (stream, function, data)) {
    return to_error(driver.cuLaunchHostFunc(stream, function, data));
}

namespace {

// A stream callback has the runtime's error type in its signature, so it cannot be handed to the
// driver as it is.
struct Callback {
    cudaStreamCallback_t function;
    void* data;
};

void CUDA_CB run_callback(CUstream stream, CUresult status, void* data) {
    const auto* const callback = static_cast<Callback*>(data);
    callback->function(stream, to_error(status), callback->data);
    delete callback;
}

}  // namespace

SIMGPU_STREAM_FUNCTION(cudaStreamAddCallback, _ptsz,
                       (cudaStream_t stream, cudaStreamCallback_t function, void* data,
                        unsigned int flags),
                       (stream, function, data, flags)) {
    if (!function) {
        return cudaErrorInvalidValue;
    }
    auto* const callback = new Callback{function, data};
    const CUresult result = driver.cuStreamAddCallback(stream, run_callback, callback, flags);
    if (result != CUDA_SUCCESS) {
        delete callback;
    }
    return to_error(result);
}

SIMGPU_STREAM_FUNCTION(cudaStreamBeginCapture, _ptsz,
                       (cudaStream_t stream, cudaStreamCaptureMode mode), (stream, mode)) {
    return to_error(driver.cuStreamBeginCapture(stream, static_cast<CUstreamCaptureMode>(mode)));
}

SIMGPU_STREAM_FUNCTION(cudaStreamBeginCaptureToGraph, _ptsz,
                       (cudaStream_t stream, cudaGraph_t graph, const cudaGraphNode_t* dependencies,
                        const cudaGraphEdgeData* edges, size_t count, cudaStreamCaptureMode mode),
                       (stream, graph, dependencies, edges, count, mode)) {
    return to_error(driver.cuStreamBeginCaptureToGraph(
        stream, graph, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count,
        static_cast<CUstreamCaptureMode>(mode)));
}

SIMGPU_STREAM_FUNCTION(cudaStreamEndCapture, _ptsz, (cudaStream_t stream, cudaGraph_t* graph),
                       (stream, graph)) {
    return to_error(driver.cuStreamEndCapture(stream, graph));
}

SIMGPU_STREAM_FUNCTION(cudaStreamIsCapturing, _ptsz,
                       (cudaStream_t stream, cudaStreamCaptureStatus* status), (stream, status)) {
    if (!status) {
        return cudaErrorInvalidValue;
    }
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    const CUresult result = driver.cuStreamIsCapturing(stream, &found);
    *status = static_cast<cudaStreamCaptureStatus>(found);
    return to_error(result);
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetCaptureInfo_v3, _ptsz,
                       (cudaStream_t stream, cudaStreamCaptureStatus* status,
                        unsigned long long* id, cudaGraph_t* graph,
                        const cudaGraphNode_t** dependencies, const cudaGraphEdgeData** edges,
                        size_t* count),
                       (stream, status, id, graph, dependencies, edges, count)) {
    if (!status) {
        return cudaErrorInvalidValue;
    }
    CUstreamCaptureStatus found = CU_STREAM_CAPTURE_STATUS_NONE;
    cuuint64_t sequence = 0;
    const CUresult result =
        driver.cuStreamGetCaptureInfo(stream, &found, &sequence, graph, dependencies,
                                      reinterpret_cast<const CUgraphEdgeData**>(edges), count);
    *status = static_cast<cudaStreamCaptureStatus>(found);
    if (id) {
        *id = sequence;
    }
    return to_error(result);
}

SIMGPU_STREAM_FUNCTION(cudaStreamGetCaptureInfo_v2, _ptsz,
                       (cudaStream_t stream, cudaStreamCaptureStatus* status,
                        unsigned long long* id, cudaGraph_t* graph,
                        const cudaGraphNode_t** dependencies, size_t* count),
                       (stream, status, id, graph, dependencies, count)) {
    return cudaStreamGetCaptureInfo_v3_on(driver, stream, status, id, graph, dependencies, nullptr,
                                          count);
}

SIMGPU_STREAM_FUNCTION(cudaStreamUpdateCaptureDependencies, _ptsz,
                       (cudaStream_t stream, cudaGraphNode_t* dependencies,
                        const cudaGraphEdgeData* edges, size_t count, unsigned int flags),
                       (stream, dependencies, edges, count, flags)) {
    return to_error(driver.cuStreamUpdateCaptureDependencies(
        stream, dependencies, reinterpret_cast<const CUgraphEdgeData*>(edges), count, flags));
}

extern "C" cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
    return enter_without_context([&](const Driver& driver) {
        if (!mode) {
            return cudaErrorInvalidValue;
        }
        auto value = static_cast<CUstreamCaptureMode>(*mode);
        const CUresult result = driver.cuThreadExchangeStreamCaptureMode(&value);
        *mode = static_cast<cudaStreamCaptureMode>(value);
        return to_error(result);
    });
}

extern "C" cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned int flags) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuEventCreate(event, flags)); });
}

extern "C" cudaError_t cudaEventCreate(cudaEvent_t* event) {
    return enter([&](const Driver& driver) {
        return to_error(driver.cuEventCreate(event, CU_EVENT_DEFAULT));
    });
}

extern "C" cudaError_t cudaEventDestroy(cudaEvent_t event) {
    return enter([&](const Driver& driver) { return to_error(driver.cuEventDestroy(event)); });
}

extern "C" cudaError_t cudaEventQuery(cudaEvent_t event) {
    return enter([&](const Driver& driver) { return to_error(driver.cuEventQuery(event)); });
}

extern "C" cudaError_t cudaEventSynchronize(cudaEvent_t event) {
    return enter([&](const Driver& driver) { return to_error(driver.cuEventSynchronize(event)); });
}

SIMGPU_STREAM_FUNCTION(cudaEventRecord, _ptsz, (cudaEvent_t event, cudaStream_t stream),
                       (event, stream)) {
    return to_error(driver.cuEventRecord(event, stream));
}

SIMGPU_STREAM_FUNCTION(cudaEventRecordWithFlags, _ptsz,
                       (cudaEvent_t event, cudaStream_t stream, unsigned int flags),
                       (event, stream, flags)) {
    return to_error(driver.cuEventRecordWithFlags(event, stream, flags));
}

extern "C" cudaError_t cudaEventElapsedTime(float* ms, cudaEvent_t start, cudaEvent_t end) {
    return enter(
        [&](const Driver& driver) { return to_error(driver.cuEventElapsedTime(ms, start, end)); });
}
