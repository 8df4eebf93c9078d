// SPDX-License-Identifier: Apache-2.0
// What the look-up tests share: opening a library, telling where a function lies. No tests here.
#pragma once

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <string>

namespace lookup {

constexpr const char* kOurs = "libcrossover.so";

// The file name of the library a function lies in; empty if in none.
inline std::string library_of(void* function) {
    Dl_info info{};
    if (function == nullptr || dladdr(function, &info) == 0) {
        return "";
    }
    const std::string path = info.dli_fname;
    return path.substr(path.rfind('/') + 1);
}

inline bool is_ours(void* function) {
    void* ours = dlsym(RTLD_DEFAULT, "dlsym");
    Dl_info own{};
    Dl_info other{};
    return function != nullptr && dladdr(ours, &own) != 0 && dladdr(function, &other) != 0 &&
           own.dli_fbase == other.dli_fbase;
}

inline void* open_library(const std::string& path, int flags = RTLD_NOW | RTLD_LOCAL) {
    void* library = dlopen(path.c_str(), flags);
    EXPECT_NE(library, nullptr) << dlerror();
    return library;
}

template <class Function>
Function function(void* library, const char* name) {
    auto found = reinterpret_cast<Function>(dlsym(library, name));
    EXPECT_NE(found, nullptr) << name;
    return found;
}

}  // namespace lookup
