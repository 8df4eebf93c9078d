// SPDX-License-Identifier: Apache-2.0
// The parser that options.def's rows drive. Nothing option-specific belongs here but the one check
// that a row cannot say.
#include "arbiter/options.hpp"

#include <stdio.h>

#include <cstring>

namespace crossover {
namespace {

constexpr int kShownBytes = 64;  // of a bad value

// The line may go to a terminal: no control characters from the environment.
struct Shown {
    char line[kShownBytes + 4];
    explicit Shown(const char* value) noexcept {
        std::size_t i = 0;
        for (; value[i] != '\0' && i < kShownBytes; ++i) {
            const auto c = static_cast<unsigned char>(value[i]);
            line[i] = c < 0x20 || c == 0x7F ? '?' : value[i];
        }
        std::memcpy(line + i, value[i] != '\0' ? "..." : "\0\0\0", 4);
    }
};

bool printable(const char* value) noexcept {
    for (; *value != '\0'; ++value) {
        const auto c = static_cast<unsigned char>(*value);
        if (c < 0x20 || c == 0x7F) return false;
    }
    return true;
}

bool parse_choice(const char* value, const char* choices, std::uint32_t& index) noexcept {
    const std::size_t length = std::strlen(value);
    std::uint32_t i = 0;
    for (const char* choice = choices;; ++i) {
        const char* end = std::strchr(choice, '|');
        const std::size_t size =
            end != nullptr ? static_cast<std::size_t>(end - choice) : std::strlen(choice);
        if (size == length && std::memcmp(choice, value, size) == 0) {
            index = i;
            return true;
        }
        if (end == nullptr) return false;
        choice = end + 1;
    }
}

// Digits only: no sign, space, base or unit, and nothing that overflows.
bool parse_number(const char* value, std::uint64_t minimum, std::uint64_t maximum,
                  std::uint64_t& number) noexcept {
    std::uint64_t parsed = 0;
    for (const char* digit = value; *digit != '\0'; ++digit) {
        if (*digit < '0' || *digit > '9') return false;
        const auto add = static_cast<std::uint64_t>(*digit - '0');
        if (parsed > (maximum - (add < maximum ? add : maximum)) / 10) return false;
        parsed = parsed * 10 + add;
    }
    if (parsed < minimum || parsed > maximum) return false;
    number = parsed;
    return true;
}

}  // namespace

bool parse_environment(EnvironmentLookup lookup, Options& options, char* error,
                       std::size_t error_bytes) noexcept {
    Options parsed;
    const char* value = nullptr;
    const auto given = [&](const char* name) {
        value = lookup(name);
        return value != nullptr && value[0] != '\0';
    };
#define CX_CHOICE(field, default_value, environment, choices, text)                 \
    if (given(environment) && !parse_choice(value, choices, parsed.field)) {        \
        snprintf(error, error_bytes, "%s is '%s'; allowed: one of %s", environment, \
                 Shown(value).line, choices);                                       \
        return false;                                                               \
    }
#define CX_NUMBER(field, default_value, environment, minimum, maximum, text)              \
    if (given(environment) && !parse_number(value, minimum, maximum, parsed.field)) {     \
        snprintf(error, error_bytes, "%s is '%s'; allowed: a whole number from %s to %s", \
                 environment, Shown(value).line, #minimum, #maximum);                     \
        return false;                                                                     \
    }
#define CX_TEXT(field, environment, longest, text)                                       \
    if (given(environment)) {                                                            \
        if (std::strlen(value) > (longest) || !printable(value)) {                       \
            snprintf(error, error_bytes,                                                 \
                     "%s is '%s'; allowed: at most %d bytes without control characters", \
                     environment, Shown(value).line, longest);                           \
            return false;                                                                \
        }                                                                                \
        std::memcpy(parsed.field, value, std::strlen(value) + 1);                        \
    }
#include "crossover/options.def"
#undef CX_CHOICE
#undef CX_NUMBER
#undef CX_TEXT
    // Ranks of one job may start in different folders.
    if (parsed.dir[0] != '\0' && parsed.dir[0] != '/') {
        snprintf(error, error_bytes, "CROSSOVER_DIR is '%s'; allowed: an absolute path",
                 Shown(parsed.dir).line);
        return false;
    }
    options = parsed;
    return true;
}

}  // namespace crossover
