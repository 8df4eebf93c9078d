// SPDX-License-Identifier: Apache-2.0
// A library whose names begin like the driver's, and which forwards each to a part of itself under
// the same name. LOADER_PART makes that part.
#include <dlfcn.h>

extern "C" [[gnu::visibility("default")]] int cudnnCreate(void** handle) {
#ifdef LOADER_PART
    static int object = 0;
    *handle = &object;
    return 42;
#else
    void* part = dlopen("libcudnn_part.so", RTLD_NOW | RTLD_LOCAL);
    const auto create = reinterpret_cast<int (*)(void**)>(dlsym(part, "cudnnCreate"));
    return create == nullptr || create == &cudnnCreate ? -1 : create(handle);
#endif
}
