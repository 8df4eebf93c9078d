// SPDX-License-Identifier: Apache-2.0
// Finds the real functions behind the intercepted ones. Looks only among libraries that are already
// loaded and never caches a miss. No policy, no CUDA header. Any thread; no allocation and no lock
// of our own, because allocators look functions up while they start.
#pragma once

#include "shim/loaded_object.hpp"

namespace crossover {

using DlsymFunction = void* (*)(void* handle, const char* name);
using DlvsymFunction = void* (*)(void* handle, const char* name, const char* version);

// The C library's own, never ours and never another preload's. Not nullptr on any supported one.
DlsymFunction real_dlsym() noexcept;
DlvsymFunction real_dlvsym() noexcept;

// What a caller would have reached if this library were not there: that of a preload behind us
// which defines it too, else the C library's.
DlsymFunction next_dlsym() noexcept;
DlvsymFunction next_dlvsym() noexcept;

// The function `name` of the loaded library `soname`, or nullptr. Finds it also where the library
// was loaded with RTLD_LOCAL, which a search by RTLD_NEXT does not. The library then stays loaded.
void* find_in_loaded(const char* soname, const char* name) noexcept;

// The first definition behind us in the global scope, or nullptr; the second of exactly this
// version.
void* find_behind_us(const char* name) noexcept;
void* find_behind_us(const char* name, const char* version) noexcept;

// What the library that `address` lies in finds by itself: its own definition or that of a library
// it depends on (of this version if one is given), or nullptr. Never ours. The library then stays
// loaded.
void* find_in_scope_of(const void* address, const char* name, const char* version) noexcept;

// The definition of `name` in the very library that `address` lies in, or nullptr.
void* function_beside(const void* address, const char* name) noexcept;

// Keeps the library that `address` lies in loaded for good. False for the program itself, which
// stays.
bool keep_loaded(const void* address) noexcept;

// The bounds of the library that `address` lies in; false for code that no library holds.
bool bounds_of(const void* address, std::uintptr_t& begin, std::uintptr_t& end) noexcept;

// Whether a search by RTLD_NEXT from `caller` for one of our exports ends at ours: it comes before
// us in the order of loading, and nothing in between defines the name.
bool comes_next_after(const void* caller, const char* name) noexcept;

// Whether `address` lies in this library.
bool is_ours(const void* address) noexcept;

}  // namespace crossover
