// SPDX-License-Identifier: Apache-2.0
// A plug-in that launches through the runtime it is linked to (or that is inside it), says what it
// got, and where its reference is bound.
#include <cuda_runtime_api.h>

#define LOADER_EXPORT extern "C" [[gnu::visibility("default")]]

LOADER_EXPORT int plugin_launch() {
    return static_cast<int>(cudaLaunchKernel(nullptr, dim3(1), dim3(1), nullptr, 0, nullptr));
}
// A call in tail position: the return address is that of whoever called this.
LOADER_EXPORT int plugin_graph_launch() {
    return static_cast<int>(cudaGraphLaunch(nullptr, nullptr));
}
LOADER_EXPORT void* plugin_binding() { return reinterpret_cast<void*>(&cudaLaunchKernel); }
