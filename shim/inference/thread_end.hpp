// SPDX-License-Identifier: Apache-2.0
// A call at the end of the thread that asks for it, on that thread: what only it can name (its
// per-thread default stream) has to be settled then. No CUDA, no streams.
#pragma once

#include <cstdint>

namespace crossover {

using AtThreadEnd = void (*)(std::uintptr_t value) noexcept;

// Calls `function(value)` when the calling thread ends, before destructors of thread-specific data
// (pthread_key_create), the latest asked for first. Not at the end of the main thread, which is
// that of the process, and not in a forked child. False: no memory, no call. Any thread, no lock.
bool at_thread_end(AtThreadEnd function, std::uintptr_t value) noexcept;

}  // namespace crossover
