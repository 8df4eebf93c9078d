// SPDX-License-Identifier: Apache-2.0
// Command lines of launchers: see run_launcher.hpp.
#include "run_launcher.hpp"

#include <algorithm>
#include <array>
#include <cstdlib>
#include <optional>
#include <string_view>

#include "command.hpp"
#include "mps_control.hpp"

namespace crossover::command {
namespace {

using Words = std::vector<std::string>;

constexpr std::string_view kPreload = "LD_PRELOAD";

std::string base_name(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool is_one_of(std::string_view name, std::initializer_list<std::string_view> names) {
    return std::find(names.begin(), names.end(), name) != names.end();
}

bool contains(const std::string& text, std::string_view part) {
    return text.find(part) != std::string::npos;
}

std::string own_library(const Environment& environment) {
    const std::string preload = environment.get(kPreload).value_or("");
    for (std::size_t begin = 0; begin <= preload.size();) {
        const std::size_t end = std::min(preload.find(':', begin), preload.size());
        const std::string part = preload.substr(begin, end - begin);
        if (base_name(part) == "libcrossover.so") return part;
        begin = end + 1;
    }
    return {};
}

// The preload and the options. Not MPS: its daemon is this host's.
Words names_to_pass(const Environment& environment) {
    Words names{std::string(kPreload)};
    for (const std::string& entry : environment.entries()) {
        const std::string name = entry.substr(0, entry.find('='));
        if (name == "CROSSOVER" || name.starts_with("CROSSOVER_")) names.push_back(name);
    }
    std::sort(names.begin() + 1, names.end());
    return names;
}

// A value for LD_PRELOAD in the command line itself would take ours away.
std::string with_library(const std::string& value, const Environment& environment) {
    return compose_preload(value, own_library(environment));
}

bool is_this_host(const std::string& list) {
    return !contains(list, ",") && (list.starts_with("localhost") || list.starts_with("127."));
}

bool names_hosts(const Words& command, Launcher launcher) {
    for (std::size_t place = 1; place < command.size(); ++place) {
        const std::size_t equals = command[place].find('=');
        const std::string option = command[place].substr(0, equals);
        const std::string value = equals != std::string::npos  ? command[place].substr(equals + 1)
                                  : place + 1 < command.size() ? command[place + 1]
                                                               : "";
        const bool names =
            launcher == Launcher::kSrun
                ? is_one_of(option, {"-N", "-w", "--nodes", "--nodelist"})
                : is_one_of(option, {"-H", "-host", "--host", "-hosts", "--hosts", "-hostfile",
                                     "--hostfile", "-machinefile", "--machinefile"});
        const bool one_node = launcher == Launcher::kSrun && value == "1";
        if (names && !one_node && !is_this_host(value)) return true;
    }
    return false;
}

void pass_open_mpi(Forwarding& result) {
    Words& command = result.command;
    const auto by_list = [](const std::string& word) {
        return contains(word, "mca_base_env_list");
    };
    if (std::any_of(command.begin(), command.end(), by_list) ||
        result.environment.get("OMPI_MCA_mca_base_env_list")) {
        result.fault =
            "mca_base_env_list is given, and Open MPI takes no -x beside it: ranks on other hosts "
            "get the library only if it names LD_PRELOAD and the CROSSOVER_* variables";
        return;
    }
    Words wanted = names_to_pass(result.environment);
    for (std::size_t place = 1; place + 1 < command.size(); ++place) {
        if (command[place] != "-x") continue;
        std::string& given = command[place + 1];
        const std::string name = given.substr(0, given.find('='));
        if (name == kPreload && contains(given, "=")) {
            given = name + "=" + with_library(given.substr(name.size() + 1), result.environment);
        }
        std::erase(wanted, name);  // the user's own word stands
    }
    Words added;
    for (const std::string& name : wanted) {
        added.insert(added.end(), {"-x", name});
    }
    command.insert(command.begin() + 1, added.begin(), added.end());
}

void pass_hydra(Forwarding& result) {
    Words& command = result.command;
    Words wanted = names_to_pass(result.environment);
    for (std::size_t place = 1; place + 2 < command.size(); ++place) {
        if (!is_one_of(command[place], {"-genv", "--genv", "-env", "--env"})) continue;
        const std::string& name = command[place + 1];
        if (name == kPreload) {
            command[place + 2] = with_library(command[place + 2], result.environment);
        }
        if (contains(command[place], "genv")) std::erase(wanted, name);
    }
    Words added;
    for (const std::string& name : wanted) {
        added.insert(added.end(), {"-genv", name, result.environment.get(name).value_or("")});
    }
    command.insert(command.begin() + 1, added.begin(), added.end());
}

// The list with our names; unchanged where it passes everything on already.
std::string with_names(const std::string& list, const Environment& environment) {
    if (list.empty() || list == "ALL" || list.starts_with("ALL,") || contains(list, ",ALL")) {
        return list;
    }
    std::string result = list == "NONE" ? "" : list;
    for (const std::string& name : names_to_pass(environment)) {
        if (!contains("," + result + ",", "," + name + ",") &&
            !contains("," + result, "," + name + "=")) {
            result += (result.empty() ? "" : ",") + name;
        }
    }
    return result;
}

void pass_srun(Forwarding& result) {
    Words& command = result.command;
    for (std::size_t place = 1; place < command.size(); ++place) {
        std::string& word = command[place];
        if (word.starts_with("--export=")) {
            const std::string head = "--export=";
            word = head + with_names(word.substr(head.size()), result.environment);
        } else if (word == "--export" && place + 1 < command.size()) {
            command[place + 1] = with_names(command[place + 1], result.environment);
        } else {
            continue;
        }
        return;
    }
    if (const auto list = result.environment.get("SLURM_EXPORT_ENV")) {
        result.environment.set("SLURM_EXPORT_ENV", with_names(*list, result.environment));
    }
}

std::string said_by(const std::string& program) {
    std::string text;
    if (contains(program, "'")) return text;
    FILE* pipe =
        ::popen(("env -u LD_PRELOAD timeout 10 '" + program + "' --version 2>&1").c_str(), "re");
    if (pipe == nullptr) return text;
    char part[512];
    while (text.size() < 4096 && std::fgets(part, sizeof part, pipe) != nullptr) text += part;
    ::pclose(pipe);
    return text;
}

}  // namespace

Launcher launcher_by(const std::string& word, const std::string& file, const std::string& version) {
    const std::string name = base_name(word);
    if (name == "horovodrun") return Launcher::kPassesOn;
    if (name == "srun") return Launcher::kSrun;
    const auto family = [](const std::string& program) {
        if (is_one_of(program, {"orterun", "prterun", "mpirun.openmpi", "mpiexec.openmpi"})) {
            return Launcher::kOpenMpi;
        }
        if (is_one_of(program, {"mpiexec.hydra", "mpirun.mpich", "mpiexec.mpich"})) {
            return Launcher::kHydra;
        }
        return Launcher::kOther;
    };
    if (const Launcher known = family(name); known != Launcher::kOther) return known;
    if (name != "mpirun" && name != "mpiexec") return Launcher::kOther;
    if (const Launcher known = family(base_name(file)); known != Launcher::kOther) return known;
    if (contains(version, "Open MPI") || contains(version, "OpenRTE") ||
        contains(version, "PRRTE")) {
        return Launcher::kOpenMpi;
    }
    if (contains(version, "HYDRA") || contains(version, "Intel(R) MPI")) return Launcher::kHydra;
    return Launcher::kOther;
}

Launcher launcher_of(const Words& command, const Environment& environment) {
    const std::string& word = command.front();
    const std::string name = base_name(word);
    if (name != "mpirun" && name != "mpiexec") return launcher_by(word, "", "");
    const std::string path = contains(word, "/") ? word : find_program(environment, word);
    char* resolved = path.empty() ? nullptr : ::realpath(path.c_str(), nullptr);
    const std::string file = resolved != nullptr ? resolved : "";
    std::free(resolved);
    const Launcher known = launcher_by(word, file, "");
    if (known != Launcher::kOther || file.empty()) return known;
    return launcher_by(word, file, said_by(path));
}

Forwarding forward_to_ranks(Words command, Environment environment, Launcher launcher) {
    Forwarding result{std::move(command), std::move(environment), {}, false};
    result.several_hosts = launcher != Launcher::kOther && names_hosts(result.command, launcher);
    switch (launcher) {
        case Launcher::kOpenMpi:
            pass_open_mpi(result);
            break;
        case Launcher::kHydra:
            pass_hydra(result);
            break;
        case Launcher::kSrun:
            pass_srun(result);
            break;
        case Launcher::kPassesOn:
        case Launcher::kOther:
            break;
    }
    return result;
}

}  // namespace crossover::command
