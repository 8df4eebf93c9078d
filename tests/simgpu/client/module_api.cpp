// SPDX-License-Identifier: Apache-2.0
// Exported functions on modules, libraries, functions and kernels. Images are not read: a name is
// taken to exist in every image, and a global is zeroed memory of a fixed size.

#include <unistd.h>

#include <cstring>

#include "capture.hpp"
#include "collective.h"
#include "memory.hpp"
#include "module.hpp"

namespace simgpu {
namespace {

// The size of a variable stands in the image, which is not read; enough for any one program
// constant bank.
constexpr std::size_t kGlobalBytes = 65536;

CUresult load_module(CUmodule* module, const void* image) {
    if (module == nullptr || image == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        auto made = std::make_unique<CUmod_st>();
        made->context = context;
        d.modules.insert(made.get());
        *module = made.release();
        return CUDA_SUCCESS;
    });
}

CUresult check_file(const char* path) {
    if (path == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return access(path, R_OK) == 0 ? CUDA_SUCCESS : CUDA_ERROR_FILE_NOT_FOUND;
}

// The lock is held.
CUresult global_of(CUcontext context, CUmod_st& module, const char* name, CUdeviceptr* address,
                   std::size_t* bytes) {
    auto& entry = module.globals[name];
    if (entry.first == nullptr) {
        Allocation made;
        const CUresult rc = allocate(context, kGlobalBytes, MemoryKind::kDevice, 0, nullptr, &made);
        if (rc != CUDA_SUCCESS) {
            module.globals.erase(name);
            return rc;
        }
        std::memset(made.base, 0, made.size);
        entry = {made.base, made.size};
    }
    if (address != nullptr) *address = address_of(entry.first);
    if (bytes != nullptr) *bytes = entry.second;
    return CUDA_SUCCESS;
}

void drop_module(Driver& d, CUmod_st& module) {
    for (const auto& [name, function] : module.functions) d.functions.erase(function.get());
    for (const auto& [name, memory] : module.globals)
        free_allocation(memory.first, MemoryKind::kDevice, MemoryKind::kDevice);
    d.modules.erase(&module);
}

template <typename Body>
CUresult with_function(CUfunction handle, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        CUfunc_st* const function = resolve_function(d, handle);
        return function == nullptr ? CUDA_ERROR_INVALID_HANDLE : body(*function);
    });
}

template <typename Body>
CUresult with_kernel(CUkernel handle, Body&& body) {
    return call([&](Driver& d, auto&) -> CUresult {
        const auto found = d.kernels.find(handle);
        return found == d.kernels.end() ? CUDA_ERROR_INVALID_HANDLE : body(*found->second);
    });
}

CUresult get_attribute(const CUfunc_st& function, CUfunction_attribute attribute, int* value) {
    if (attribute < 0 || attribute >= CU_FUNC_ATTRIBUTE_MAX) return CUDA_ERROR_INVALID_VALUE;
    if (const auto set = function.attributes.find(attribute); set != function.attributes.end()) {
        *value = set->second;
        return CUDA_SUCCESS;
    }
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK:
            *value = 1024;
            break;
        case CU_FUNC_ATTRIBUTE_NUM_REGS:
            *value = 32;
            break;
        case CU_FUNC_ATTRIBUTE_PTX_VERSION:
        case CU_FUNC_ATTRIBUTE_BINARY_VERSION:
            *value = 90;
            break;
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            *value = 49152;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            *value = -1;
            break;
        default:
            *value = 0;
    }
    return CUDA_SUCCESS;
}

CUresult set_attribute(CUfunc_st& function, CUfunction_attribute attribute, int value) {
    switch (attribute) {
        case CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES:
            if (value < 0 || value > 232448) return CUDA_ERROR_INVALID_VALUE;
            break;
        case CU_FUNC_ATTRIBUTE_PREFERRED_SHARED_MEMORY_CARVEOUT:
            if (value < -1 || value > 100) return CUDA_ERROR_INVALID_VALUE;
            break;
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_WIDTH:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_HEIGHT:
        case CU_FUNC_ATTRIBUTE_REQUIRED_CLUSTER_DEPTH:
        case CU_FUNC_ATTRIBUTE_NON_PORTABLE_CLUSTER_SIZE_ALLOWED:
        case CU_FUNC_ATTRIBUTE_CLUSTER_SCHEDULING_POLICY_PREFERENCE:
            if (value < 0) return CUDA_ERROR_INVALID_VALUE;
            break;
        default:
            return CUDA_ERROR_INVALID_VALUE;  // the others are properties of the code
    }
    function.attributes[attribute] = value;
    return CUDA_SUCCESS;
}

}  // namespace

CUfunc_st* resolve_function(const Driver& d, CUfunction handle) {
    if (d.functions.contains(handle)) return handle;
    const auto kernel = d.kernels.find(handle);
    return kernel == d.kernels.end() ? nullptr : kernel->second->function;
}

CUfunc_st* function_of(Driver& d, CUmodule module, const std::string& name) {
    auto& function = module->functions[name];
    if (!function) {
        function = std::make_unique<CUfunc_st>();
        function->name = name;
        function->module = module;
        function->collective = module->collective;
        function->host = function->collective ? nullptr : find_host_kernel(name);
        d.functions.insert(function.get());
    }
    return function.get();
}

void drop_modules(Driver& d, CUcontext context) {
    const std::vector<CUmodule> modules(d.modules.begin(), d.modules.end());
    for (CUmodule module : modules) {
        if (module->context ==
            nullptr) {  // a library outlives contexts, its variables' memory does not
            std::erase_if(module->globals, [&](const auto& global) {
                Allocation memory;
                return find_allocation(global.second.first, &memory) && memory.context == context;
            });
            continue;
        }
        if (module->context != context) continue;
        drop_module(d, *module);
        delete module;
    }
}

}  // namespace simgpu

using namespace simgpu;

SIMGPU_EXPORT CUresult CUDAAPI cuModuleLoadData(CUmodule* module, const void* image) {
    return load_module(module, image);
}
SIMGPU_EXPORT CUresult CUDAAPI cuModuleLoadDataEx(CUmodule* module, const void* image, unsigned int,
                                                  CUjit_option*, void**) {
    return load_module(module, image);
}
SIMGPU_EXPORT CUresult CUDAAPI cuModuleLoadFatBinary(CUmodule* module, const void* image) {
    return load_module(module, image);
}
SIMGPU_EXPORT CUresult CUDAAPI cuModuleLoad(CUmodule* module, const char* path) {
    if (const CUresult rc = check_file(path); rc != CUDA_SUCCESS) return rc;
    return load_module(module, path);
}

SIMGPU_EXPORT CUresult CUDAAPI cuModuleUnload(CUmodule module) {
    return call_in_context([&](Driver& d, CUcontext context, auto& lock) -> CUresult {
        if (!d.modules.contains(module) || module->context == nullptr)
            return CUDA_ERROR_INVALID_HANDLE;
        if (const CUresult rc = check_unsafe_call(d); rc != CUDA_SUCCESS) return rc;
        if (const CUresult rc = wait_idle(d, outstanding(d, context), lock); rc != CUDA_SUCCESS)
            return rc;
        if (!d.modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
        drop_module(d, *module);
        delete module;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuModuleGetLoadingMode(CUmoduleLoadingMode* mode) {
    if (mode == nullptr) return CUDA_ERROR_INVALID_VALUE;
    *mode = CU_MODULE_LAZY_LOADING;
    return CUDA_SUCCESS;
}

SIMGPU_EXPORT CUresult CUDAAPI cuModuleGetFunction(CUfunction* function, CUmodule module,
                                                   const char* name) {
    if (function == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext, auto&) -> CUresult {
        if (!d.modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
        *function = function_of(d, module, name);
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuModuleGetGlobal_v2(CUdeviceptr* address, std::size_t* bytes,
                                                    CUmodule module, const char* name) {
    if (name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (!d.modules.contains(module)) return CUDA_ERROR_INVALID_HANDLE;
        return global_of(context, *module, name, address, bytes);
    });
}

static CUresult load_library(CUlibrary* library, const void* code, bool collective = false) {
    if (library == nullptr || code == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        auto made = std::make_unique<CUlib_st>();
        made->module = std::make_unique<CUmod_st>();
        made->module->collective = collective;
        d.modules.insert(made->module.get());
        d.libraries.insert(made.get());
        *library = made.release();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuLibraryLoadData(CUlibrary* library, const void* code,
                                                 CUjit_option*, void**, unsigned int,
                                                 CUlibraryOption*, void**, unsigned int) {
    // Real images are binary: their magic numbers differ from the text's first bytes.
    return load_library(
        library, code,
        code != nullptr && std::strncmp(static_cast<const char*>(code), SIMGPU_COLLECTIVE_IMAGE,
                                        sizeof SIMGPU_COLLECTIVE_IMAGE) == 0);
}
SIMGPU_EXPORT CUresult CUDAAPI cuLibraryLoadFromFile(CUlibrary* library, const char* path,
                                                     CUjit_option*, void**, unsigned int,
                                                     CUlibraryOption*, void**, unsigned int) {
    if (const CUresult rc = check_file(path); rc != CUDA_SUCCESS) return rc;
    return load_library(library, path);
}

SIMGPU_EXPORT CUresult CUDAAPI cuLibraryUnload(CUlibrary library) {
    return call([&](Driver& d, auto&) -> CUresult {
        if (d.libraries.erase(library) == 0) return CUDA_ERROR_INVALID_HANDLE;
        for (const auto& [name, kernel] : library->kernels) d.kernels.erase(kernel.get());
        drop_module(d, *library->module);
        delete library;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuLibraryGetKernel(CUkernel* kernel, CUlibrary library,
                                                  const char* name) {
    if (kernel == nullptr || name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    return call([&](Driver& d, auto&) -> CUresult {
        if (!d.libraries.contains(library)) return CUDA_ERROR_INVALID_HANDLE;
        auto& entry = library->kernels[name];
        if (!entry) {
            entry = std::make_unique<CUkern_st>();
            entry->function = function_of(d, library->module.get(), name);
            entry->library = library;
            d.kernels.emplace(entry.get(), entry.get());
        }
        *kernel = entry.get();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuLibraryGetModule(CUmodule* module, CUlibrary library) {
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext, auto&) -> CUresult {
        if (!d.libraries.contains(library)) return CUDA_ERROR_INVALID_HANDLE;
        *module = library->module.get();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuLibraryGetGlobal(CUdeviceptr* address, std::size_t* bytes,
                                                  CUlibrary library, const char* name) {
    if (name == nullptr || *name == '\0') return CUDA_ERROR_INVALID_VALUE;
    return call_in_context([&](Driver& d, CUcontext context, auto&) -> CUresult {
        if (!d.libraries.contains(library)) return CUDA_ERROR_INVALID_HANDLE;
        return global_of(context, *library->module, name, address, bytes);
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuKernelGetFunction(CUfunction* function, CUkernel kernel) {
    if (function == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(kernel, [&](CUkern_st& found) -> CUresult {
        *function = found.function;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuKernelGetLibrary(CUlibrary* library, CUkernel kernel) {
    if (library == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(kernel, [&](CUkern_st& found) -> CUresult {
        *library = found.library;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuKernelGetName(const char** name, CUkernel kernel) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(kernel, [&](CUkern_st& found) -> CUresult {
        *name = found.function->name.c_str();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuKernelGetAttribute(int* value, CUfunction_attribute attribute,
                                                    CUkernel kernel, CUdevice) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_kernel(
        kernel, [&](CUkern_st& found) { return get_attribute(*found.function, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuKernelSetAttribute(CUfunction_attribute attribute, int value,
                                                    CUkernel kernel, CUdevice) {
    return with_kernel(
        kernel, [&](CUkern_st& found) { return set_attribute(*found.function, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncGetName(const char** name, CUfunction function) {
    if (name == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_function(function, [&](CUfunc_st& found) -> CUresult {
        *name = found.name.c_str();
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncGetModule(CUmodule* module, CUfunction function) {
    if (module == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_function(function, [&](CUfunc_st& found) -> CUresult {
        *module = found.module;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncGetAttribute(int* value, CUfunction_attribute attribute,
                                                  CUfunction function) {
    if (value == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_function(function,
                         [&](CUfunc_st& found) { return get_attribute(found, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncSetAttribute(CUfunction function,
                                                  CUfunction_attribute attribute, int value) {
    return with_function(function,
                         [&](CUfunc_st& found) { return set_attribute(found, attribute, value); });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncSetCacheConfig(CUfunction function, CUfunc_cache) {
    return with_function(function, [](CUfunc_st&) { return CUDA_SUCCESS; });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncIsLoaded(CUfunctionLoadingState* state, CUfunction function) {
    if (state == nullptr) return CUDA_ERROR_INVALID_VALUE;
    return with_function(function, [&](CUfunc_st&) -> CUresult {
        *state = CU_FUNCTION_LOADING_STATE_LOADED;
        return CUDA_SUCCESS;
    });
}

SIMGPU_EXPORT CUresult CUDAAPI cuFuncLoad(CUfunction function) {
    return with_function(function, [](CUfunc_st&) { return CUDA_SUCCESS; });
}
