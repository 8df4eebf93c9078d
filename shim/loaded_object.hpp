// SPDX-License-Identifier: Apache-2.0
// Reads the libraries that are in the process: names, address ranges, symbols, bound references.
// Never loads, unloads or changes one. No CUDA, no policy, no allocation; the loader's own lock is
// held only inside for_each_object().
#pragma once

#include <elf.h>
#include <link.h>

#include <cstddef>
#include <cstdint>

namespace crossover {

// A view of one loaded library. Valid inside for_each_object(), and for as long as the library
// stays.
struct LoadedObject {
    const char* path = "";  // as the loader has it; empty for the program itself
    const char* soname = nullptr;
    std::uintptr_t base = 0;
    std::uintptr_t begin = 0;  // first mapped byte
    std::uintptr_t end = 0;    // one past the last
    const ElfW(Dyn) * dynamic = nullptr;

    bool contains(const void* address) const noexcept {
        const auto value = reinterpret_cast<std::uintptr_t>(address);
        return begin <= value && value < end;
    }
    // Its file name without the folder.
    const char* file() const noexcept;
    // Whether it goes by this soname: its own, or its file's name where it has none.
    bool goes_by(const char* name) const noexcept;
};

// Calls visit(object, data) for each library of our own namespace in the order of loading, until
// one call returns true. Returns whether one did. `visit` must not load or look up anything.
bool for_each_object(bool (*visit)(const LoadedObject& object, void* data), void* data) noexcept;

template <class Visit>
bool for_each_object(Visit&& visit) noexcept {
    return for_each_object(
        [](const LoadedObject& object, void* data) { return (*static_cast<Visit*>(data))(object); },
        static_cast<void*>(&visit));
}

// A function the library itself defines, in its default version; nullptr if it defines none.
void* defined_function(const LoadedObject& object, const char* name) noexcept;

// Whether the library names `soname` as one it depends on.
bool needs(const LoadedObject& object, const char* soname) noexcept;

// Whether this library is the one we are in.
bool is_ourselves(const LoadedObject& object) noexcept;

// Calls visit(symbol name, address it is bound to, data) for each reference by name of the library.
// A reference that is bound at its first use and has not been used gives an address inside the
// library.
void for_each_reference(const LoadedObject& object,
                        void (*visit)(const char* name, const void* bound, void* data),
                        void* data) noexcept;

// How many namespaces made by dlmopen() hold a library whose file name begins with `prefix`, and
// the path of one such library copied to `path` (empty if none). The C library tells only from 2.35
// on.
unsigned other_namespaces_with(const char* prefix, char* path, std::size_t path_bytes) noexcept;

}  // namespace crossover
