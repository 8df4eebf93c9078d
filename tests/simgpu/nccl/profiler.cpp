// SPDX-License-Identifier: Apache-2.0
#include "profiler.hpp"

#include <dlfcn.h>
#include <strings.h>

#include <atomic>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

#include "report.hpp"

namespace simgpu::nccl {
namespace {

constexpr int kOldest = 1;
constexpr int kNewest = 6;
constexpr int kDefault = 5;  // NCCL 2.28's
constexpr int kFirstWithLaunches = 5;

enum Type : std::uint32_t {
    kGroup = 1U << 0,
    kColl = 1U << 1,
    kP2p = 1U << 2,
    kGroupApi = 1U << 8,
    kCollApi = 1U << 9,
    kP2pApi = 1U << 10,
    kKernelLaunch = 1U << 11,
};

// Descriptors. The vendor's are larger where an event has members that are never sent from here;
// `rest` makes up for them.
struct CollV1 {
    const char* name;
    std::uint64_t hash;
    std::uint64_t sequence;
    std::uint8_t function;
    const void* send;
    void* receive;
    std::size_t count;
    int root;
    std::uint8_t datatype;
    unsigned char rest[35];
};
struct CollV2 {  // and version 3, whose rest is shorter
    const char* name;
    std::uint64_t hash;
    std::uint64_t sequence;
    const char* function;
    const void* send;
    void* receive;
    std::size_t count;
    int root;
    const char* datatype;
    unsigned char rest[32];
};
struct CollV4 {  // and versions 5 and 6
    std::uint64_t sequence;
    const char* function;
    const void* send;
    void* receive;
    std::size_t count;
    int root;
    const char* datatype;
    unsigned char rest[32];
};
struct P2pV1 {
    const char* name;
    std::uint64_t hash;
    std::uint8_t function;
    void* buffer;
    std::uint8_t datatype;
    std::size_t count;
    int peer;
};
struct P2pV2 {  // and version 3
    const char* name;
    std::uint64_t hash;
    const char* function;
    void* buffer;
    const char* datatype;
    std::size_t count;
    int peer;
};
struct P2pV4 {  // and versions 5 and 6
    const char* function;
    void* buffer;
    const char* datatype;
    std::size_t count;
    int peer;
};
struct CollApi {
    const char* function;
    std::size_t count;
    const char* datatype;
    int root;
    void* stream;
    bool captured;
};
struct P2pApi {
    const char* function;
    std::size_t count;
    const char* datatype;
    void* stream;
    bool captured;
};
struct KernelLaunch {
    void* stream;
};

// Versions 1 to 4 have an 8-bit type, the others a 64-bit one; what follows lies at the same place.
struct Descriptor {
    union {
        std::uint8_t old_type;
        std::uint64_t type;
    };
    void* parent;
    int rank;
    union {
        CollV1 coll_v1;
        CollV2 coll_v2;
        CollV4 coll_v4;
        P2pV1 p2p_v1;
        P2pV2 p2p_v2;
        P2pV4 p2p_v4;
        CollApi coll_api;
        P2pApi p2p_api;
        KernelLaunch kernel_launch;
    };
};
static_assert(offsetof(Descriptor, parent) == 8 && offsetof(Descriptor, rank) == 16);
static_assert(offsetof(Descriptor, coll_v1.count) == 72 &&
              offsetof(Descriptor, coll_v1.datatype) == 84);
static_assert(offsetof(Descriptor, coll_v2.datatype) == 88 &&
              offsetof(Descriptor, coll_v4.datatype) == 72);
static_assert(offsetof(Descriptor, p2p_v1.count) == 64 && offsetof(Descriptor, p2p_v2.peer) == 72 &&
              offsetof(Descriptor, p2p_v4.peer) == 56);
static_assert(offsetof(Descriptor, coll_api.stream) == 56 &&
              offsetof(Descriptor, p2p_api.stream) == 48);

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

struct Plugin {
    const char* name;
    void (*init)();  // its type depends on the version
    ncclResult_t (*start)(void* context, void** handle, void* descriptor);
    ncclResult_t (*stop)(void* handle);
    ncclResult_t (*record)(void* handle, int state, void* arguments);
    ncclResult_t (*finalize)(void* context);
};
using InitV1 = ncclResult_t (*)(void**, int*);
using InitV4 = ncclResult_t (*)(void**, int*, const char*, std::uint64_t, int, int, int, Logger);
using InitV5 = ncclResult_t (*)(void**, std::uint64_t, int*, const char*, int, int, int, Logger);

struct Loaded {
    std::mutex mutex;
    bool failed = false;  // for good, as in the vendor's library
    int users = 0;
    void* library = nullptr;
    const Plugin* plugin = nullptr;
    int version = 0;
    std::atomic<int> mask{0};  // one for all communicators, as in the vendor's library
};

// There before any thread and never destroyed: nothing has to guard its making.
constinit Loaded loaded_state;

Loaded& loaded() { return loaded_state; }

int newest_version() {
    const char* const text = std::getenv("SIMGPU_NCCL_PROFILER");
    if (!text || !*text) {
        return kDefault;
    }
    char* end = nullptr;
    const long value = std::strtol(text, &end, 10);
    if (*end != '\0' || value < 0 || value > kNewest) {
        std::fprintf(stderr, "simgpu: SIMGPU_NCCL_PROFILER is '%s'; allowed: 0 to %d\n", text,
                     kNewest);
        return kDefault;
    }
    return static_cast<int>(value);
}

void* open_library() {
    const char* name = std::getenv("NCCL_PROFILER_PLUGIN");
    if (!name || !*name) {
        return dlopen("libnccl-profiler.so", RTLD_NOW | RTLD_LOCAL);
    }
    if (strcasecmp(name, "none") == 0) {
        return nullptr;
    }
    // The vendor compares as many characters as the name has.
    if (strncasecmp(name, "STATIC_PLUGIN", std::strlen(name)) == 0) {
        return dlopen(nullptr, RTLD_NOW | RTLD_LOCAL);
    }
    void* library = dlopen(name, RTLD_NOW | RTLD_LOCAL);
    if (!library && !std::strchr(name, '/')) {
        library = dlopen(("libnccl-profiler-" + std::string(name) + ".so").c_str(),
                         RTLD_NOW | RTLD_LOCAL);
    }
    return library;
}

// Counts one user more; false where there is no plug-in. The lock is held.
bool load(Loaded& state) {
    if (state.failed) {
        return false;
    }
    if (state.users++ > 0) {
        return true;
    }
    const int newest = newest_version();
    state.library = newest < kOldest ? nullptr : open_library();
    for (int version = newest; state.library && version >= kOldest && !state.plugin; --version) {
        const std::string symbol = "ncclProfiler_v" + std::to_string(version);
        state.plugin = static_cast<const Plugin*>(dlsym(state.library, symbol.c_str()));
        state.version = version;
    }
    if (!state.plugin) {
        if (state.library) {
            dlclose(state.library);
        }
        state.library = nullptr;
        state.users = 0;
        state.failed = true;
    }
    return !state.failed;
}

void unload(Loaded& state) {
    if (--state.users == 0) {
        dlclose(state.library);
        state.library = nullptr;
        state.plugin = nullptr;
    }
}

void log(int, unsigned long, const char*, int, const char*, ...) {}

const char* function_of(Kind kind) {
    switch (kind) {
        case Kind::kAllReduce:
            return "AllReduce";
        case Kind::kBroadcast:
            return "Broadcast";
        case Kind::kReduce:
            return "Reduce";
        case Kind::kAllGather:
            return "AllGather";
        case Kind::kReduceScatter:
            return "ReduceScatter";
        case Kind::kSend:
            return "Send";
        case Kind::kReceive:
            return "Recv";
    }
    return "Unknown";
}

const char* datatype_of(ncclDataType_t type) {
    switch (type) {
        case ncclInt8:
            return "ncclInt8";
        case ncclUint8:
            return "ncclUint8";
        case ncclInt32:
            return "ncclInt32";
        case ncclUint32:
            return "ncclUint32";
        case ncclInt64:
            return "ncclInt64";
        case ncclUint64:
            return "ncclUint64";
        case ncclFloat16:
            return "ncclFloat16";
        case ncclFloat32:
            return "ncclFloat32";
        case ncclFloat64:
            return "ncclFloat64";
        case ncclBfloat16:
            return "ncclBfloat16";
        case ncclFloat8e4m3:
            return "ncclFloat8e4m3";
        case ncclFloat8e5m2:
            return "ncclFloat8e5m2";
        default:
            return "Unknown";
    }
}

bool is_message(Kind kind) { return kind == Kind::kSend || kind == Kind::kReceive; }

Descriptor describe(Type type, int rank) {
    Descriptor event;
    std::memset(&event, 0, sizeof event);
    if (loaded().version < kFirstWithLaunches) {
        event.old_type = static_cast<std::uint8_t>(type);
    } else {
        event.type = type;
    }
    event.rank = rank;
    return event;
}

void fill(Descriptor& event, const Task& task, std::uint64_t sequence) {
    const char* const function = function_of(task.kind);
    const char* const datatype = datatype_of(task.type);
    const auto code = static_cast<std::uint8_t>(task.kind);
    void* const buffer = task.kind == Kind::kSend ? const_cast<void*>(task.send) : task.receive;
    const int version = loaded().version;
    if (is_message(task.kind)) {
        if (version == 1) {
            event.p2p_v1 = {
                nullptr,    0,        code, buffer, static_cast<std::uint8_t>(task.type),
                task.count, task.peer};
        } else if (version <= 3) {
            event.p2p_v2 = {nullptr, 0, function, buffer, datatype, task.count, task.peer};
        } else {
            event.p2p_v4 = {function, buffer, datatype, task.count, task.peer};
        }
    } else if (version == 1) {
        event.coll_v1 = {nullptr,    0,         sequence,
                         code,       task.send, task.receive,
                         task.count, task.peer, static_cast<std::uint8_t>(task.type),
                         {}};
    } else if (version <= 3) {
        event.coll_v2 = {nullptr,      0,          sequence,  function, task.send,
                         task.receive, task.count, task.peer, datatype, {}};
    } else {
        event.coll_v4 = {sequence,   function,  task.send, task.receive,
                         task.count, task.peer, datatype,  {}};
    }
}

}  // namespace

std::unique_ptr<CommProfiler> CommProfiler::open(std::uint64_t key, int rank, int ranks) {
    Loaded& state = loaded();
    const std::lock_guard lock(state.mutex);
    if (!load(state)) {
        return nullptr;
    }
    void* context = nullptr;
    int mask = 0;
    ncclResult_t result = ncclSuccess;
    if (state.version < 4) {
        result = reinterpret_cast<InitV1>(state.plugin->init)(&context, &mask);
    } else if (state.version == 4) {
        result = reinterpret_cast<InitV4>(state.plugin->init)(&context, &mask, nullptr, key, 1,
                                                              ranks, rank, log);
    } else {
        result = reinterpret_cast<InitV5>(state.plugin->init)(&context, key, &mask, nullptr, 1,
                                                              ranks, rank, log);
    }
    if (result != ncclSuccess) {
        warn("profiler %s: initialisation failed (%d); continuing without it", state.plugin->name,
             static_cast<int>(result));
        unload(state);
        return nullptr;
    }
    state.mask = mask;
    return std::unique_ptr<CommProfiler>(new CommProfiler(context, rank));
}

CommProfiler::~CommProfiler() {
    Loaded& state = loaded();
    const std::lock_guard lock(state.mutex);
    state.plugin->finalize(context_);
    unload(state);
}

void* CommProfiler::start(void* descriptor) {
    void* handle = nullptr;
    loaded().plugin->start(context_, &handle, descriptor);
    return handle;
}

void* CommProfiler::call_begins(const Task& task, cudaStream_t stream) {
    const bool message = is_message(task.kind);
    const Type type = message ? kP2pApi : kCollApi;
    if (loaded().version < kFirstWithLaunches || (loaded().mask & static_cast<int>(type)) == 0) {
        return nullptr;
    }
    Descriptor event = describe(type, 0);
    if (message) {
        event.p2p_api = {function_of(task.kind), task.count, datatype_of(task.type), stream, false};
    } else {
        event.coll_api = {
            function_of(task.kind), task.count, datatype_of(task.type), task.peer, stream, false};
    }
    return start(&event);
}

void CommProfiler::event_ends(void* event) {
    if (event) {
        loaded().plugin->stop(event);
    }
}

void* CommProfiler::launch_begins(cudaStream_t stream) {
    if (loaded().version < kFirstWithLaunches || (loaded().mask & kKernelLaunch) == 0) {
        return nullptr;
    }
    Descriptor event = describe(kKernelLaunch, 0);
    event.kernel_launch = {stream};
    return start(&event);
}

void CommProfiler::launched(const std::vector<Task>& tasks) {
    const int mask = loaded().mask;
    if ((mask & (kGroup | kColl | kP2p)) == 0) {
        return;
    }
    Descriptor plan = describe(kGroup, 0);
    void* const group = start(&plan);
    // Up to version 4 a plug-in that keeps no group gets no tasks either.
    if (group || loaded().version >= kFirstWithLaunches) {
        std::vector<void*> handles;
        for (const Task& task : tasks) {
            const Type type = is_message(task.kind) ? kP2p : kColl;
            if ((mask & static_cast<int>(type)) != 0) {
                Descriptor event = describe(type, rank_);
                event.parent = group;
                fill(event, task, sequence_++);
                handles.push_back(start(&event));
            }
        }
        for (void* const handle : handles) {
            event_ends(handle);
        }
    }
    event_ends(group);
}

}  // namespace simgpu::nccl
