// SPDX-License-Identifier: Apache-2.0
// The keeper of a private MPS daemon: sleeps until the last user is gone, then ends the daemon and
// itself. Started by mps_daemon.cpp; says nothing.
#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include "arbiter/file.hpp"
#include "command.hpp"
#include "mps_control.hpp"
#include "mps_daemon.hpp"

namespace crossover::command {
namespace {

constexpr useconds_t kClientsPollUs = 500'000;
constexpr useconds_t kEndPollUs = 20'000;
constexpr int kEndSeconds = 30;

int open_lock(const std::string& folder, const char* name) {
    return ::open((folder + "/" + name).c_str(), O_RDWR | O_CLOEXEC | O_NOFOLLOW);
}

bool lock(int descriptor, int how) {
    int done = 0;
    while ((done = ::flock(descriptor, how)) != 0 && errno == EINTR) {
    }
    return done == 0;
}

// True when the daemon is gone. `users` and the folder's lock are held, so nobody comes meanwhile.
bool ended(const MpsControl& control) {
    const std::optional<std::size_t> clients = control.clients();
    if (!clients) return true;
    // Programs that a killed launcher left behind: the daemon stays as long as they use it.
    if (*clients != 0) return false;
    control.quit();
    for (int poll = 0; poll < kEndSeconds * 1'000'000 / static_cast<int>(kEndPollUs); ++poll) {
        if (!control.answers()) return true;
        ::usleep(kEndPollUs);
    }
    return false;
}

}  // namespace

int keep_mps(const std::string& folder) {
    // Their order matters: in the end `mine` is let go before `gate`, so that whoever starts a
    // daemon next does not take this one for its keeper.
    const UniqueDescriptor gate(open_lock(folder, "lock"));
    const UniqueDescriptor users(open_lock(folder, "users"));
    const UniqueDescriptor mine(open_lock(folder, "keeper"));
    // Taken in the process that the starter waits for: when that goes on, there is a keeper.
    if (mine.get() < 0 || gate.get() < 0 || users.get() < 0 ||
        ::flock(mine.get(), LOCK_EX | LOCK_NB) != 0) {
        return kExitFailure;
    }
    const pid_t child = ::fork();
    if (child != 0) return child > 0 ? 0 : kExitFailure;
    if (::chdir("/") != 0) return kExitFailure;
    const MpsControl control(Environment::of_process(), folder + "/pipe", folder + "/log");
    for (;;) {
        // Woken by the kernel when the last user is gone. Let go again at once: who comes takes
        // the folder's lock first and then this one.
        if (!lock(users.get(), LOCK_EX) || !lock(users.get(), LOCK_UN) ||
            !lock(gate.get(), LOCK_EX)) {
            return kExitFailure;
        }
        const bool nobody = ::flock(users.get(), LOCK_EX | LOCK_NB) == 0;
        if (nobody && ended(control)) return 0;
        lock(users.get(), LOCK_UN);
        lock(gate.get(), LOCK_UN);
        if (nobody) ::usleep(kClientsPollUs);
    }
}

int keep_command(Arguments arguments) {
    if (arguments.size() != 1 || !arguments.front().starts_with('/')) {
        throw UsageError("needs the folder of an MPS daemon that crossover-run started");
    }
    return keep_mps(arguments.front());
}

}  // namespace crossover::command
