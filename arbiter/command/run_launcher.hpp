// SPDX-License-Identifier: Apache-2.0
// What a launcher must be told so that its ranks on other hosts get the preload and the options:
// functions of a command line and an environment. Launchers that pass their environment on need
// nothing and are not named here.
#pragma once

#include <string>
#include <vector>

#include "launch.hpp"

namespace crossover::command {

enum class Launcher {
    kOther,
    kOpenMpi,   // mpirun, mpiexec, orterun, prterun: ranks elsewhere get what -x names
    kHydra,     // MPICH's and Intel MPI's mpirun and mpiexec: what -genv sets
    kSrun,      // what --export names, everything without it
    kPassesOn,  // horovodrun: passes all on, to every host
};

struct Forwarding {
    std::vector<std::string> command;
    Environment environment;
    std::string fault;           // what could not be passed on, or empty
    bool several_hosts = false;  // the command line names hosts
};

// `environment` as launch_environment() made it. Nothing changes for kOther.
Forwarding forward_to_ranks(std::vector<std::string> command, Environment environment,
                            Launcher launcher);

// By name; for an mpirun or mpiexec of unknown family, by its file behind links, then by what its
// --version says (which may take a second, and is asked without the preload).
Launcher launcher_of(const std::vector<std::string>& command, const Environment& environment);

// The part of it that needs no look at the machine. `file`: the program's file behind all links;
// `version`: what its --version says; both may be empty.
Launcher launcher_by(const std::string& word, const std::string& file, const std::string& version);

}  // namespace crossover::command
