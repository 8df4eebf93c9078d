// SPDX-License-Identifier: Apache-2.0
// recorder_kernel_names: reads names from standard input, one a line, and prints those that the
// library would not take for a kernel of NCCL's. For scripts/check-coverage, so that the rule
// exists once.
#include <iostream>
#include <string>

#include "shim/gate/nccl_names.hpp"

int main() {
    for (std::string name; std::getline(std::cin, name);) {
        if (crossover::kernel_name(name) == crossover::KernelName::kOther) {
            std::cout << name << '\n';
        }
    }
    return 0;
}
