// SPDX-License-Identifier: Apache-2.0
// Preloaded by scripts/gpu-qualify, never together with libcrossover.so: stands in the way of
// kernel launches as that does, to find out what the runtime does meanwhile. Holds one launch on
// request (qualify_hold_next), and writes each new kernel of NCCL's with its size to $QUALIFY_LOG.
// Changes nothing else; it judges nothing.
#include <cuda.h>
#undef cuGetProcAddress
#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <set>
#include <string>

namespace {

using Dlsym = void* (*)(void*, const char*);
using LookUpV1 = CUresult (*)(const char*, void**, int, cuuint64_t);
using LookUpV2 = CUresult (*)(const char*, void**, int, cuuint64_t,
                              CUdriverProcAddressQueryResult*);
using Launch = CUresult (*)(CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                            unsigned, CUstream, void**, void**);
using LaunchEx = CUresult (*)(const CUlaunchConfig*, CUfunction, void**, void**);

Dlsym libc_dlsym() {
    static const Dlsym found = [] {
        void* symbol = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        return reinterpret_cast<Dlsym>(
            symbol != nullptr ? symbol : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
    }();
    return found;
}

// The real functions; [1] is the twin for per-thread default streams.
std::atomic<LookUpV1> real_v1;
std::atomic<LookUpV2> real_v2;
std::atomic<Launch> real_launch[2];
std::atomic<LaunchEx> real_launch_ex[2];

// ---- holding a launch ----

std::mutex mutex;
std::condition_variable changed;
bool holding = false;
bool released = false;
thread_local int hold_ms = 0;

void maybe_hold() {
    if (hold_ms == 0) {
        return;
    }
    std::unique_lock lock(mutex);
    holding = true;
    changed.wait_for(lock, std::chrono::milliseconds(hold_ms), [] { return released; });
    hold_ms = 0;
    holding = false;
}

// ---- NCCL's kernels ----

const char* name_of(CUfunction function) {
    static void* const driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    if (driver == nullptr) {
        return nullptr;
    }
    using Name = CUresult (*)(const char**, void*);
    static const auto of_kernel = reinterpret_cast<Name>(libc_dlsym()(driver, "cuKernelGetName"));
    static const auto of_function = reinterpret_cast<Name>(libc_dlsym()(driver, "cuFuncGetName"));
    const char* name = nullptr;
    for (const Name ask : {of_function, of_kernel}) {
        if (ask != nullptr && ask(&name, function) == CUDA_SUCCESS && name != nullptr) {
            return name;
        }
    }
    return nullptr;
}

void note(CUfunction function, unsigned blocks, unsigned threads, unsigned shared_bytes) {
    static const char* const path = std::getenv("QUALIFY_LOG");
    if (path == nullptr) {
        return;
    }
    const char* const name = name_of(function);
    if (name == nullptr || std::strstr(name, "nccl") == nullptr) {
        return;
    }
    char line[512];
    const int length = std::snprintf(line, sizeof line, "%u\t%u\t%u\t%.400s\n", blocks, threads,
                                     shared_bytes, name);
    static std::mutex seen_mutex;
    static std::set<std::string> seen;
    const std::lock_guard lock(seen_mutex);
    if (length <= 0 || !seen.insert(line).second) {
        return;
    }
    const int file = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (file < 0 || write(file, line, static_cast<std::size_t>(length)) != length) {
        std::fprintf(stderr, "interposer: cannot write QUALIFY_LOG '%s'\n", path);
    }
    if (file >= 0) {
        close(file);
    }
}

// ---- in place of the driver's ----

template <int twin>
CUresult launch(CUfunction function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                unsigned block_x, unsigned block_y, unsigned block_z, unsigned shared_bytes,
                CUstream stream, void** arguments, void** extra) {
    maybe_hold();
    note(function, grid_x * grid_y * grid_z, block_x * block_y * block_z, shared_bytes);
    return real_launch[twin].load()(function, grid_x, grid_y, grid_z, block_x, block_y, block_z,
                                    shared_bytes, stream, arguments, extra);
}

template <int twin>
CUresult launch_ex(const CUlaunchConfig* config, CUfunction function, void** arguments,
                   void** extra) {
    maybe_hold();
    note(function, config->gridDimX * config->gridDimY * config->gridDimZ,
         config->blockDimX * config->blockDimY * config->blockDimZ, config->sharedMemBytes);
    return real_launch_ex[twin].load()(config, function, arguments, extra);
}

void* replaced(const char* name, void* real, bool per_thread, bool newer_look_up);

CUresult look_up_v1(const char* symbol, void** function, int version, cuuint64_t flags) {
    const CUresult result = real_v1.load()(symbol, function, version, flags);
    if (result == CUDA_SUCCESS && *function != nullptr) {
        *function = replaced(symbol, *function,
                             (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
                             version >= 12000);
    }
    return result;
}

CUresult look_up_v2(const char* symbol, void** function, int version, cuuint64_t flags,
                    CUdriverProcAddressQueryResult* status) {
    const CUresult result = real_v2.load()(symbol, function, version, flags, status);
    if (result == CUDA_SUCCESS && *function != nullptr) {
        *function = replaced(symbol, *function,
                             (flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM) != 0,
                             version >= 12000);
    }
    return result;
}

template <typename Function>
void* keep(std::atomic<Function>& place, void* real, Function ours) {
    if (real != reinterpret_cast<void*>(ours)) {
        place = reinterpret_cast<Function>(real);
    }
    return reinterpret_cast<void*>(ours);
}

void* replaced(const char* name, void* real, bool per_thread, bool newer_look_up) {
    const auto is = [name](const char* wanted) { return std::strcmp(name, wanted) == 0; };
    if (is("cuGetProcAddress_v2") || (is("cuGetProcAddress") && newer_look_up)) {
        return keep(real_v2, real, &look_up_v2);
    }
    if (is("cuGetProcAddress")) {
        return keep(real_v1, real, &look_up_v1);
    }
    if (is("cuLaunchKernel_ptsz") || (is("cuLaunchKernel") && per_thread)) {
        return keep(real_launch[1], real, &launch<1>);
    }
    if (is("cuLaunchKernel")) {
        return keep(real_launch[0], real, &launch<0>);
    }
    if (is("cuLaunchKernelEx_ptsz") || (is("cuLaunchKernelEx") && per_thread)) {
        return keep(real_launch_ex[1], real, &launch_ex<1>);
    }
    if (is("cuLaunchKernelEx")) {
        return keep(real_launch_ex[0], real, &launch_ex<0>);
    }
    return real;
}

void* our_dlsym(void* handle, const char* name) {
    void* const real = libc_dlsym()(handle, name);
    return real == nullptr ? nullptr : replaced(name, real, false, false);
}

}  // namespace

#define QUALIFY_EXPORT extern "C" [[gnu::visibility("default")]]

// The calling thread's next launch waits inside the driver call, at most so long.
QUALIFY_EXPORT void qualify_hold_next(int most_ms) { hold_ms = most_ms; }
// Whether a launch is held now.
QUALIFY_EXPORT int qualify_held() {
    const std::lock_guard lock(mutex);
    return holding ? 1 : 0;
}
QUALIFY_EXPORT void qualify_release() {
    const std::lock_guard lock(mutex);
    released = true;
    changed.notify_all();
}

// Chooses where dlsym jumps. A pseudo-handle is resolved from its caller's place: left as it is.
extern "C" [[gnu::visibility("hidden"), gnu::used]] Dlsym qualify_pick_dlsym(void* handle,
                                                                             const char* name) {
    const bool ours = handle != RTLD_DEFAULT && handle != RTLD_NEXT && name != nullptr &&
                      (std::strncmp(name, "cuGetProcAddress", 16) == 0 ||
                       std::strncmp(name, "cuLaunchKernel", 14) == 0);
    return ours ? &our_dlsym : libc_dlsym();
}

asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    pushq %rdi
    pushq %rsi
    subq $8, %rsp
    call qualify_pick_dlsym
    addq $8, %rsp
    popq %rsi
    popq %rdi
    jmp *%rax
    .size dlsym, .-dlsym
)");
