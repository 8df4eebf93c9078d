// SPDX-License-Identifier: Apache-2.0
// A stand-in for libcuda.so.1 that only looks functions up and counts launches, in the ways in
// which drivers have differed. Which one is said by macros: LOADER_NO_V2 (no cuGetProcAddress_v2,
// as up to CUDA 11.8), LOADER_INNER (asks a second library for its own functions by their public
// names), LOADER_EARLY (looks its own functions up while it is being loaded, and in
// cuGetExportTable), LOADER_NEWER (a later release: two names have new forms with other arguments),
// LOADER_TWO_ADDRESSES (cuGetProcAddress and dlsym differ).
#include <dlfcn.h>

#include <cstring>

#define LOADER_EXPORT extern "C" [[gnu::visibility("default")]]

namespace {
int launches[3];  // legacy, per-thread, later form
}  // namespace

LOADER_EXPORT int cuInit(unsigned) { return 0; }
LOADER_EXPORT int cuFooNew() { return 77; }
LOADER_EXPORT int loader_launches(int kind) { return launches[kind]; }

#ifdef LOADER_INNER
using Launch = int (*)(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                       void*, void**, void**);
LOADER_EXPORT int cuLaunchKernel(void* f, unsigned a, unsigned b, unsigned c, unsigned d,
                                 unsigned e, unsigned g, unsigned h, void* stream, void** p,
                                 void** x) {
    void* inner = dlopen("libcuda_inner.so", RTLD_NOW | RTLD_LOCAL);
    const auto launch = reinterpret_cast<Launch>(dlsym(inner, "cuLaunchKernel"));
    const auto init = reinterpret_cast<int (*)(unsigned)>(dlsym(inner, "cuInit"));
    if (launch == nullptr || launch == &cuLaunchKernel || init == nullptr || init == &cuInit) {
        return 999;
    }
    ++launches[0];
    return launch(f, a, b, c, d, e, g, h, stream, p, x);
}
#else
LOADER_EXPORT int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                                 unsigned, void*, void**, void**) {
    ++launches[0];
    return 0;
}
#endif
LOADER_EXPORT int cuLaunchKernel_ptsz(void*, unsigned, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, unsigned, void*, void**, void**) {
    ++launches[1];
    return 0;
}
LOADER_EXPORT int cuEventRecord(void*, void*) { return 0; }

namespace {

// Forms that only a later release gives; their arguments are not those of the first form.
[[maybe_unused]] int later_launch(int) {
    ++launches[2];
    return 5;
}
[[maybe_unused]] int later_record(int, int, int) { return 6; }
// The same functions under an address that dlsym does not give.
[[maybe_unused]] int launch_elsewhere(void*, unsigned, unsigned, unsigned, unsigned, unsigned,
                                      unsigned, unsigned, void*, void**, void**) {
    ++launches[0];
    return 0;
}

void* look_up(const char* name, int version, unsigned long flags);

}  // namespace

// Two tables of ABI: the four arguments of CUDA 11.3, and the five of 12.0.
LOADER_EXPORT int cuGetProcAddress(const char* name, void** function, int version,
                                   unsigned long flags) {
    *function = look_up(name, version, flags);
    return *function == nullptr ? 500 : 0;
}
#ifndef LOADER_NO_V2
LOADER_EXPORT int cuGetProcAddress_v2(const char* name, void** function, int version,
                                      unsigned long flags, int* status) {
    *function = look_up(name, version, flags);
    if (status != nullptr) {
        *status = *function == nullptr ? 1 : 0;
    }
    return *function == nullptr ? 500 : 0;
}
#endif

LOADER_EXPORT int cuGetExportTable(const void** table, const void*) {
    static int own_table[4] = {16, 1, 2, 3};
    *table = own_table;
#ifdef LOADER_EARLY
    void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    if (dlsym(self, "cuInit") == nullptr || dlsym(self, "cuGetExportTable") == nullptr ||
        dlsym(self, "cuGetProcAddress_v2") == nullptr) {
        return 999;
    }
#endif
    return 0;
}

namespace {

void* look_up(const char* name, int version, unsigned long flags) {
    constexpr unsigned long kPerThread = 2;
    const bool per_thread = (flags & kPerThread) != 0;
    const auto is = [&](const char* other) { return std::strcmp(name, other) == 0; };
    if (is("cuGetProcAddress")) {
#ifndef LOADER_NO_V2
        if (version >= 12000) {
            return reinterpret_cast<void*>(&cuGetProcAddress_v2);
        }
#endif
        return version >= 11030 ? reinterpret_cast<void*>(&cuGetProcAddress) : nullptr;
    }
    if (is("cuInit")) {
        return reinterpret_cast<void*>(&cuInit);
    }
    if (is("cuLaunchKernel") && version >= 4000) {
        if (per_thread) {
            return version >= 7000 ? reinterpret_cast<void*>(&cuLaunchKernel_ptsz) : nullptr;
        }
#ifdef LOADER_NEWER
        if (version >= 14000) {
            return reinterpret_cast<void*>(&later_launch);
        }
#endif
#ifdef LOADER_TWO_ADDRESSES
        return reinterpret_cast<void*>(&launch_elsewhere);
#else
        return reinterpret_cast<void*>(&cuLaunchKernel);
#endif
    }
    if (is("cuEventRecord") && !per_thread && version >= 2000) {
#ifdef LOADER_NEWER
        if (version >= 14000) {
            return reinterpret_cast<void*>(&later_record);
        }
#endif
        return reinterpret_cast<void*>(&cuEventRecord);
    }
    return nullptr;
}

#ifdef LOADER_EARLY
[[gnu::constructor]] void while_loading() {
    void* self = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
    void* function = nullptr;
    int status = 0;
    dlsym(self, "cuInit");
    dlsym(RTLD_DEFAULT, "cuLaunchKernel");
    dlsym(RTLD_NEXT, "cuGetProcAddress");
    using LookUp = int (*)(const char*, void**, int, unsigned long, int*);
    if (const auto find = reinterpret_cast<LookUp>(dlsym(self, "cuGetProcAddress_v2"))) {
        find("cuLaunchKernel", &function, 12000, 0, &status);
    }
}
#endif

}  // namespace
