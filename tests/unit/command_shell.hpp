// SPDX-License-Identifier: Apache-2.0
// Runs programs for process tests and keeps what they said. Not for the product.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace crossover::command {

struct Said {
    int wait_status = 0;
    std::string out;
    std::string err;
    int exit_status() const;  // -1 when it ended by a signal
    int signal() const;       // 0 when it did not
};

// Runs a program (no shell) with the caller's environment, `with` set over it and all other
// CROSSOVER_*, SIMGPU_* and LD_PRELOAD removed.
Said run_program_of(const std::vector<std::string>& words,
                    const std::vector<std::string>& with = {});

// Starts one and goes on; collect() waits for it.
class Started {
  public:
    Started(const std::vector<std::string>& words, const std::vector<std::string>& with = {});
    ~Started();
    Started(const Started&) = delete;
    Started& operator=(const Started&) = delete;
    pid_t pid() const { return pid_; }
    Said collect();

  private:
    pid_t pid_ = 0;
    std::string folder_;
};

// A new folder of mode 0700 below the temporary folder, removed in the end.
class ScratchFolder {
  public:
    ScratchFolder();
    ~ScratchFolder();
    ScratchFolder(const ScratchFolder&) = delete;
    ScratchFolder& operator=(const ScratchFolder&) = delete;
    const std::string& path() const { return path_; }

  private:
    std::string path_;
};

std::string content_of(const std::string& path);

}  // namespace crossover::command
