// SPDX-License-Identifier: Apache-2.0
// Starts a thread of our own in somebody else's process. No gate here.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <cstddef>

namespace crossover {

// Creates a thread that takes none of the host's signals, with a small stack.
inline bool create_quiet_thread(pthread_t& thread, void* (*body)(void*), void* argument) noexcept {
    constexpr std::size_t kStackBytes = 256 * 1024;
    pthread_attr_t attributes;
    if (pthread_attr_init(&attributes) != 0) {
        return false;
    }
    pthread_attr_setstacksize(&attributes, kStackBytes);
    sigset_t all;
    sigset_t before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    const int refused = pthread_create(&thread, &attributes, body, argument);
    pthread_sigmask(SIG_SETMASK, &before, nullptr);
    pthread_attr_destroy(&attributes);
    return refused == 0;
}

}  // namespace crossover
