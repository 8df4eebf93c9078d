// SPDX-License-Identifier: Apache-2.0
// A profiler plug-in as a user of NCCL may have one: writes a line to the file in
// RECORDING_PROFILER for each event it is told of, "<version> <start or stop> <type> <its thread's
// launches...>". Reads what all versions of a descriptor have in common; knows nothing of
// Crossover.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <mutex>

namespace {

constexpr int kEverything = 0xfff;

void line(int version, const char* what, unsigned long long value) {
    static std::mutex mutex;
    const std::lock_guard lock(mutex);
    if (std::FILE* const file = std::fopen(std::getenv("RECORDING_PROFILER"), "ae")) {
        std::fprintf(file, "%d %s %llu\n", version, what, value);
        std::fclose(file);
    }
}

struct Handle {
    int version;
    unsigned long long type;
};

template <int version>
int start(void* context, void** handle, void* descriptor) {
    // An 8-bit type up to version 4, a 64-bit one since.
    const unsigned long long type = version < 5 ? *static_cast<const std::uint8_t*>(descriptor)
                                                : *static_cast<const std::uint64_t*>(descriptor);
    line(version, context == &kEverything ? "start" : "start-with-a-wrong-context", type);
    *handle = new Handle{version, type};
    return 0;
}

int stop(void* handle) {
    const Handle* const event = static_cast<const Handle*>(handle);
    line(event->version, "stop", event->type);
    delete event;
    return 0;
}

int record(void*, int, void*) { return 0; }

template <int version>
int finalize(void*) {
    line(version, "finalize", 0);
    return 0;
}

int begin(int version, void** context, int* mask, int ranks) {
    *context = const_cast<int*>(&kEverything);
    *mask = kEverything;
    line(version, "init", static_cast<unsigned long long>(ranks));
    return 0;
}

using Logger = void (*)(int, unsigned long, const char*, int, const char*, ...);

template <int version>
int init_v1(void** context, int* mask) {
    return begin(version, context, mask, 0);
}
int init_v4(void** context, int* mask, const char*, std::uint64_t, int, int ranks, int, Logger) {
    return begin(4, context, mask, ranks);
}
template <int version>
int init_v5(void** context, std::uint64_t, int* mask, const char*, int, int ranks, int, Logger) {
    return begin(version, context, mask, ranks);
}

template <class Init>
struct Table {
    const char* name;
    Init init;
    int (*start)(void*, void**, void*);
    int (*stop)(void*);
    int (*record)(void*, int, void*);
    int (*finalize)(void*);
};

}  // namespace

#define RECORDING_TABLE(version, init)                                             \
    extern "C" __attribute__((visibility("default"))) const Table<decltype(&init)> \
        ncclProfiler_v##version;                                                   \
    const Table<decltype(&init)> ncclProfiler_v##version = {                       \
        "recording", &init, &start<version>, &stop, &record, &finalize<version>};
RECORDING_TABLE(1, init_v1<1>)
RECORDING_TABLE(2, init_v1<2>)
RECORDING_TABLE(3, init_v1<3>)
RECORDING_TABLE(4, init_v4)
RECORDING_TABLE(5, init_v5<5>)
RECORDING_TABLE(6, init_v5<6>)
