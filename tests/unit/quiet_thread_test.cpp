// SPDX-License-Identifier: Apache-2.0
// Threads of our own in somebody else's process: what they take of it, and what the scheduler is
// told.
#include "shim/gate/quiet_thread.hpp"

#include <gtest/gtest.h>

#include <csignal>
#include <functional>
#include <string>

namespace crossover {
namespace {

Scheduling scheduling_here() {
    Scheduling found{};
    EXPECT_EQ(::syscall(SYS_sched_getattr, 0, &found, sizeof found, 0), 0);
    return found;
}

void on_quiet_thread(std::function<void()> body) {
    pthread_t thread{};
    ASSERT_TRUE(create_quiet_thread(
        thread,
        [](void* argument) -> void* {
            (*static_cast<std::function<void()>*>(argument))();
            return nullptr;
        },
        &body));
    ASSERT_EQ(pthread_join(thread, nullptr), 0);
}

TEST(QuietThread, TakesNoSignalOfTheProgram) {
    sigset_t before;
    pthread_sigmask(SIG_SETMASK, nullptr, &before);
    on_quiet_thread([] {
        sigset_t blocked;
        pthread_sigmask(SIG_SETMASK, nullptr, &blocked);
        for (const int each : {SIGINT, SIGTERM, SIGCHLD, SIGUSR1, SIGALRM, SIGPROF}) {
            EXPECT_EQ(sigismember(&blocked, each), 1) << each;
        }
    });
    sigset_t after;
    pthread_sigmask(SIG_SETMASK, nullptr, &after);
    EXPECT_EQ(sigismember(&after, SIGINT), sigismember(&before, SIGINT));
}

TEST(QuietThread, IsPromptByItselfAlone) {
    const Scheduling program = scheduling_here();
    on_quiet_thread([&] {
        be_prompt();
        EXPECT_EQ(::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL), 1);
        const Scheduling own = scheduling_here();
        EXPECT_EQ(own.policy, program.policy);
        EXPECT_EQ(own.nice, program.nice) << "its share is as before";
        if (program.policy == SCHED_OTHER && program.runtime_ns != 0) {  // Linux 6.12 and later
            EXPECT_EQ(own.runtime_ns, 100'000U);
        }
    });
    EXPECT_EQ(scheduling_here().runtime_ns, program.runtime_ns);
    EXPECT_NE(::prctl(PR_GET_TIMERSLACK, 0UL, 0UL, 0UL, 0UL), 1);
}

}  // namespace
}  // namespace crossover
