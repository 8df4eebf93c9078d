// SPDX-License-Identifier: Apache-2.0
#include "shim/resolve.hpp"

#include <dlfcn.h>

#include <atomic>
#include <cstring>

namespace crossover {

namespace {

constexpr std::size_t kMaxPath = 1024;

// Found in the C library's symbol table: our own references to these names lead to our exports.
// They moved from libdl to libc with glibc 2.34; the default version is right on every
// architecture.
void* of_the_c_library(const char* name) noexcept {
    void* found = nullptr;
    for_each_object([&](const LoadedObject& object) {
        if (object.goes_by("libc.so.6") || object.goes_by("libdl.so.2")) {
            found = defined_function(object, name);
        }
        return found != nullptr;
    });
    return found;
}

template <class Function>
Function once(std::atomic<Function>& known, const char* name) noexcept {
    Function function = known.load(std::memory_order_acquire);
    if (function == nullptr) {
        function = reinterpret_cast<Function>(of_the_c_library(name));
        known.store(function, std::memory_order_release);
    }
    return function;
}

template <class Function>
Function once_behind_us(std::atomic<Function>& known, const char* name,
                        Function otherwise) noexcept {
    Function function = known.load(std::memory_order_acquire);
    if (function == nullptr) {
        function = reinterpret_cast<Function>(find_behind_us(name));
        function = function == nullptr ? otherwise : function;
        known.store(function, std::memory_order_release);
    }
    return function;
}

// A handle of a loaded library, which it keeps loaded; nullptr if it cannot be named.
void* hold(const char* path) noexcept {
    using DlopenFunction = void* (*)(const char*, int);
    static std::atomic<DlopenFunction> known{nullptr};
    const DlopenFunction open = once(known, "dlopen");
    return open == nullptr ? nullptr : open(path, RTLD_LAZY | RTLD_NOLOAD);
}

// What a look-up of our own found. A miss is taken back from dlerror(): programs ask that whether
// their own look-up went well. Also keeps the look-up from being a tail call, which would search
// for our caller.
void* unless_missing(void* found) noexcept {
    if (found == nullptr) {
        ::dlerror();
    }
    return found;
}

bool copy_path(const char* from, char (&to)[kMaxPath]) noexcept {
    const std::size_t length = std::strlen(from);
    if (length == 0 || length >= kMaxPath) {
        return false;
    }
    std::memcpy(to, from, length + 1);
    return true;
}

}  // namespace

DlsymFunction real_dlsym() noexcept {
    static std::atomic<DlsymFunction> known{nullptr};
    return once(known, "dlsym");
}

DlvsymFunction real_dlvsym() noexcept {
    static std::atomic<DlvsymFunction> known{nullptr};
    return once(known, "dlvsym");
}

DlsymFunction next_dlsym() noexcept {
    static std::atomic<DlsymFunction> known{nullptr};
    return once_behind_us(known, "dlsym", real_dlsym());
}

DlvsymFunction next_dlvsym() noexcept {
    static std::atomic<DlvsymFunction> known{nullptr};
    return once_behind_us(known, "dlvsym", real_dlvsym());
}

void* find_in_loaded(const char* soname, const char* name) noexcept {
    char path[kMaxPath];
    void* found = nullptr;
    LoadedObject object;
    // Read from the symbol tables: a miss by dlsym allocates, and is remembered for dlerror().
    for_each_object([&](const LoadedObject& each) {
        if (!each.goes_by(soname)) {
            return false;
        }
        object = each;
        found = defined_function(each, name);
        return true;
    });
    if (object.dynamic == nullptr) {
        return nullptr;
    }
    if (found == nullptr) {  // a front that forwards to the libraries it is linked to
        for_each_object([&](const LoadedObject& each) {
            if (each.soname != nullptr && needs(object, each.soname)) {
                found = defined_function(each, name);
            }
            return found != nullptr;
        });
    }
    // Asked for by the path it has, the loader knows it again without a look at the file system.
    if (found != nullptr && copy_path(object.path, path)) {
        hold(path);
    }
    return found;
}

void* find_behind_us(const char* name) noexcept {
    return unless_missing(real_dlsym()(RTLD_NEXT, name));
}

void* find_behind_us(const char* name, const char* version) noexcept {
    return unless_missing(real_dlvsym()(RTLD_NEXT, name, version));
}

void* find_in_scope_of(const void* address, const char* name, const char* version) noexcept {
    char path[kMaxPath];
    const bool named = for_each_object([&](const LoadedObject& object) {
        return object.contains(address) && copy_path(object.path, path);
    });
    void* library = named ? hold(path) : nullptr;
    if (library == nullptr) {
        return nullptr;
    }
    void* found = unless_missing(version == nullptr ? real_dlsym()(library, name)
                                                    : real_dlvsym()(library, name, version));
    return is_ours(found) ? nullptr : found;
}

bool keep_loaded(const void* address) noexcept {
    char path[kMaxPath];
    return for_each_object([&](const LoadedObject& object) {
               return object.contains(address) && copy_path(object.path, path);
           }) &&
           hold(path) != nullptr;
}

bool bounds_of(const void* address, std::uintptr_t& begin, std::uintptr_t& end) noexcept {
    return for_each_object([&](const LoadedObject& object) {
        begin = object.begin;
        end = object.end;
        return object.contains(address);
    });
}

void* function_beside(const void* address, const char* name) noexcept {
    void* found = nullptr;
    for_each_object([&](const LoadedObject& object) {
        if (object.contains(address)) {
            found = defined_function(object, name);
            return true;
        }
        return false;
    });
    return found;
}

bool comes_next_after(const void* caller, const char* name) noexcept {
    bool passed_caller = false;
    bool is_next = false;
    for_each_object([&](const LoadedObject& object) {
        if (is_ourselves(object)) {
            is_next = passed_caller;
            return true;
        }
        if (object.contains(caller)) {
            passed_caller = true;
            return false;
        }
        return passed_caller && defined_function(object, name) != nullptr;
    });
    return is_next;
}

bool is_ours(const void* address) noexcept {
    static std::atomic<std::uintptr_t> first{0};
    static std::atomic<std::uintptr_t> last{0};
    std::uintptr_t end = last.load(std::memory_order_acquire);
    if (end == 0) {
        std::uintptr_t begin = 0;
        bounds_of(reinterpret_cast<const void*>(&is_ours), begin, end);
        first.store(begin, std::memory_order_relaxed);
        last.store(end, std::memory_order_release);
    }
    const auto value = reinterpret_cast<std::uintptr_t>(address);
    return first.load(std::memory_order_relaxed) <= value && value < end;
}

}  // namespace crossover
