// SPDX-License-Identifier: Apache-2.0
// Entry of the `crossover` program. Everything stands in the commands' files.
#include <string>
#include <vector>

#include "command.hpp"

int main(int argc, char** argv) {
    const std::vector<std::string> arguments(argv + (argc > 0 ? 1 : 0), argv + argc);
    return crossover::command::run_program(arguments);
}
