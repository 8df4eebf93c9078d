// SPDX-License-Identifier: Apache-2.0
// Finds libcrossover.so: see library.hpp.
#include "library.hpp"

#include <unistd.h>

#include <filesystem>
#include <system_error>

#include "command.hpp"

namespace crossover::command {
namespace {

namespace fs = std::filesystem;

bool readable_file(const fs::path& path) {
    std::error_code error;
    return fs::is_regular_file(path, error) && ::access(path.c_str(), R_OK) == 0;
}

}  // namespace

std::string find_library(const std::string& asked) {
    std::error_code error;
    if (!asked.empty()) {
        const fs::path path = fs::absolute(asked, error);
        if (error || !readable_file(path)) {
            throw UsageError("--library '" + asked + "' is not a readable file");
        }
        return path.lexically_normal();
    }
    const fs::path program = fs::read_symlink("/proc/self/exe", error);
    if (error) {
        throw UsageError("cannot find libcrossover.so: /proc is not mounted; give --library FILE");
    }
    const fs::path folder = program.parent_path();
    std::string looked;
    for (const char* relative : {"../lib", "../" CX_LIBRARY_FOLDER, "."}) {
        const fs::path path = (folder / relative / "libcrossover.so").lexically_normal();
        if (readable_file(path)) {
            return path;
        }
        if (looked.find(path.string()) == std::string::npos) {
            looked += (looked.empty() ? "" : ", ") + path.string();
        }
    }
    throw UsageError("libcrossover.so is missing: looked for " + looked + "; give --library FILE");
}

}  // namespace crossover::command
