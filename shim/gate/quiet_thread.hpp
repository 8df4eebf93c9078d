// SPDX-License-Identifier: Apache-2.0
// Starts a thread of our own in somebody else's process. No gate here.
#pragma once

#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cstddef>
#include <cstdint>

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

// The kernel's sched_attr in its first version, which C libraries before 2.41 do not have.
struct Scheduling {
    std::uint32_t size;
    std::uint32_t policy;
    std::uint64_t flags;
    std::int32_t nice;
    std::uint32_t priority;
    std::uint64_t runtime_ns;
    std::uint64_t deadline_ns;
    std::uint64_t period_ns;
};
static_assert(sizeof(Scheduling) == 48);

// The calling thread, one of ours that runs for some microseconds at a time, is woken when it asked
// to be, and has a processor soon, although others compute: no timer slack, and the shortest slice
// that the scheduler gives. Since Linux 6.12 the slice that an ordinary thread asks for decides
// whom it may interrupt when it wakes, not its share (kernel/sched/fair.c,
// sched_attr.sched_runtime); an older kernel takes no notice of it.
inline void be_prompt() noexcept {
    constexpr std::uint64_t kShortestSliceNs = 100'000;
    ::prctl(PR_SET_NAME, "crossover");
    ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
    Scheduling scheduling{};
    if (::syscall(SYS_sched_getattr, 0, &scheduling, sizeof scheduling, 0) == 0 &&
        scheduling.policy == SCHED_OTHER) {
        scheduling.size = sizeof scheduling;
        scheduling.runtime_ns = kShortestSliceNs;
        ::syscall(SYS_sched_setattr, 0, &scheduling, 0);
    }
}

}  // namespace crossover
