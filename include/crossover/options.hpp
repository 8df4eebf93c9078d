// SPDX-License-Identifier: Apache-2.0
// The options of options.def as a plain structure. Parsing stands in arbiter/options.hpp.
#pragma once

#include <cstdint>

namespace crossover {

struct Options {
#define CX_CHOICE(field, default_value, environment, choices, text) \
    std::uint32_t field = default_value;
#define CX_NUMBER(field, default_value, environment, minimum, maximum, text) \
    std::uint64_t field = default_value;
#define CX_TEXT(field, environment, longest, text) char field[(longest) + 1] = {};
#include "crossover/options.def"
#undef CX_CHOICE
#undef CX_NUMBER
#undef CX_TEXT
};

enum class Mode : std::uint32_t { kOff = 0, kOn = 1, kObserve = 2 };
enum class GateKind : std::uint32_t { kCpu = 0, kStream = 1, kAuto = 2 };
enum class LogLevel : std::uint32_t { kNone = 0, kFault = 1, kInfo = 2, kDebug = 3 };

}  // namespace crossover
