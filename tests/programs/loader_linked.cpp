// SPDX-License-Identifier: Apache-2.0
// A program linked to the driver, which asks for nothing by name. Exit status 0: its launch arrived
// once, and went through another library than the driver, as under the preload it must.
#include <dlfcn.h>

#include <cstring>

extern "C" {
int cuLaunchKernel(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned,
                   void*, void**, void**);
int loader_launches(int kind);
}

int main() {
    if (cuLaunchKernel(nullptr, 1, 1, 1, 1, 1, 1, 0, nullptr, nullptr, nullptr) != 0 ||
        loader_launches(0) != 1) {
        return 1;
    }
    Dl_info info{};
    return dladdr(reinterpret_cast<void*>(&cuLaunchKernel), &info) != 0 &&
                   std::strstr(info.dli_fname, "libcuda.so") == nullptr
               ? 0
               : 2;
}
