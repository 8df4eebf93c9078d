// SPDX-License-Identifier: Apache-2.0
// Whether a program is started under MPS, and under whose daemon: the decision as a pure function
// of facts, and its line for people. Starts nothing: see mps_daemon.hpp.
#pragma once

#include <cstddef>
#include <optional>
#include <string>

#include "launch.hpp"

namespace crossover::command {

enum class MpsChoice { kAuto, kOn, kOff };

// auto|on|off, else nothing.
std::optional<MpsChoice> parse_mps_choice(const std::string& text);

// What was found on this machine. Paths of pipe folders without a slash at their end.
struct MpsFacts {
    bool virtual_gpu = false;          // MPS is a property of the virtual machine there
    bool takes_turns = true;           // CROSSOVER is on
    bool silent = false;               // CROSSOVER_LOG is none
    std::string pipe_variable;         // CUDA_MPS_PIPE_DIRECTORY, or empty
    bool pipe_answers = false;         // a daemon answers there
    bool default_answers = false;      // a daemon answers at kDefaultMpsPipe
    std::string default_foreign_user;  // the owner of that daemon, if neither this user nor root
    bool has_control = false;          // nvidia-cuda-mps-control is on PATH
    bool wsl = false;
    bool mig = false;          // the GPUs are divided, or the program is given instances
    std::string folder;        // where the private daemon's files go, or empty
    std::string folder_fault;  // why there is no such folder
};

inline constexpr const char* kDefaultMpsPipe = "/tmp/nvidia-mps";
inline constexpr std::size_t kLongestMpsFolder = 80;  // bytes; its sockets' paths end at 107

enum class MpsWay {
    kNone,     // as without this option
    kThere,    // the daemon that the program finds by itself
    kPrivate,  // the private daemon in `folder`
};

struct MpsPlan {
    MpsWay way = MpsWay::kNone;
    std::string why_not;  // with kNone: why there is no MPS, or empty where none is due
};

MpsPlan plan_mps(const MpsFacts& facts, MpsChoice choice);

// The line that an automatic choice without MPS is told with.
std::string mps_missing_line(const std::string& why_not);

}  // namespace crossover::command
