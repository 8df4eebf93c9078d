// SPDX-License-Identifier: Apache-2.0
// Groups and launches of the virtual GPU's libnccl; see group.hpp. What a launch does with data is
// in plan.cpp.
#include "group.hpp"

#include <signal.h>

#include <algorithm>
#include <system_error>
#include <thread>
#include <utility>

#include "device.hpp"
#include "profiler.hpp"
#include "report.hpp"

namespace simgpu::nccl {
namespace {

// Blocks and threads of the kernel: what a ring of eight channels uses. The virtual GPU's model
// does not read them; whoever watches launches does.
constexpr unsigned int kChannels = 8;
constexpr unsigned int kThreads = 512;

struct Operation {
    Task task;
    cudaStream_t stream = nullptr;
};

struct Batch {
    Comm comm;
    std::vector<Operation> operations;
};

struct Job {
    Comm comm;
    std::function<ncclResult_t()> run;
    ncclResult_t result = ncclSuccess;
};

struct Group {
    int depth = 0;
    ncclResult_t failure = ncclSuccess;
    std::vector<Batch> batches;  // in the order in which communicators came up
    std::vector<Job> jobs;
};

Group& group() {
    thread_local Group instance;
    return instance;
}

// Makes a device current for a scope, and the caller's again.
class DeviceScope {
  public:
    explicit DeviceScope(int device) {
        error_ = cudaGetDevice(&before_);
        if (error_ == cudaSuccess && before_ != device) {
            error_ = cudaSetDevice(device);
            changed_ = error_ == cudaSuccess;
        }
    }
    ~DeviceScope() {
        if (changed_) {
            cudaSetDevice(before_);
        }
    }
    DeviceScope(const DeviceScope&) = delete;
    DeviceScope& operator=(const DeviceScope&) = delete;
    cudaError_t error() const { return error_; }

  private:
    int before_ = 0;
    bool changed_ = false;
    cudaError_t error_ = cudaSuccess;
};

// Orders `after` behind everything in `before` so far.
cudaError_t order(cudaStream_t before, cudaStream_t after) {
    cudaEvent_t event = nullptr;
    cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error != cudaSuccess) {
        return error;
    }
    error = cudaEventRecord(event, before);
    if (error == cudaSuccess) {
        error = cudaStreamWaitEvent(after, event, 0);
    }
    const cudaError_t destroyed = cudaEventDestroy(event);
    return error != cudaSuccess ? error : destroyed;
}

ncclResult_t launch_kernel(const std::shared_ptr<Plan>& plan, cudaStream_t stream) {
    const Device* const driver = device();
    if (!driver) {
        return ncclUnhandledCudaError;
    }
    // By its name, as the vendor's embedded runtime does.
    CUkernel kernel = nullptr;
    CUfunction function = nullptr;
    if (driver->library_get_kernel(&kernel, driver->kernels, plan->kernel_name().c_str()) !=
            CUDA_SUCCESS ||
        driver->kernel_get_function(&function, kernel) != CUDA_SUCCESS) {
        return fail(ncclUnhandledCudaError, "no kernel %s", plan->kernel_name().c_str());
    }
    SimgpuCollective argument = Plan::launch_argument(plan);
    std::size_t size = sizeof(argument);
    void* extra[] = {CU_LAUNCH_PARAM_BUFFER_POINTER, &argument, CU_LAUNCH_PARAM_BUFFER_SIZE, &size,
                     CU_LAUNCH_PARAM_END};
    CUlaunchConfig config{};
    config.gridDimX = kChannels;
    config.gridDimY = 1;
    config.gridDimZ = 1;
    config.blockDimX = kThreads;
    config.blockDimY = 1;
    config.blockDimZ = 1;
    config.hStream = stream;
    const CUresult result = driver->launch_kernel_ex(&config, function, nullptr, extra);
    return cuda_result(static_cast<cudaError_t>(result), "launch of a collective");
}

// A communicator of one rank needs no kernel, except for a scaled sum.
ncclResult_t copy_on_one_rank(const Batch& batch, std::vector<Operation>* rest) {
    std::vector<const Operation*> sends;
    std::vector<const Operation*> receives;
    for (const Operation& operation : batch.operations) {
        const Task& task = operation.task;
        if (task.kind == Kind::kSend) {
            sends.push_back(&operation);
        } else if (task.kind == Kind::kReceive) {
            receives.push_back(&operation);
        } else if (task.reduction.kind == ReduceKind::kPreMulSum) {
            rest->push_back(operation);
        } else if (task.send != task.receive) {
            const ncclResult_t result =
                cuda_result(cudaMemcpyAsync(task.receive, task.send, task.bytes(),
                                            cudaMemcpyDeviceToDevice, operation.stream),
                            "copy on one rank");
            if (result != ncclSuccess) {
                return result;
            }
        }
    }
    if (sends.size() != receives.size()) {
        return fail(ncclInvalidUsage, "sends and receives of rank 0 to itself do not match");
    }
    for (std::size_t i = 0; i < sends.size(); ++i) {
        const Task& from = sends[i]->task;
        const Task& to = receives[i]->task;
        if (from.bytes() != to.bytes()) {
            return fail(ncclInvalidUsage, "sends and receives of rank 0 to itself do not match");
        }
        const ncclResult_t result =
            cuda_result(cudaMemcpyAsync(to.receive, from.send, from.bytes(),
                                        cudaMemcpyDeviceToDevice, receives[i]->stream),
                        "copy on one rank");
        if (result != ncclSuccess) {
            return result;
        }
    }
    return ncclSuccess;
}

ncclResult_t launch(Batch batch) {
    const DeviceScope scope(batch.comm->device());
    if (scope.error() != cudaSuccess) {
        return cuda_result(scope.error(), "selecting the communicator's device");
    }
    if (batch.comm->ranks() == 1) {
        std::vector<Operation> rest;
        const ncclResult_t result = copy_on_one_rank(batch, &rest);
        if (result != ncclSuccess || rest.empty()) {
            return result;
        }
        batch.operations = std::move(rest);
    }
    std::vector<Task> tasks;
    std::vector<cudaStream_t> streams;
    for (const Operation& operation : batch.operations) {
        tasks.push_back(operation.task);
        if (std::find(streams.begin(), streams.end(), operation.stream) == streams.end()) {
            streams.push_back(operation.stream);
        }
    }
    std::shared_ptr<Plan> plan;
    ncclResult_t result = Plan::make(batch.comm, tasks, &plan);
    // One kernel on the first stream; the group's other streams are ordered around it.
    for (std::size_t i = 1; i < streams.size() && result == ncclSuccess; ++i) {
        result = cuda_result(order(streams[i], streams[0]), "ordering the group's streams");
    }
    if (result == ncclSuccess) {
        CommProfiler* const profiler = batch.comm->profiler();
        void* const event = profiler ? profiler->launch_begins(streams[0]) : nullptr;
        result = launch_kernel(plan, streams[0]);
        if (profiler) {
            profiler->event_ends(event);
        }
        // What is captured is reported when the graph runs, on a thread of the driver's: not here.
        cudaStreamCaptureStatus capture = cudaStreamCaptureStatusNone;
        if (profiler && result == ncclSuccess &&
            cudaStreamIsCapturing(streams[0], &capture) == cudaSuccess &&
            capture == cudaStreamCaptureStatusNone) {
            profiler->launched(tasks);
        }
    }
    for (std::size_t i = 1; i < streams.size() && result == ncclSuccess; ++i) {
        result = cuda_result(order(streams[0], streams[i]), "ordering the group's streams");
    }
    return result;
}

// Starts a thread that takes none of the program's signals.
template <typename Function>
std::thread quiet_thread(Function function) {
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    try {
        std::thread result(std::move(function));
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        return result;
    } catch (...) {
        pthread_sigmask(SIG_SETMASK, &before, nullptr);
        throw;
    }
}

ncclResult_t run_jobs(std::vector<Job> jobs) {
    const bool blocking =
        std::all_of(jobs.begin(), jobs.end(), [](const Job& job) { return job.comm->blocking(); });
    const auto run = [](Job& job) {
        job.result = job.run();
        if (job.result != ncclSuccess) {
            job.comm->set_async_error(job.result);
        }
        job.comm->job_ends();
    };
    for (const Job& job : jobs) {
        job.comm->job_begins();
    }
    std::size_t started = 0;
    try {
        if (!blocking) {
            for (Job& job : jobs) {
                quiet_thread([run, job]() mutable { run(job); }).detach();
                ++started;
            }
            return ncclInProgress;
        }
        std::vector<std::thread> threads;
        ncclResult_t failure = ncclSuccess;
        try {
            for (std::size_t i = 1; i < jobs.size(); ++i) {
                threads.push_back(quiet_thread([&run, &job = jobs[i]] { run(job); }));
                ++started;
            }
        } catch (const std::system_error& error) {
            failure = fail(ncclSystemError, "cannot start a thread: %s", error.what());
            // The others would wait for the ranks that cannot start.
            for (const Job& job : jobs) {
                job.comm->revoke();
            }
            for (std::size_t i = started + 1; i < jobs.size(); ++i) {
                jobs[i].comm->set_async_error(ncclSystemError);
                jobs[i].comm->job_ends();
            }
        }
        run(jobs[0]);
        for (std::thread& thread : threads) {
            thread.join();
        }
        for (const Job& job : jobs) {
            failure = failure == ncclSuccess ? job.result : failure;
        }
        return failure;
    } catch (const std::system_error& error) {
        for (std::size_t i = started; i < jobs.size(); ++i) {
            jobs[i].comm->set_async_error(ncclSystemError);
            jobs[i].comm->job_ends();
        }
        return fail(ncclSystemError, "cannot start a thread: %s", error.what());
    }
}

ncclResult_t launch_all(std::vector<Batch> batches) {
    ncclResult_t result = ncclSuccess;
    for (Batch& batch : batches) {
        if (result == ncclSuccess) {
            result = launch(std::move(batch));
        }
    }
    return result;
}

// Operations on a non-blocking communicator are launched after the call returned, as the vendor's
// library does.
ncclResult_t launch_later(std::vector<Batch> batches) {
    std::vector<Comm> comms;
    for (const Batch& batch : batches) {
        comms.push_back(batch.comm);
        batch.comm->job_begins();
    }
    const auto finish = [comms](ncclResult_t result) {
        for (const Comm& comm : comms) {
            if (result != ncclSuccess) {
                comm->set_async_error(result);
            }
            comm->job_ends();
        }
    };
    try {
        quiet_thread([batches = std::move(batches), finish]() mutable {
            // A new thread has no context yet.
            const ncclResult_t ready = cuda_result(cudaSetDevice(batches.front().comm->device()),
                                                   "selecting the communicator's device");
            finish(ready == ncclSuccess ? launch_all(std::move(batches)) : ready);
        }).detach();
    } catch (const std::system_error& error) {
        finish(ncclSystemError);
        return fail(ncclSystemError, "cannot start a thread: %s", error.what());
    }
    return ncclInProgress;
}

}  // namespace

ncclResult_t group_start() {
    ++group().depth;
    return ncclSuccess;
}

bool in_group() { return group().depth > 0; }

ncclResult_t group_failed(ncclResult_t result) {
    if (group().depth > 0 && group().failure == ncclSuccess) {
        group().failure = result;
    }
    return result;
}

void group_add(const Comm& comm, const Task& task, cudaStream_t stream) {
    std::vector<Batch>& batches = group().batches;
    const auto found = std::find_if(batches.begin(), batches.end(),
                                    [&](const Batch& batch) { return batch.comm == comm; });
    Batch& batch = found == batches.end() ? batches.emplace_back(Batch{comm, {}}) : *found;
    batch.operations.push_back(Operation{task, stream});
    if (CommProfiler* const profiler = comm->profiler()) {
        profiler->event_ends(profiler->call_begins(task, stream));
    }
}

void group_add_job(const Comm& comm, std::function<ncclResult_t()> run) {
    group().jobs.push_back(Job{comm, std::move(run), ncclSuccess});
}

ncclResult_t group_end() {
    Group& current = group();
    if (current.depth == 0) {
        return fail(ncclInvalidUsage, "ncclGroupEnd without ncclGroupStart");
    }
    if (--current.depth > 0) {
        return ncclSuccess;
    }
    const ncclResult_t failure = std::exchange(current.failure, ncclSuccess);
    std::vector<Batch> batches = std::exchange(current.batches, {});
    std::vector<Job> jobs = std::exchange(current.jobs, {});
    if (failure != ncclSuccess) {
        for (const Job& job : jobs) {
            job.comm->set_async_error(failure);
        }
        return failure;
    }
    ncclResult_t result = jobs.empty() ? ncclSuccess : run_jobs(std::move(jobs));
    if (batches.empty() || (result != ncclSuccess && result != ncclInProgress)) {
        return result;
    }
    const bool blocking = std::all_of(batches.begin(), batches.end(),
                                      [](const Batch& batch) { return batch.comm->blocking(); });
    const ncclResult_t launched =
        blocking ? launch_all(std::move(batches)) : launch_later(std::move(batches));
    return launched == ncclSuccess ? result : launched;
}

ncclResult_t group_drop() {
    Group& current = group();
    if (current.depth == 0) {
        return fail(ncclInvalidUsage, "ncclGroupSimulateEnd without ncclGroupStart");
    }
    if (--current.depth > 0) {
        return ncclSuccess;
    }
    current.batches.clear();
    current.jobs.clear();
    return std::exchange(current.failure, ncclSuccess);
}

}  // namespace simgpu::nccl

SIMGPU_NCCL_API(ncclResult_t, ncclGroupStart, ()) { return simgpu::nccl::group_start(); }

SIMGPU_NCCL_API(ncclResult_t, ncclGroupEnd, ()) { return simgpu::nccl::group_end(); }

// The estimate stays undefined: only the device server knows the links.
SIMGPU_NCCL_API(ncclResult_t, ncclGroupSimulateEnd, (ncclSimInfo_t*)) {
    return simgpu::nccl::group_drop();
}
