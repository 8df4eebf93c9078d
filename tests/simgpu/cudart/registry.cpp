// SPDX-License-Identifier: Apache-2.0
// Device code and variables that the compiler's start-up code registers, and how a host address
// leads to a driver handle. Device code is loaded at the first use of anything in it, not at
// registration.
#include <mutex>
#include <string>
#include <unordered_map>
#include <unordered_set>
#include <vector>

#include "runtime.hpp"

using namespace simgpu::cudart;

namespace {

// The compiler's wrapper around an image: magic, version, the image, a link to further images.
struct FatBinaryWrapper {
    int magic;
    int version;
    const void* image;
    void* further;
};
constexpr int kFatBinaryMagic = 0x466243b1;

struct Image {
    const void* data = nullptr;
    CUlibrary library = nullptr;
};

struct Function {
    Image* image = nullptr;
    std::string name;
    CUkernel kernel = nullptr;
};

struct Variable {
    Image* image = nullptr;
    std::string name;
    std::size_t size = 0;
    void** managed = nullptr;  // the program's pointer to a managed variable
    CUdeviceptr address = 0;
};

struct Registry {
    std::mutex mutex;
    std::unordered_set<Image*> images;
    std::unordered_map<const void*, Function> functions;
    std::unordered_map<const void*, Variable> variables;
    std::unordered_set<CUkernel> kernels;
};

Registry& registry() {
    // Never destroyed: start-up code of other libraries may unregister after our own exit handlers.
    static Registry* const instance = new Registry;
    return *instance;
}

cudaError_t load(Image& image) {
    if (image.library) {
        return cudaSuccess;
    }
    if (!image.data) {
        return cudaErrorInvalidKernelImage;
    }
    return to_error(legacy_driver().cuLibraryLoadData(&image.library, image.data, nullptr, nullptr,
                                                      0, nullptr, nullptr, 0));
}

cudaError_t find_variable(const void* symbol, CUdeviceptr* address, std::size_t* size) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.variables.find(symbol);
    if (found == all.variables.end()) {
        return cudaErrorInvalidSymbol;
    }
    Variable& variable = found->second;
    if (!variable.address) {
        const cudaError_t error = load(*variable.image);
        if (error != cudaSuccess) {
            return error;
        }
        std::size_t bytes = 0;
        const CUresult result = legacy_driver().cuLibraryGetGlobal(
            &variable.address, &bytes, variable.image->library, variable.name.c_str());
        if (result != CUDA_SUCCESS) {
            return to_error(result);
        }
    }
    *address = variable.address;
    *size = variable.size;
    return cudaSuccess;
}

}  // namespace

namespace simgpu::cudart {

cudaError_t find_kernel(const void* func, CUkernel* kernel) {
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    const auto found = all.functions.find(func);
    if (found == all.functions.end()) {
        *kernel = reinterpret_cast<CUkernel>(const_cast<void*>(func));
        return all.kernels.count(*kernel) ? cudaSuccess : cudaErrorInvalidDeviceFunction;
    }
    Function& function = found->second;
    if (!function.kernel) {
        const cudaError_t error = load(*function.image);
        if (error != cudaSuccess) {
            return error;
        }
        const CUresult result = legacy_driver().cuLibraryGetKernel(
            &function.kernel, function.image->library, function.name.c_str());
        if (result != CUDA_SUCCESS) {
            return result == CUDA_ERROR_NOT_FOUND ? cudaErrorInvalidDeviceFunction
                                                  : to_error(result);
        }
        all.kernels.insert(function.kernel);
    }
    *kernel = function.kernel;
    return cudaSuccess;
}

void know_kernel(CUkernel kernel) {
    const std::lock_guard lock(registry().mutex);
    registry().kernels.insert(kernel);
}

}  // namespace simgpu::cudart

extern "C" void** __cudaRegisterFatBinary(void* wrapper) {
    auto* const image = new Image;
    const auto* const binary = static_cast<const FatBinaryWrapper*>(wrapper);
    if (binary && binary->magic == kFatBinaryMagic) {
        image->data = binary->image;
    }
    const std::lock_guard lock(registry().mutex);
    registry().images.insert(image);
    return reinterpret_cast<void**>(image);
}

// Nothing is left to do once all functions of an image are registered.
extern "C" void __cudaRegisterFatBinaryEnd(void**) {}

extern "C" void __cudaUnregisterFatBinary(void** handle) {
    auto* const image = reinterpret_cast<Image*>(handle);
    Registry& all = registry();
    const std::lock_guard lock(all.mutex);
    if (all.images.erase(image) == 0) {
        return;
    }
    std::erase_if(all.functions, [&](const auto& entry) {
        if (entry.second.image != image) {
            return false;
        }
        all.kernels.erase(entry.second.kernel);
        return true;
    });
    std::erase_if(all.variables, [&](const auto& entry) { return entry.second.image == image; });
    if (image->library) {
        // At exit the driver may be gone already; there is nobody left to tell.
        legacy_driver().cuLibraryUnload(image->library);
    }
    delete image;
}

extern "C" void __cudaRegisterFunction(void** handle, const char* host_function, char*,
                                       const char* device_name, int, uint3*, uint3*, dim3*, dim3*,
                                       int*) {
    const std::lock_guard lock(registry().mutex);
    registry().functions[host_function] =
        Function{reinterpret_cast<Image*>(handle), device_name, nullptr};
}

extern "C" void __cudaRegisterVar(void** handle, char* host_variable, char*,
                                  const char* device_name, int, size_t size, int, int) {
    const std::lock_guard lock(registry().mutex);
    registry().variables[host_variable] =
        Variable{reinterpret_cast<Image*>(handle), device_name, size, nullptr, 0};
}

extern "C" void __cudaRegisterManagedVar(void** handle, void** host_pointer, char*,
                                         const char* device_name, int, size_t size, int, int) {
    const std::lock_guard lock(registry().mutex);
    registry().variables[host_pointer] =
        Variable{reinterpret_cast<Image*>(handle), device_name, size, host_pointer, 0};
}

// Gives the image's managed variables their memory.
extern "C" char __cudaInitModule(void** handle) {
    if (initialise() != cudaSuccess || ensure_context() != cudaSuccess) {
        return 0;
    }
    std::vector<const void*> managed;
    {
        const std::lock_guard lock(registry().mutex);
        for (const auto& [symbol, variable] : registry().variables) {
            if (variable.image == reinterpret_cast<Image*>(handle) && variable.managed) {
                managed.push_back(symbol);
            }
        }
    }
    for (const void* symbol : managed) {
        CUdeviceptr address = 0;
        std::size_t size = 0;
        if (find_variable(symbol, &address, &size) != cudaSuccess) {
            return 0;
        }
        *static_cast<void**>(const_cast<void*>(symbol)) = reinterpret_cast<void*>(address);
    }
    return 1;
}

extern "C" cudaError_t cudaGetSymbolAddress(void** pointer, const void* symbol) {
    return enter([&](const Driver&) {
        if (!pointer) {
            return cudaErrorInvalidValue;
        }
        CUdeviceptr address = 0;
        std::size_t size = 0;
        const cudaError_t error = find_variable(symbol, &address, &size);
        if (error == cudaSuccess) {
            *pointer = reinterpret_cast<void*>(address);
        }
        return error;
    });
}

extern "C" cudaError_t cudaGetSymbolSize(size_t* size, const void* symbol) {
    return enter([&](const Driver&) {
        if (!size) {
            return cudaErrorInvalidValue;
        }
        CUdeviceptr address = 0;
        return find_variable(symbol, &address, size);
    });
}
