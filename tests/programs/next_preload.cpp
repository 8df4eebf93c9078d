// SPDX-License-Identifier: Apache-2.0
// A second preloaded library of the usual kind: wraps puts() and finds the next one by RTLD_NEXT.
// If some other dlsym computes "next" for the wrong caller, it finds itself and recurses without
// end.
#include <dlfcn.h>

#include <cstdio>

extern "C" [[gnu::visibility("default")]] int puts(const char* text) {
    using Puts = int (*)(const char*);
    const auto next = reinterpret_cast<Puts>(dlsym(RTLD_NEXT, "puts"));
    if (next == nullptr || next == &puts) {
        return std::fputs("next_preload: RTLD_NEXT is wrong\n", stdout);
    }
    std::fputs("wrapped: ", stdout);
    return next(text);
}
