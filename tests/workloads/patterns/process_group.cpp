// SPDX-License-Identifier: Apache-2.0
// Collectives in PyTorch's way; see process_group.hpp. No training here.
#include "process_group.hpp"

#include <chrono>

#include "../dp_device.hpp"
#include "../dp_nccl.hpp"

namespace patterns {

using dp::check;

namespace {

constexpr auto kWatchdogPause = std::chrono::milliseconds(100);
constexpr auto kPollPause = std::chrono::microseconds(100);

}  // namespace

void Work::wait(cudaStream_t current) const {
    check(cudaStreamWaitEvent(current, end_.get(), 0), "cudaStreamWaitEvent");
}

ProcessGroup::ProcessGroup(const dp::Options& options, Blocking blocking)
    : options_(options), stream_(dp::new_stream()), ready_(dp::new_event()) {
    check(cudaGetDevice(&device_), "cudaGetDevice");
    scratch_ = dp::device_array<float>(2);
    const ncclUniqueId id = dp::share_unique_id(options_);
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = blocking == Blocking::kYes ? 1 : 0;
    settle(ncclCommInitRankConfig(&communicator_, options_.world_size, id, options_.rank, &config),
           "ncclCommInitRankConfig");
    dp::meeting_over(options_);
    watchdog_ = std::thread(&ProcessGroup::watch, this);
}

ProcessGroup::~ProcessGroup() {
    {
        const std::lock_guard lock(mutex_);
        end_ = true;
    }
    ended_.notify_all();
    watchdog_.join();
    settle(ncclCommFinalize(communicator_), "ncclCommFinalize");
    check(ncclCommDestroy(communicator_), "ncclCommDestroy");
}

// A communicator that does not block says how far it is only when asked.
void ProcessGroup::settle(ncclResult_t result, const char* what) {
    while (result == ncclInProgress) {
        check(ncclCommGetAsyncError(communicator_, &result), "ncclCommGetAsyncError");
        if (result == ncclInProgress) {
            std::this_thread::sleep_for(kPollPause);
        }
    }
    check(result, what);
}

// Goes back to the others when the watchdog has seen it done and nobody can wait for it any more.
std::shared_ptr<CUevent_st> ProcessGroup::take_event() {
    cudaEvent_t event = nullptr;
    {
        const std::lock_guard lock(mutex_);
        if (!spare_.empty()) {
            event = spare_.back();
            spare_.pop_back();
        }
    }
    event = event ? event : dp::new_event();
    return {event, [this](cudaEvent_t used) {
                const std::lock_guard lock(mutex_);
                spare_.push_back(used);
            }};
}

void ProcessGroup::submit(cudaStream_t stream, const std::function<ncclResult_t()>& call,
                          const char* what, std::shared_ptr<CUevent_st>* end) {
    cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
    check(cudaStreamIsCapturing(stream, &capture), "cudaStreamIsCapturing");
    settle(call(), what);
    *end = take_event();
    check(cudaEventRecord(end->get(), stream), "cudaEventRecord");
    // What a capture records never becomes done.
    if (capture == cudaStreamCaptureStatusNone) {
        const std::lock_guard lock(mutex_);
        under_way_.push_back(*end);
    }
}

Work ProcessGroup::submit_behind(cudaStream_t current, const std::function<ncclResult_t()>& call,
                                 const char* what) {
    dp::order(current, ready_, stream_);
    std::shared_ptr<CUevent_st> end;
    submit(stream_, call, what, &end);
    return Work(std::move(end));
}

Work ProcessGroup::all_reduce(float* data, std::size_t count, cudaStream_t current) {
    return submit_behind(
        current,
        [&] {
            return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, communicator_, stream_);
        },
        "ncclAllReduce");
}

Work ProcessGroup::exchange(const std::vector<Message>& messages, cudaStream_t current) {
    return submit_behind(
        current,
        [&] {
            check(ncclGroupStart(), "ncclGroupStart");
            for (const Message& each : messages) {
                settle(each.send ? ncclSend(each.data, each.count, ncclFloat32, each.peer,
                                            communicator_, stream_)
                                 : ncclRecv(each.data, each.count, ncclFloat32, each.peer,
                                            communicator_, stream_),
                       each.send ? "ncclSend" : "ncclRecv");
            }
            return ncclGroupEnd();
        },
        "ncclGroupEnd");
}

void ProcessGroup::all_reduce_now(float* data, std::size_t count, cudaStream_t current) {
    std::shared_ptr<CUevent_st> end;
    submit(
        current,
        [&] {
            return ncclAllReduce(data, data, count, ncclFloat32, ncclSum, communicator_, current);
        },
        "ncclAllReduce", &end);
}

void ProcessGroup::all_gather_now(const float* part, float* whole, std::size_t part_count,
                                  cudaStream_t current) {
    std::shared_ptr<CUevent_st> end;
    submit(
        current,
        [&] { return ncclAllGather(part, whole, part_count, ncclFloat32, communicator_, current); },
        "ncclAllGather", &end);
}

void ProcessGroup::reduce_scatter_now(const float* whole, float* part, std::size_t part_count,
                                      cudaStream_t current) {
    std::shared_ptr<CUevent_st> end;
    submit(
        current,
        [&] {
            return ncclReduceScatter(whole, part, part_count, ncclFloat32, ncclSum, communicator_,
                                     current);
        },
        "ncclReduceScatter", &end);
}

double ProcessGroup::from_rank_zero(double value) {
    check(cudaMemcpyAsync(scratch_, &value, sizeof(value), cudaMemcpyHostToDevice, stream_),
          "cudaMemcpyAsync");
    settle(ncclBroadcast(scratch_, scratch_, 1, ncclFloat64, 0, communicator_, stream_),
           "ncclBroadcast");
    check(cudaMemcpyAsync(&value, scratch_, sizeof(value), cudaMemcpyDeviceToHost, stream_),
          "cudaMemcpyAsync");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
    return value;
}

// As dist.barrier(): an all-reduce of one element that the CPU waits for.
void ProcessGroup::barrier() {
    settle(ncclAllReduce(scratch_, scratch_, 1, ncclFloat32, ncclSum, communicator_, stream_),
           "ncclAllReduce");
    check(cudaStreamSynchronize(stream_), "cudaStreamSynchronize");
}

void ProcessGroup::watch() {
    check(cudaSetDevice(device_), "cudaSetDevice");
    // The questions must not end a capture that another thread is making.
    cudaStreamCaptureMode mode = cudaStreamCaptureModeThreadLocal;
    check(cudaThreadExchangeStreamCaptureMode(&mode), "cudaThreadExchangeStreamCaptureMode");
    std::unique_lock lock(mutex_);
    while (!ended_.wait_for(lock, kWatchdogPause, [this] { return end_; })) {
        // Events go back under the lock themselves.
        std::list<std::shared_ptr<CUevent_st>> work;
        work.swap(under_way_);
        lock.unlock();
        work.remove_if([](const std::shared_ptr<CUevent_st>& event) {
            const cudaError_t state = cudaEventQuery(event.get());
            if (state != cudaErrorNotReady) {
                check(state, "cudaEventQuery");
            }
            return state == cudaSuccess;
        });
        lock.lock();
        under_way_.splice(under_way_.begin(), work);
    }
}

}  // namespace patterns
