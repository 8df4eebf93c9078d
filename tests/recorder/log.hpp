// SPDX-License-Identifier: Apache-2.0
// The record: one line, one write, to the file that RECORDER_LOG names. Shared by the recording
// driver and the observer, which are loaded into the same process. No CUDA header here.
#pragma once

#include <dlfcn.h>
#include <fcntl.h>
#include <unistd.h>

#include <cstdarg>
#include <cstdio>
#include <cstdlib>

namespace recorder {

// Appends a line; any thread. Without RECORDER_LOG nothing is written.
[[gnu::format(printf, 1, 2)]] inline void record(const char* format, ...) {
    static const int file = [] {
        const char* path = std::getenv("RECORDER_LOG");
        return path == nullptr ? -1 : open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    }();
    char line[1024];
    std::va_list arguments;
    va_start(arguments, format);
    const int length = std::vsnprintf(line, sizeof line - 1, format, arguments);
    va_end(arguments);
    if (file < 0 || length < 0) {
        return;
    }
    const std::size_t used =
        static_cast<std::size_t>(length) < sizeof line - 1 ? length : sizeof line - 2;
    line[used] = '\n';
    if (write(file, line, used + 1) < 0) {
        std::abort();  // a test's record must not be lost in silence
    }
}

// What an address belongs to: the file name of its library and its exported name ("-" without one).
struct Owner {
    const char* library = "-";
    const char* name = "-";
    const void* start = nullptr;
};

inline Owner owner_of(const void* address) {
    Dl_info info{};
    Owner owner;
    if (address == nullptr || dladdr(address, &info) == 0) {
        return owner;
    }
    owner.library = info.dli_fname;
    for (const char* at = info.dli_fname; *at != '\0'; ++at) {
        if (*at == '/') {
            owner.library = at + 1;
        }
    }
    if (info.dli_sname != nullptr) {
        owner.name = info.dli_sname;
        owner.start = info.dli_saddr;
    }
    return owner;
}

}  // namespace recorder
