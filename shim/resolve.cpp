// SPDX-License-Identifier: Apache-2.0
#include "shim/resolve.hpp"

#include <dlfcn.h>

#include <atomic>

namespace crossover {

DlsymFunction real_dlsym() noexcept {
    static std::atomic<DlsymFunction> found{nullptr};
    DlsymFunction function = found.load(std::memory_order_acquire);
    if (function == nullptr) {
        // dlsym moved into libc with glibc 2.34; before, each architecture has its first version.
        for (const char* version : {"GLIBC_2.34", "GLIBC_2.2.5", "GLIBC_2.17", "GLIBC_2.0"}) {
            if (void* symbol = ::dlvsym(RTLD_NEXT, "dlsym", version)) {
                function = reinterpret_cast<DlsymFunction>(symbol);
                found.store(function, std::memory_order_release);
                break;
            }
        }
    }
    return function;
}

void* find_in_loaded(const char* soname, const char* name) noexcept {
    const DlsymFunction look_up = real_dlsym();
    if (look_up == nullptr) {
        return nullptr;
    }
    // The count that RTLD_NOLOAD adds is kept: the library stays for as long as its functions are
    // held here.
    void* library = ::dlopen(soname, RTLD_LAZY | RTLD_NOLOAD);
    return library == nullptr ? nullptr : look_up(library, name);
}

}  // namespace crossover
