// SPDX-License-Identifier: Apache-2.0
// Where in the host program the calling thread is, for the line about a stall. Called only when something is wrong: it
// walks the stack (libunwind) and takes its time. No policy.
#pragma once

#include <cstddef>

namespace crossover {

// Writes the calling thread's innermost frames outside this library, innermost first, as
// "function+0x12 (library) < …", cut to `bytes` with the closing zero. Empty when the stack cannot be walked. Does not
// allocate.
void describe_call_site(char* text, std::size_t bytes) noexcept;

}  // namespace crossover
