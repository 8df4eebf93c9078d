// SPDX-License-Identifier: Apache-2.0
// A library to preload in front of all others: takes the time that each of a program's NCCL calls
// that submit communication takes on the CPU, and at exit writes them, one number of ns a line, to
// the file WINDOWS_CALLS.PID. For the benchmark "windows", with and without Crossover behind it. It
// changes nothing about the calls.
#include <dlfcn.h>
#include <nccl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <ctime>
#include <string>

namespace {

constexpr std::size_t kMaxCalls = std::size_t{1} << 20;

std::atomic<std::size_t> calls{0};
std::uint32_t call_ns[kMaxCalls];  // untouched pages cost nothing
thread_local int group_depth = 0;

std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// The next library's function; NCCL itself may have come by dlopen, where "next" does not look.
template <class Function>
Function* next(const char* name) {
    void* found = dlsym(RTLD_NEXT, name);
    if (found == nullptr) {
        if (void* nccl = dlopen("libnccl.so.2", RTLD_NOW | RTLD_NOLOAD)) {
            found = dlsym(nccl, name);
        }
    }
    if (found == nullptr) {
        std::fprintf(stderr, "windows_calls: no %s\n", name);
        std::abort();
    }
    return reinterpret_cast<Function*>(found);
}

template <class Call>
ncclResult_t timed(Call call) {
    const std::uint64_t begin = now_ns();
    const ncclResult_t result = call();
    const std::uint64_t took = now_ns() - begin;
    // Inside a group a call only takes note.
    if (group_depth == 0) {
        const std::size_t at = calls.fetch_add(1, std::memory_order_relaxed);
        if (at < kMaxCalls) {
            call_ns[at] = static_cast<std::uint32_t>(std::min<std::uint64_t>(took, UINT32_MAX));
        }
    }
    return result;
}

[[gnu::destructor]] void write_calls() {
    const char* path = std::getenv("WINDOWS_CALLS");
    const std::size_t count = std::min(calls.load(), kMaxCalls);
    if (path == nullptr || count == 0) {
        return;
    }
    const std::string own = std::string(path) + "." + std::to_string(getpid());
    if (std::FILE* out = std::fopen(own.c_str(), "w")) {
        for (std::size_t at = 0; at < count; ++at) {
            std::fprintf(out, "%u\n", call_ns[at]);
        }
        std::fclose(out);
    }
}

}  // namespace

#define CX_TIMED(name, parameters, arguments)                                               \
    extern "C" [[gnu::visibility("default")]] ncclResult_t name parameters {                \
        static ncclResult_t(*const real) parameters = next<ncclResult_t parameters>(#name); \
        return timed([&] { return real arguments; });                                       \
    }

CX_TIMED(ncclAllReduce,
         (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
          ncclComm_t communicator, cudaStream_t stream),
         (from, to, count, type, operation, communicator, stream))
CX_TIMED(ncclReduceScatter,
         (const void* from, void* to, size_t count, ncclDataType_t type, ncclRedOp_t operation,
          ncclComm_t communicator, cudaStream_t stream),
         (from, to, count, type, operation, communicator, stream))
CX_TIMED(ncclAllGather,
         (const void* from, void* to, size_t count, ncclDataType_t type, ncclComm_t communicator,
          cudaStream_t stream),
         (from, to, count, type, communicator, stream))
CX_TIMED(ncclBroadcast,
         (const void* from, void* to, size_t count, ncclDataType_t type, int root,
          ncclComm_t communicator, cudaStream_t stream),
         (from, to, count, type, root, communicator, stream))
CX_TIMED(ncclSend,
         (const void* from, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
          cudaStream_t stream),
         (from, count, type, peer, communicator, stream))
CX_TIMED(ncclRecv,
         (void* to, size_t count, ncclDataType_t type, int peer, ncclComm_t communicator,
          cudaStream_t stream),
         (to, count, type, peer, communicator, stream))

extern "C" [[gnu::visibility("default")]] ncclResult_t ncclGroupStart() {
    static ncclResult_t (*const real)() = next<ncclResult_t()>("ncclGroupStart");
    const ncclResult_t result = real();
    ++group_depth;
    return result;
}

extern "C" [[gnu::visibility("default")]] ncclResult_t ncclGroupEnd() {
    static ncclResult_t (*const real)() = next<ncclResult_t()>("ncclGroupEnd");
    group_depth = std::max(0, group_depth - 1);
    return timed([&] { return real(); });
}
