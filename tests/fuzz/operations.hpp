// SPDX-License-Identifier: Apache-2.0
// Numbers of the steps in an input of transitions_fuzz: a byte each, then a slot and an argument.
// Shared with the seeds, no behaviour.
#pragma once

#include <cstdint>

namespace crossover::fuzz {

enum Operation : std::uint8_t {
    kAttach,
    kDetach,
    kReap,
    kRequest,
    kWithdraw,
    kRelease,
    kExpire,
    kRekey,
    kRepair,
    kPass,  // time passes
    kLook,  // reads only
    kPhaseOver,
    kOperations
};

}  // namespace crossover::fuzz
