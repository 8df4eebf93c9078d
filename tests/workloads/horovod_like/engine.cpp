// SPDX-License-Identifier: Apache-2.0
#include "engine.hpp"

#include <algorithm>
#include <chrono>
#include <stdexcept>

#include "copies.hpp"

namespace hvd {
namespace {

void check(cudaError_t error, const char* what) {
    if (error != cudaSuccess) {
        throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
    }
}

void check(ncclResult_t result, const char* what) {
    if (result != ncclSuccess) {
        throw std::runtime_error(std::string(what) + ": " + ncclGetErrorString(result) + "; " +
                                 ncclGetLastError(nullptr));
    }
}

}  // namespace

Engine::Engine(const Settings& settings, Control& control)
    : settings_(settings), control_(control) {
    background_ = std::thread(&Engine::background, this);
    finalizer_ = std::thread(&Engine::finalizer, this);
}

Engine::~Engine() {
    {
        const std::lock_guard lock(mutex_);
        stop_ = true;
    }
    background_.join();
    finalizer_.join();
}

std::int64_t Engine::submit(float* data, std::uint64_t count, const std::string& name,
                            cudaStream_t stream) {
    Entry entry;
    entry.data = data;
    entry.count = count;
    entry.ready = take_event();
    entry.stream = stream;
    check(cudaEventRecord(entry.ready, stream), "cudaEventRecord");
    const std::lock_guard lock(mutex_);
    entry.handle = next_handle_++;
    if (!table_.emplace(name, entry).second) {
        throw std::runtime_error("a sum named " + name + " is under way already");
    }
    done_[entry.handle] = false;
    requests_.push_back({name, count * sizeof(float)});
    return entry.handle;
}

void Engine::synchronize(std::int64_t handle) {
    std::unique_lock lock(mutex_);
    const auto found = done_.find(handle);
    if (found == done_.end()) {
        throw std::runtime_error("no such handle");
    }
    changed_.wait(lock, [&] { return found->second || !error_.empty(); });
    if (!found->second) {
        throw std::runtime_error(error_);
    }
    done_.erase(found);
}

void Engine::background() {
    std::string fault;
    try {
        check(cudaSetDevice(settings_.device), "cudaSetDevice");
        while (cycle()) {
            std::this_thread::sleep_for(
                std::chrono::duration<double, std::milli>(settings_.cycle_ms));
        }
    } catch (const std::exception& error) {
        fault = error.what();
    }
    end(fault);
    if (communicator_ != nullptr) {
        ncclCommDestroy(communicator_);
    }
}

// Without a fault, what has been launched still ends well.
void Engine::end(const std::string& fault) {
    const std::lock_guard lock(mutex_);
    error_ = fault;
    stopped_ = true;
    changed_.notify_all();
    finishing_changed_.notify_all();
}

// False: some rank wants to end.
bool Engine::cycle() {
    std::vector<Request> ready;
    bool stop = false;
    {
        const std::lock_guard lock(mutex_);
        ready.assign(requests_.begin(), requests_.end());
        requests_.clear();
        stop = stop_;
    }
    const Decision decision = control_.negotiate(ready, stop, settings_.fusion_bytes);
    for (const auto& group : decision.groups) {
        std::vector<Entry> entries;
        {
            const std::lock_guard lock(mutex_);
            for (const std::string& name : group) {
                const auto found = table_.find(name);
                entries.push_back(found->second);
                table_.erase(found);
            }
        }
        execute(std::move(entries));
    }
    return !decision.stop;
}

void Engine::open_communicator() {
    int least = 0;
    int greatest = 0;
    check(cudaDeviceGetStreamPriorityRange(&least, &greatest), "cudaDeviceGetStreamPriorityRange");
    check(cudaStreamCreateWithPriority(&stream_, cudaStreamNonBlocking, greatest),
          "cudaStreamCreateWithPriority");
    ncclUniqueId id{};
    if (settings_.rank == 0) {
        check(ncclGetUniqueId(&id), "ncclGetUniqueId");
    }
    control_.broadcast(&id, sizeof id);
    check(ncclCommInitRank(&communicator_, settings_.size, id, settings_.rank), "ncclCommInitRank");
}

void Engine::execute(std::vector<Entry> entries) {
    if (communicator_ == nullptr) {
        open_communicator();
    }
    std::uint64_t count = 0;
    for (const Entry& entry : entries) {
        check(cudaStreamWaitEvent(stream_, entry.ready, 0), "cudaStreamWaitEvent");
        count += entry.count;
    }
    // A tensor alone is summed where it lies.
    const bool fused = entries.size() > 1;
    if (fused && fusion_buffer_ == nullptr) {
        void* memory = nullptr;
        check(cudaMalloc(&memory, settings_.fusion_bytes), "cudaMalloc");
        fusion_buffer_ = static_cast<float*>(memory);
    }
    float* const data = fused ? fusion_buffer_ : entries.front().data;
    if (fused) {
        copy(entries, true);
    }
    check(ncclAllReduce(data, data, count, ncclFloat32, ncclSum, communicator_, stream_),
          "ncclAllReduce");
    if (fused) {
        copy(entries, false);
    }
    Finishing finishing;
    finishing.done = take_event();
    finishing.entries = std::move(entries);
    if (settings_.completion != Completion::kEvent) {
        check(cudaEventRecord(finishing.done, stream_), "cudaEventRecord");
    }
    const std::lock_guard lock(mutex_);
    finishing_.push_back(std::move(finishing));
    finishing_changed_.notify_one();
}

// Between the tensors and the fusion buffer.
void Engine::copy(const std::vector<Entry>& entries, bool in) {
    Copies copies{};
    float* place = fusion_buffer_;
    for (const Entry& entry : entries) {
        copies.copy[copies.count++] =
            in ? Copy{entry.data, place, entry.count} : Copy{place, entry.data, entry.count};
        place += entry.count;
        if (copies.count == kMaxCopies || &entry == &entries.back()) {
            check(static_cast<cudaError_t>(launch_copies(copies, stream_)), "packing");
            copies.count = 0;
        }
    }
}

cudaError_t Engine::wait_for(cudaEvent_t event) const {
    if (settings_.completion != Completion::kPoll) {
        return cudaEventSynchronize(event);
    }
    cudaError_t state = cudaEventQuery(event);
    while (state == cudaErrorNotReady) {
        std::this_thread::yield();
        state = cudaEventQuery(event);
    }
    return state;
}

cudaError_t Engine::put_behind(const Finishing& sums) const {
    cudaError_t result = cudaEventRecord(sums.done, stream_);
    for (const Entry& entry : sums.entries) {
        result = result == cudaSuccess ? cudaStreamWaitEvent(entry.stream, sums.done, 0) : result;
    }
    return result;
}

void Engine::finalizer() {
    if (cudaSetDevice(settings_.device) != cudaSuccess) {
        end("cudaSetDevice failed");
        return;
    }
    std::unique_lock lock(mutex_);
    while (true) {
        finishing_changed_.wait(lock, [&] { return !finishing_.empty() || stopped_; });
        if (finishing_.empty()) {
            error_ = error_.empty() ? "the ranks have ended" : error_;
            changed_.notify_all();
            return;
        }
        Finishing next = std::move(finishing_.front());
        finishing_.pop_front();
        lock.unlock();
        const cudaError_t result =
            settings_.completion == Completion::kEvent ? put_behind(next) : wait_for(next.done);
        lock.lock();
        if (result != cudaSuccess) {
            error_ = std::string("waiting for a sum: ") + cudaGetErrorString(result);
        }
        spare_events_.push_back(next.done);
        for (const Entry& entry : next.entries) {
            spare_events_.push_back(entry.ready);
            done_[entry.handle] = result == cudaSuccess;
        }
        changed_.notify_all();
    }
}

cudaEvent_t Engine::take_event() {
    {
        const std::lock_guard lock(mutex_);
        if (!spare_events_.empty()) {
            const cudaEvent_t event = spare_events_.back();
            spare_events_.pop_back();
            return event;
        }
    }
    cudaEvent_t event = nullptr;
    check(cudaEventCreateWithFlags(&event, cudaEventBlockingSync | cudaEventDisableTiming),
          "cudaEventCreate");
    return event;
}

}  // namespace hvd
