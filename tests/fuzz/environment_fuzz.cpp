// SPDX-License-Identifier: Apache-2.0
// Any values of any variables that are read: options are as declared or refused with one line that
// names the variable; a job has the same identity every time, and a name that ends.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>

#include "arbiter/job_identity.hpp"
#include "arbiter/options.hpp"
#include "tests/fuzz/input.hpp"
#include "tests/fuzz/variables.hpp"

namespace crossover::fuzz {
namespace {

void must(bool holds, const char* what) {
    if (holds) return;
    std::fprintf(stderr, "does not hold: %s\n", what);
    std::abort();
}

// Every variable has a value of its own block, so that reading past its end is found.
std::string* values[kVariables];

char* look_up(const char* name) {
    for (std::size_t i = 0; i < kVariables; ++i) {
        if (std::strcmp(name, kNames[i]) == 0) {
            return values[i] == nullptr ? nullptr : values[i]->data();
        }
    }
    must(false, name);  // a variable that this test does not know: add it
    return nullptr;
}

[[maybe_unused]] bool in_choices(std::uint32_t index, const char* choices) {
    return index <=
           static_cast<std::uint32_t>(std::count(choices, choices + std::strlen(choices), '|'));
}

void check_options(const Options& options) {
#define CX_CHOICE(field, default_value, environment, choices, text) \
    must(in_choices(options.field, choices), environment);
#define CX_NUMBER(field, default_value, environment, minimum, maximum, text) \
    must(options.field + 1 > minimum && options.field <= maximum, environment " in range");
#define CX_TEXT(field, environment, longest, text) \
    must(std::memchr(options.field, '\0', sizeof options.field) != nullptr, environment " ends");
#include "crossover/options.def"
#undef CX_CHOICE
#undef CX_NUMBER
#undef CX_TEXT
}

void check_identity() {
    JobIdentity first;
    JobIdentity second;
    const IdentitySource source = identity_from_environment(look_up, first);
    must(identity_from_environment(look_up, second) == source, "the same source again");
    must(identity_source_name(source)[0] != '\0', "the source has a name");
    if (source == IdentitySource::kNone) {
        must(first.key == 0, "left alone");
        return;
    }
    must(first.key == second.key, "the same key again");
    must(first.key != 0, "a key");
    must(std::memchr(first.name, '\0', sizeof first.name) != nullptr, "the name ends");
    must(std::memcmp(first.name, second.name, sizeof first.name) == 0, "the same name again");
}

void run(const std::uint8_t* data, std::size_t size) {
    Input input(data, size);
    std::string given[kVariables];
    for (std::size_t i = 0; i < kVariables; ++i) {
        const std::uint8_t how = input.byte();
        values[i] = nullptr;
        if (how % 3 == 0) continue;
        given[i] = input.text();
        if (how % 3 == 2) {  // longer than any field
            std::string once = given[i];
            while (given[i].size() < 400 && !once.empty()) given[i] += once;
        }
        given[i].shrink_to_fit();
        values[i] = &given[i];
    }
    Options options;
    const Options before = options;
    // A small buffer as well: the line is cut, never longer.
    const std::size_t room = input.byte() % 2 == 0 ? 400 : 20;
    auto error = std::make_unique<char[]>(room);
    if (parse_environment(look_up, options, error.get(), room)) {
        check_options(options);
    } else {
        must(std::memcmp(&options, &before, sizeof options) == 0, "options left alone");
        const char* end = static_cast<const char*>(std::memchr(error.get(), '\0', room));
        must(end != nullptr && end != error.get(), "the line ends");
        must(std::none_of(static_cast<const char*>(error.get()), end,
                          [](char c) { return (c >= 0 && c < ' ') || c == 127; }),
             "one line, without control characters");
        must(std::any_of(std::begin(kNames), std::end(kNames),
                         [&](const char* name) {
                             const std::size_t shown =
                                 std::min(std::strlen(name), static_cast<std::size_t>(room - 1));
                             return std::strncmp(error.get(), name, shown) == 0;
                         }),
             "the line begins with the variable");
    }
    check_identity();
}

}  // namespace
}  // namespace crossover::fuzz

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
    crossover::fuzz::run(data, size);
    return 0;
}
