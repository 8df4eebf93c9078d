// SPDX-License-Identifier: Apache-2.0
// The process's driver: cuInit, what happens at fork and exit, and the checks every call makes.

#include "driver.hpp"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cstdio>

#include "stream.hpp"

namespace simgpu {
namespace {

std::atomic<bool> forked_child{false};

void in_child() {
    Driver& d = driver();
    forked_child = true;
    if (d.connection != nullptr) d.connection->drop_in_child();
}

void at_exit() {
    Driver& d = driver();
    if (forked_child || d.finished.exchange(true)) return;
    d.connection->quiesce();
}

CUresult initialize(Driver& d) {
    // First: a child forked while another thread is in here must not touch what it finds half made.
    if (pthread_atfork(nullptr, nullptr, in_child) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    const char* dir = getenv(kEnvDir);
    if (dir == nullptr || *dir == '\0') return CUDA_ERROR_NO_DEVICE;
    std::string error;
    d.connection = Connection::open(dir, &error);
    if (d.connection == nullptr) {
        std::fprintf(stderr, "simgpu: no device server: %s\n", error.c_str());
        return CUDA_ERROR_NO_DEVICE;
    }
    d.dir = dir;
    d.data_dir = d.dir + "/data";
    if (mkdir(d.data_dir.c_str(), 0700) != 0 && errno != EEXIST) d.data_dir.clear();
    if (!find_devices(d)) {
        std::fprintf(stderr, "simgpu: %s/devices: not the list of the server's devices\n", dir);
        return CUDA_ERROR_NO_DEVICE;
    }
    if (atexit(at_exit) != 0) return CUDA_ERROR_OPERATING_SYSTEM;
    return d.devices.empty() ? CUDA_ERROR_NO_DEVICE : CUDA_SUCCESS;
}

}  // namespace

Driver& driver() {
    static Driver* const the_driver = new Driver;
    return *the_driver;
}

// Set once the thread's state is gone, which at exit() is before the exit handlers run.
static thread_local constinit bool thread_ended = false;

ThreadState& this_thread() {
    thread_local ThreadState state;
    return state;
}

ThreadState::~ThreadState() {
    thread_ended = true;
    if (per_thread_streams.empty()) return;
    Driver& d = driver();
    if (d.finished || forked_child) return;
    const std::lock_guard lock(d.mutex);
    for (const auto& [context, stream] : per_thread_streams)
        if (d.streams.contains(stream)) destroy_stream(d, stream);
}

bool in_forked_child() { return forked_child; }

CUresult check_alive(const Driver& d) {
    if (!d.initialized.load(std::memory_order_acquire) || forked_child)
        return CUDA_ERROR_NOT_INITIALIZED;
    if (d.finished || thread_ended) return CUDA_ERROR_DEINITIALIZED;
    if (Connection::on_own_thread()) return CUDA_ERROR_NOT_PERMITTED;
    return d.connection->health() == Health::kGood ? CUDA_SUCCESS : lost(d);
}

CUresult lost(const Driver& d) {
    if (d.finished) return CUDA_ERROR_DEINITIALIZED;  // since the check at the call's beginning
    return d.connection->health() == Health::kFault ? CUDA_ERROR_LAUNCH_FAILED
                                                    : CUDA_ERROR_DEVICE_UNAVAILABLE;
}

bool is_active(const Driver& d, CUcontext context) {
    return d.contexts.contains(context) && context->active;
}

CUresult current_context(CUcontext* context) {
    const auto& stack = this_thread().context_stack;
    if (stack.empty() || stack.back() == nullptr) return CUDA_ERROR_INVALID_CONTEXT;
    if (!stack.back()->active) return CUDA_ERROR_CONTEXT_IS_DESTROYED;
    *context = stack.back();
    return CUDA_SUCCESS;
}

Device* device_of(const Driver& d, CUdevice ordinal) {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= d.devices.size()) return nullptr;
    return d.devices[static_cast<std::size_t>(ordinal)].get();
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuInit(unsigned int flags) {
    if (flags != 0) return CUDA_ERROR_INVALID_VALUE;
    try {
        Driver& d = driver();
        if (forked_child) return CUDA_ERROR_NOT_INITIALIZED;
        if (d.initialized) return check_alive(d);
        const std::lock_guard lock(d.mutex);
        // A failed start is final, as with a real driver: a program sees the same machine all its
        // life.
        if (d.init_result == CUDA_ERROR_NOT_INITIALIZED) {
            d.init_result = initialize(d);
            if (d.init_result == CUDA_SUCCESS) d.initialized.store(true, std::memory_order_release);
        }
        return d.init_result;
    } catch (const std::bad_alloc&) {
        return CUDA_ERROR_OUT_OF_MEMORY;
    } catch (...) {
        return CUDA_ERROR_UNKNOWN;
    }
}

SIMGPU_EXPORT CUresult CUDAAPI cuDriverGetVersion(int* version) {
    if (version == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *version = CUDA_VERSION;
    return CUDA_SUCCESS;
}
