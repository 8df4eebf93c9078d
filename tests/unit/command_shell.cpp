// SPDX-License-Identifier: Apache-2.0
// Running programs in process tests: see command_shell.hpp.
#include "command_shell.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <sstream>

#include "launch.hpp"

namespace crossover::command {
namespace {

Environment clean_environment(const std::vector<std::string>& with) {
    const Environment process = Environment::of_process();
    Environment environment;
    for (const std::string& entry : process.entries()) {
        const std::string name = entry.substr(0, entry.find('='));
        if (!name.starts_with("CROSSOVER") && !name.starts_with("SIMGPU_") &&
            name != "LD_PRELOAD" && name != "CUDA_MPS_PIPE_DIRECTORY") {
            environment.set(name, entry.substr(name.size() + 1));
        }
    }
    // Sanitized builds: the players have the runtime linked in, and a library preloaded before it.
    environment.set("ASAN_OPTIONS",
                    environment.get("ASAN_OPTIONS").value_or("") + ":verify_asan_link_order=0");
    for (const std::string& entry : with) {
        environment.set(entry.substr(0, entry.find('=')), entry.substr(entry.find('=') + 1));
    }
    return environment;
}

std::string new_folder() {
    std::string pattern =
        std::filesystem::temp_directory_path().string() + "/crossover-test-XXXXXX";
    if (::mkdtemp(pattern.data()) == nullptr) {
        ADD_FAILURE() << "no folder " << pattern;
    }
    return pattern;
}

}  // namespace

int Said::exit_status() const { return WIFEXITED(wait_status) ? WEXITSTATUS(wait_status) : -1; }
int Said::signal() const { return WIFSIGNALED(wait_status) ? WTERMSIG(wait_status) : 0; }

std::string content_of(const std::string& path) {
    std::ifstream in(path);
    std::ostringstream text;
    text << in.rdbuf();
    return text.str();
}

Started::Started(const std::vector<std::string>& words, const std::vector<std::string>& with)
    : folder_(new_folder()) {
    Environment environment = clean_environment(with);
    const std::vector<char*> entries = environment.pointers();
    std::vector<std::string> copies = words;
    std::vector<char*> pointers;
    for (std::string& word : copies) {
        pointers.push_back(word.data());
    }
    pointers.push_back(nullptr);
    const std::string out = folder_ + "/out";
    const std::string err = folder_ + "/err";
    pid_ = ::fork();
    if (pid_ == 0) {
        const int out_file = ::open(out.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        const int err_file = ::open(err.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
        ::dup2(out_file, STDOUT_FILENO);
        ::dup2(err_file, STDERR_FILENO);
        ::execvpe(pointers.front(), pointers.data(), entries.data());
        ::_exit(125);
    }
}

Said Started::collect() {
    Said said;
    if (pid_ > 0) {
        EXPECT_EQ(::waitpid(pid_, &said.wait_status, 0), pid_);
        pid_ = 0;
        said.out = content_of(folder_ + "/out");
        said.err = content_of(folder_ + "/err");
    }
    return said;
}

Started::~Started() {
    if (pid_ > 0) {
        ::kill(pid_, SIGKILL);
        ::waitpid(pid_, nullptr, 0);
    }
    std::error_code error;
    std::filesystem::remove_all(folder_, error);
}

Said run_program_of(const std::vector<std::string>& words, const std::vector<std::string>& with) {
    Started started(words, with);
    return started.collect();
}

ScratchFolder::ScratchFolder() : path_(new_folder()) {}

ScratchFolder::~ScratchFolder() {
    std::error_code error;
    std::filesystem::remove_all(path_, error);
}

}  // namespace crossover::command
