// SPDX-License-Identifier: Apache-2.0
// Processes for the ranks of a test; see ranks.hpp.
#include "ranks.hpp"

#include <sys/wait.h>
#include <unistd.h>

#include <cstdio>

namespace simgpu::test {

void run_ranks(int ranks, const std::function<void(int, const ncclUniqueId&)>& body) {
    constexpr unsigned int kWatchdogSeconds = 60;
    ncclUniqueId id{};
    ASSERT_EQ(ncclSuccess, ncclGetUniqueId(&id));
    std::fflush(nullptr);
    std::vector<pid_t> children;
    for (int rank = 0; rank < ranks; ++rank) {
        const pid_t child = fork();
        ASSERT_GE(child, 0);
        if (child == 0) {
            alarm(kWatchdogSeconds);
            body(rank, id);
            std::fflush(nullptr);
            // Without exit handlers: those are the test's.
            _exit(testing::Test::HasFailure() ? 1 : 0);
        }
        children.push_back(child);
    }
    for (std::size_t rank = 0; rank < children.size(); ++rank) {
        int status = 0;
        ASSERT_EQ(children[rank], waitpid(children[rank], &status, 0));
        EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0)
            << "rank " << rank << (WIFSIGNALED(status) ? " died of signal " : " exited with ")
            << (WIFSIGNALED(status) ? WTERMSIG(status) : WEXITSTATUS(status));
    }
}

}  // namespace simgpu::test
