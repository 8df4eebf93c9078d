// SPDX-License-Identifier: Apache-2.0
// Children that live in a container (PID and mount namespaces of their own, on request a user
// namespace too) or as another user, on top of tests/process/processes.hpp. No test cases here.
#pragma once

#include <fcntl.h>
#include <grp.h>
#include <sched.h>
#include <sys/mount.h>

#include <atomic>
#include <cstring>

#include "tests/process/processes.hpp"

namespace crossover {

inline constexpr int kNotPermitted = 77;

inline bool write_text(const char* path, const std::string& text) {
    const int file = open(path, O_WRONLY | O_CLOEXEC);
    if (file < 0) return false;
    const bool done = write(file, text.data(), text.size()) == static_cast<ssize_t>(text.size());
    close(file);
    return done;
}

// A user namespace in which this process's user is root, for its children; false: not permitted.
inline bool enter_user_namespace() {
    const std::string user = std::to_string(geteuid());
    const std::string group = std::to_string(getegid());
    // A process that has changed its user may not write its own maps otherwise.
    return prctl(PR_SET_DUMPABLE, 1) == 0 && unshare(CLONE_NEWUSER) == 0 &&
           (write_text("/proc/self/setgroups", "deny") || errno == ENOENT) &&
           write_text("/proc/self/uid_map", "0 " + user + " 1") &&
           write_text("/proc/self/gid_map", "0 " + group + " 1");
}

// Mounts of its own: what it mounts is seen by nobody else.
inline bool enter_mount_namespace() {
    return unshare(CLONE_NEWNS) == 0 &&
           mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0;
}

// What `body` may be refused beforehand: 0 = nothing is.
inline int status_of_child(const std::function<void()>& body) { return Process(body).wait(); }

inline bool containers_permitted(bool user_namespace) {
    return status_of_child([&] {
               _exit((!user_namespace || enter_user_namespace()) && enter_mount_namespace() &&
                             unshare(CLONE_NEWPID) == 0
                         ? 0
                         : kNotPermitted);
           }) == 0;
}

// `body` runs as process 1 of a container. Its status is that of the body.
class Container {
  public:
    Container(bool user_namespace, const std::function<void()>& body)
        : outside_([&] {
              CX_CHILD_CHECK((!user_namespace || enter_user_namespace()) &&
                             enter_mount_namespace() && unshare(CLONE_NEWPID) == 0);
              const pid_t init = fork();
              if (init == 0) {
                  prctl(PR_SET_PDEATHSIG, SIGKILL);
                  body();
                  _exit(0);
              }
              *init_ = init;
              int status = -1;
              waitpid(init, &status, 0);
              _exit(WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status));
          }) {}

    // Ends process 1 only.
    void kill_now() {
        EXPECT_TRUE(eventually([&] { return *init_ != 0; }));
        kill(*init_, SIGKILL);
        EXPECT_EQ(wait(), 128 + SIGKILL);
    }
    // The body's exit status, 128 + signal when one ended it.
    int wait() {
        const int status = outside_.wait();
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }
    void expect_success() { EXPECT_EQ(wait(), 0); }

  private:
    Shared<std::atomic<pid_t>> init_;
    Process outside_;
};

// For children of root: becomes another user for good, with these supplementary groups.
inline void become(uid_t user, const std::vector<gid_t>& groups = {}) {
    CX_CHILD_CHECK(setgroups(groups.size(), groups.data()) == 0);
    CX_CHILD_CHECK(setresgid(user, user, user) == 0 && setresuid(user, user, user) == 0);
}

}  // namespace crossover
