// SPDX-License-Identifier: Apache-2.0
// The private MPS daemon of a user: found, started once, kept while somebody uses it. What is to be
// done is decided in mps.hpp.
//
// In its folder (mode 0700) lie three files that are locked (flock) and never removed:
//   lock    whoever starts or ends the daemon
//   users   shared, by every program started under the daemon, in a descriptor that it inherits; so
//           the kernel tells when the last of them is gone, however it ended
//   keeper  the process that waits for that and ends the daemon
// Order of taking: lock, then users.
#pragma once

#include <string>

#include "launch.hpp"
#include "mps.hpp"

namespace crossover::command {

// A descriptor that keeps the private daemon alive; closed with the object.
class MpsUse {
  public:
    MpsUse() = default;
    explicit MpsUse(int descriptor) : descriptor_(descriptor) {}
    ~MpsUse();
    MpsUse(MpsUse&& other) noexcept : descriptor_(other.descriptor_) { other.descriptor_ = -1; }
    MpsUse& operator=(MpsUse&& other) noexcept;

    bool active() const noexcept { return descriptor_ >= 0; }
    // Takes the lock of those who use the daemon; false after a bound.
    bool share() const noexcept;
    // From here on, exec passes the descriptor on.
    void inherit() const noexcept;

  private:
    int descriptor_ = -1;
};

// Looks at the machine, decides, joins or starts the private daemon and sets
// CUDA_MPS_PIPE_DIRECTORY and CUDA_MPS_LOG_DIRECTORY in `environment`. Where there is no MPS the
// reason goes to `line` (empty where none is due). Throws UsageError where kOn cannot be had. Takes
// some milliseconds with a daemon that runs, at most about a minute with one that does not answer.
MpsUse join_mps(Environment& environment, MpsChoice choice, std::string& line);

// The keeper's whole life, in a process of its own: returns its exit status.
int keep_mps(const std::string& folder);

}  // namespace crossover::command
