// SPDX-License-Identifier: Apache-2.0
// Conversations with nvidia-cuda-mps-control, as its manual documents them. Every one has a bound.
#pragma once

#include <optional>
#include <string>

#include "launch.hpp"

namespace crossover::command {

class MpsControl {
  public:
    // `pipe_folder`: CUDA_MPS_PIPE_DIRECTORY of the daemon meant; logs go beside it.
    MpsControl(Environment environment, const std::string& pipe_folder,
               const std::string& log_folder);

    // Starts a daemon that sees all GPUs, with nothing of this program's preloads. False where the
    // program says no, and `fault` has its words.
    bool start(std::string& fault) const;
    // A daemon answers.
    bool answers() const;
    // Number of programs connected to it; nothing where it does not answer.
    std::optional<std::size_t> clients() const;
    // Asks it to end.
    bool quit() const;

  private:
    std::optional<std::string> ask(const std::string& text) const;
    Environment environment_;
};

// First executable of that name on the environment's PATH, or empty.
std::string find_program(const Environment& environment, const std::string& name);

}  // namespace crossover::command
