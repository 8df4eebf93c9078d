// SPDX-License-Identifier: Apache-2.0
// Finds the real functions behind the intercepted ones. Looks only among libraries that are already
// loaded and never caches a miss. No policy, no CUDA header.
#pragma once

namespace crossover {

using DlsymFunction = void* (*)(void* handle, const char* name);

// The C library's dlsym, never ours. Not nullptr on any supported C library.
DlsymFunction real_dlsym() noexcept;

// The function `name` of the loaded library `soname`, or nullptr. Finds it also where the library
// was loaded with RTLD_LOCAL, which a search by RTLD_NEXT does not.
void* find_in_loaded(const char* soname, const char* name) noexcept;

}  // namespace crossover
