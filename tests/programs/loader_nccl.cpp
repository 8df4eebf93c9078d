// SPDX-License-Identifier: Apache-2.0
// A stand-in for NCCL, each function twice as in the real one, that returns LOADER_TAG; and with
// LOADER_USER what uses it.
#include <nccl.h>

#define LOADER_EXPORT extern "C" [[gnu::visibility("default")]]

#ifdef LOADER_TAG
LOADER_EXPORT ncclResult_t ncclGetVersion(int* version) {
    *version = 22000;
    return ncclSuccess;
}
LOADER_EXPORT ncclResult_t pncclGroupStart() { return static_cast<ncclResult_t>(LOADER_TAG); }
LOADER_EXPORT [[gnu::weak, gnu::alias("pncclGroupStart")]] ncclResult_t ncclGroupStart();
#endif
#ifdef LOADER_USER
LOADER_EXPORT int plugin_group_start() {
    volatile int result = static_cast<int>(ncclGroupStart());  // not in tail position
    return result;
}
LOADER_EXPORT void* plugin_nccl_binding() { return reinterpret_cast<void*>(&ncclGroupStart); }
#endif
