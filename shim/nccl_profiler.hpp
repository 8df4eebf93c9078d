// SPDX-License-Identifier: Apache-2.0
// What the library reads and offers of NCCL's profiler plug-in interface, versions 1 to 6, in types
// of our own. Facts from NCCL's public headers (github.com/NVIDIA/nccl, src/include/plugin/
// nccl_profiler.h and profiler/profiler_v1.h to profiler_v6.h, tags v2.23.4-1 to v2.30.7-1) and its
// calls in src/plugin/profiler.cc and src/enqueue.cc. Layouts only; no behaviour.
//
// NCCL 2.23 has version 1, 2.24 and 2.25 version 2, 2.26 version 3, 2.27 version 4, 2.28 version 5,
// 2.29 and 2.30 version 6. Versions 1 to 4 report a plan (an event of type "group", with its
// collectives inside) on the launching thread just after its kernel was launched; versions 5 and 6
// report the launch itself, before and after, and the calls that lead to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace crossover::profiler {

// Bits of the activation mask, and values of a descriptor's type.
inline constexpr std::uint64_t kGroup = 1U << 0;
inline constexpr std::uint64_t kColl = 1U << 1;
inline constexpr std::uint64_t kP2p = 1U << 2;
inline constexpr std::uint64_t kCollApi = 1U << 9;
inline constexpr std::uint64_t kP2pApi = 1U << 10;
inline constexpr std::uint64_t kKernelLaunch = 1U << 11;

using Result = int;  // ncclResult_t
inline constexpr Result kSuccess = 0;

// ncclProfilerEventDescr_v1_t to v4: all that is read of them.
struct OldDescriptor {
    std::uint8_t type;
};

// ncclProfilerEventDescr_v5_t and v6, up to the members that are read.
struct Descriptor {
    std::uint64_t type;
    void* parent;
    int rank;
    union {
        struct {
            const char* function;
            std::size_t count;
            const char* datatype;
            int root;
            void* stream;
            bool graph_captured;
        } coll_api;
        struct {
            const char* function;
            std::size_t count;
            const char* datatype;
            void* stream;
            bool graph_captured;
        } p2p_api;
        struct {
            void* stream;
        } kernel_launch;
    };
};
static_assert(offsetof(Descriptor, parent) == 8);
static_assert(offsetof(Descriptor, rank) == 16);
static_assert(offsetof(Descriptor, coll_api) == 24);
static_assert(offsetof(Descriptor, coll_api.count) == 32);
static_assert(offsetof(Descriptor, coll_api.datatype) == 40);
static_assert(offsetof(Descriptor, coll_api.stream) == 56);
static_assert(offsetof(Descriptor, p2p_api.stream) == 48);

// ncclDebugLogger_t, never called.
using Logger = void (*)(int level, unsigned long flags, const char* file, int line,
                        const char* format, ...);

// The tables NCCL looks for: ncclProfiler_v1 to v3, v4, and v5 to v6 differ in init alone.
template <class Init>
struct Table {
    const char* name;
    Init init;
    Result (*start)(void* context, void** handle, void* descriptor);
    Result (*stop)(void* handle);
    Result (*record)(void* handle, int state, void* arguments);
    Result (*finalize)(void* context);
};
using InitV1 = Result (*)(void** context, int* mask);
using InitV4 = Result (*)(void** context, int* mask, const char* name, std::uint64_t hash,
                          int nodes, int ranks, int rank, Logger logger);
using InitV5 = Result (*)(void** context, std::uint64_t id, int* mask, const char* name, int nodes,
                          int ranks, int rank, Logger logger);

}  // namespace crossover::profiler
