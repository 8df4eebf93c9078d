// SPDX-License-Identifier: Apache-2.0
// Loads kernel plug-ins: EXECUTABLE.simgpu.so beside the program and those in SIMGPU_KERNELS. The
// first that names a kernel provides it.

#include <dlfcn.h>
#include <limits.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>

#include "../protocol.hpp"
#include "module.hpp"

namespace simgpu {
namespace {

using KernelTable = std::map<std::string, HostKernel>;

void load_plugin(const std::string& path, bool must_exist, KernelTable* table) {
    if (!must_exist && access(path.c_str(), F_OK) != 0) return;
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "simgpu: kernel plug-in: %s\n", dlerror());
        return;
    }
    using List = const SimgpuKernel* (*)(std::size_t*);
    const auto list = reinterpret_cast<List>(dlsym(library, "simgpu_kernels"));
    if (list == nullptr) {
        std::fprintf(stderr, "simgpu: kernel plug-in %s: no simgpu_kernels()\n", path.c_str());
        return;
    }
    std::size_t count = 0;
    const SimgpuKernel* kernels = list(&count);
    for (std::size_t i = 0; i < count; ++i) {
        const SimgpuKernel& kernel = kernels[i];
        const bool bad_share = !(kernel.sm_share >= 0.0F && kernel.sm_share <= 1.0F);
        if (kernel.name == nullptr || kernel.run == nullptr || bad_share ||
            (kernel.parameter_count > 0 && kernel.parameter_sizes == nullptr)) {
            std::fprintf(stderr, "simgpu: kernel plug-in %s: entry %zu is not valid\n",
                         path.c_str(), i);
            continue;
        }
        table->emplace(kernel.name, HostKernel{kernel});
    }
}

const KernelTable& load_plugins() {
    auto* const table = new KernelTable;  // plug-ins stay loaded as long as the process lives
    if (const char* list = std::getenv(kEnvKernels); list != nullptr) {
        const std::string text = list;
        for (std::size_t begin = 0; begin < text.size();) {
            const std::size_t end = std::min(text.find(':', begin), text.size());
            if (end > begin) load_plugin(text.substr(begin, end - begin), true, table);
            begin = end + 1;
        }
    }
    char executable[PATH_MAX];
    const ssize_t length = readlink("/proc/self/exe", executable, sizeof executable);
    if (length > 0 && length < static_cast<ssize_t>(sizeof executable))
        load_plugin(std::string(executable, static_cast<std::size_t>(length)) + ".simgpu.so", false,
                    table);
    return *table;
}

}  // namespace

const HostKernel* find_host_kernel(const std::string& name) {
    static const KernelTable& table = load_plugins();
    const auto found = table.find(name);
    return found == table.end() ? nullptr : &found->second;
}

}  // namespace simgpu
