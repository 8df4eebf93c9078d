// SPDX-License-Identifier: Apache-2.0
// Opens by its bare name a library that only its own RUNPATH leads to. LOADER_PART makes that
// library.
#include <dlfcn.h>
#ifdef LOADER_PART
extern "C" [[gnu::visibility("default")]] int beside() { return 21; }
#else
extern "C" [[gnu::visibility("default")]] int through_runpath() {
    void* part = dlopen("libloader_beside.so", RTLD_NOW | RTLD_LOCAL);
    const auto function =
        part == nullptr ? nullptr : reinterpret_cast<int (*)()>(dlsym(part, "beside"));
    return function == nullptr ? -1 : function();
}
#endif
