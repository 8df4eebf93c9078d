// SPDX-License-Identifier: Apache-2.0
// A second preload that wraps dlsym itself and counts the look-ups that reach it. It finds the real
// one by dlvsym, as such libraries do.
#include <dlfcn.h>

#include <atomic>

namespace {
std::atomic<int> seen{0};
}  // namespace

extern "C" [[gnu::visibility("default")]] int loader_dlsym_calls() { return seen.load(); }

extern "C" [[gnu::visibility("default")]] void* dlsym(void* handle, const char* name) {
    using Dlsym = void* (*)(void*, const char*);
    static Dlsym real = nullptr;
    for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17"}) {
        if (real == nullptr) {
            real = reinterpret_cast<Dlsym>(dlvsym(RTLD_NEXT, "dlsym", version));
        }
    }
    seen.fetch_add(1);
    return real(handle, name);
}
