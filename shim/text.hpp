// SPDX-License-Identifier: Apache-2.0
// Comparing names without the C library's functions. dlsym may be called while a sanitizer replaces
// those by its own and cannot answer yet, so nothing on the way of a look-up may call them. Names
// only.
#pragma once

namespace crossover {

constexpr bool same_text(const char* one, const char* other) noexcept {
    while (*one != '\0' && *one == *other) {
        ++one;
        ++other;
    }
    return *one == *other;
}

constexpr bool starts_with(const char* text, const char* start) noexcept {
    while (*start != '\0' && *text == *start) {
        ++text;
        ++start;
    }
    return *start == '\0';
}

// What follows the last slash.
constexpr const char* file_of_path(const char* path) noexcept {
    const char* file = path;
    for (; *path != '\0'; ++path) {
        if (*path == '/') {
            file = path + 1;
        }
    }
    return file;
}

}  // namespace crossover
