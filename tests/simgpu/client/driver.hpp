// SPDX-License-Identifier: Apache-2.0
// State of the virtual driver: the objects behind CUDA's opaque handles, the per-process and
// per-thread state, and the frame every exported function runs in. Submission is in stream.hpp,
// memory in memory.hpp, capture and graphs in capture.hpp.
//
// One lock, Driver::mutex, covers every object here and keeps submissions in order. Waits release
// it. The executor thread never takes it. Events are changed under Driver::events_mutex, too, so
// that a thread which asks for one again and again does not wait for another's submissions.
#pragma once

// Declares every ABI version of every function under its own name, so that the compiler checks each
// definition.
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <array>
#include <atomic>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <set>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "connection.hpp"

#define SIMGPU_EXPORT extern "C" __attribute__((visibility("default")))

namespace simgpu {

struct Capture;
struct HostKernel;

// Which stream the handle 0 means: fixed by the name a program calls (cuX or cuX_ptsz).
enum class DefaultStream { kLegacy, kPerThread };

struct Device {
    int ordinal = 0;   // as the program counts
    int physical = 0;  // as the server counts
    int gpu = 0;       // number of the GPU that it is, or is an instance of
    CUuuid uuid{};     // the instance's, where the GPU is split
    CUuuid gpu_uuid{};
    unsigned instances = 0;         // MIG instances of that GPU, 0: it is not split
    std::uint64_t memory_used = 0;  // bytes, this process
    CUcontext primary = nullptr;
    int primary_retained = 0;
    unsigned primary_flags = 0;
    CUmemoryPool default_pool = nullptr;
    CUmemoryPool current_pool = nullptr;
};

}  // namespace simgpu

struct CUctx_st {
    simgpu::Device* device = nullptr;
    bool primary = false;
    bool active = false;  // false: destroyed, or a primary context nobody retains
    unsigned flags = 0;
    std::uint64_t id = 0;
    CUstream legacy = nullptr;
    std::unordered_set<CUstream> streams;  // all, the default ones included
    std::vector<std::pair<simgpu::OpId, bool>>
        orphans;  // last operations of destroyed streams, and if those blocked
    std::map<int, std::size_t> limits;
    std::unordered_set<CUcontext> peers;
};

struct CUstream_st {
    CUcontext context = nullptr;
    std::uint64_t id = 0;  // on the wire
    unsigned flags = 0;    // CU_STREAM_NON_BLOCKING
    int priority = 0;
    bool legacy = false;
    simgpu::OpId last_op = 0;
    // Of a blocking stream: the newest operation of the legacy stream it already waits for, and its
    // own newest one that the legacy stream already waits for.
    simgpu::OpId joined = 0;
    simgpu::OpId joined_by_legacy = 0;
    simgpu::Counter in_flight;
    std::shared_ptr<simgpu::Capture> capture;   // set while the stream captures
    std::vector<CUgraphNode> capture_frontier;  // what the next captured operation depends on
};

struct CUevent_st {
    CUcontext context = nullptr;
    unsigned flags = 0;
    simgpu::OpId op = 0;  // marker of the last record
    simgpu::TimeStamp done_ns;
    std::weak_ptr<simgpu::Capture> capture;  // of the last record, when that was captured
    bool captured = false;
    std::vector<CUgraphNode> capture_nodes;
};

// A function and a kernel are the same here; a CUkernel is accepted wherever a CUfunction is.
struct CUfunc_st {
    std::string name;
    CUmodule module = nullptr;  // null: a collective function of the NCCL library
    bool collective = false;
    const simgpu::HostKernel* host = nullptr;  // null: a timed no-op
    std::map<int, int> attributes;
};

struct CUkern_st {
    CUfunc_st* function = nullptr;
    CUlibrary library = nullptr;
};

struct CUmod_st {
    CUcontext context = nullptr;  // null: of a library
    bool collective = false;      // NCCL's: see SIMGPU_COLLECTIVE_IMAGE
    std::map<std::string, std::unique_ptr<CUfunc_st>> functions;
    std::map<std::string, std::pair<void*, std::size_t>> globals;
};

struct CUlib_st {
    std::unique_ptr<CUmod_st> module;
    std::map<std::string, std::unique_ptr<CUkern_st>> kernels;
};

namespace simgpu {

struct Driver {
    std::mutex mutex;
    std::mutex events_mutex;  // taken after `mutex`, for moments only: `events` and their fields
    CUresult init_result = CUDA_ERROR_NOT_INITIALIZED;
    std::atomic<bool> initialized{false};
    std::atomic<bool> finished{false};  // the process is exiting
    Connection* connection = nullptr;
    std::string dir;
    std::string data_dir;
    std::vector<std::unique_ptr<Device>> devices;  // those the program sees

    std::unordered_set<CUcontext> contexts;  // never freed: a stale handle stays recognisable
    std::unordered_set<CUstream> streams;
    std::unordered_set<CUevent> events;
    std::unordered_set<CUmodule> modules;
    std::unordered_set<CUlibrary> libraries;
    std::unordered_set<const void*> functions;
    std::unordered_map<const void*, CUkern_st*> kernels;
    std::unordered_set<CUgraph> graphs;
    std::unordered_set<CUgraphExec> execs;
    std::unordered_set<CUmemoryPool> pools;
    std::vector<std::shared_ptr<Capture>> captures;  // in progress
    std::atomic<std::size_t> capture_count{0};       // of them
    std::set<std::pair<std::uint64_t, std::uint32_t>>
        comms;  // number and rank of those this process is in
    std::uint64_t next_stream_id = 1;
    std::uint64_t next_context_id = 1;
    std::uint64_t next_capture_id = 1;
};

// The one driver of the process; never destroyed.
Driver& driver();

struct ThreadState {
    std::vector<CUcontext> context_stack;
    std::unordered_map<CUcontext, CUstream> per_thread_streams;
    CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;
    ~ThreadState();
};
ThreadState& this_thread();

// Whether this is a child forked from a process that had begun to use the driver: its locks and
// memory are of no use.
bool in_forked_child();
// CUDA_SUCCESS when calls may go on in this process and thread, else what they must return.
CUresult check_alive(const Driver& d);
// The thread's current context; an error when there is none or it is no longer active.
CUresult current_context(CUcontext* context);
// Whether `context` is a live handle.
bool is_active(const Driver& d, CUcontext context);
// The device of an ordinal, or null.
Device* device_of(const Driver& d, CUdevice ordinal);

// Runs `body(driver, lock)` under the driver's lock, after the checks every call makes. Nothing
// thrown leaves.
template <typename Body>
CUresult call(Body&& body) noexcept {
    try {
        Driver& d = driver();
        if (const CUresult alive = check_alive(d); alive != CUDA_SUCCESS) return alive;
        std::unique_lock lock(d.mutex);
        return body(d, lock);
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        return CUDA_ERROR_UNKNOWN;
    }
}

// As call(), with the thread's current context: body(driver, context, lock).
template <typename Body>
CUresult call_in_context(Body&& body) noexcept {
    return call([&](Driver& d, std::unique_lock<std::mutex>& lock) -> CUresult {
        CUcontext context = nullptr;
        if (const CUresult rc = current_context(&context); rc != CUDA_SUCCESS) return rc;
        return body(d, context, lock);
    });
}

// After a wait that failed: the error that says why.
CUresult lost(const Driver& d);

// Context life cycle, for device and context files. The lock is held.
CUcontext make_context(Driver& d, Device& device, unsigned flags, bool primary);
void activate_context(Driver& d, CUcontext context);
// Waits for the context's work, then destroys its streams, memory and modules.
CUresult retire_context(Driver& d, CUcontext context, std::unique_lock<std::mutex>& lock);

// Visible devices, from the machine's list and CUDA_VISIBLE_DEVICES; false when the list is not the
// server's.
bool find_devices(Driver& d);
inline constexpr unsigned kMultiprocessors = 132;  // of a whole GPU
unsigned multiprocessors_of(const Device& device);

}  // namespace simgpu
