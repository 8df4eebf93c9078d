// SPDX-License-Identifier: Apache-2.0
// recorder_call LIBRARY FUNCTION[:ARGUMENT,...]...
// Loads a library as Python does (RTLD_LOCAL) and calls functions of it that make it look up the
// driver. An argument is a number, or p for a zeroed buffer of its own. What the functions return
// does not matter; that they return does.
#include <dlfcn.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <string>

int main(int count, char** arguments) {
    if (count < 3) {
        std::fprintf(stderr, "usage: %s LIBRARY FUNCTION[:ARGUMENT,...]...\n", arguments[0]);
        return 2;
    }
    void* library = dlopen(arguments[1], RTLD_LAZY | RTLD_LOCAL);
    if (library == nullptr) {
        std::fprintf(stderr, "%s\n", dlerror());
        return 3;
    }
    std::deque<std::array<char, 65536>> buffers;
    for (int index = 2; index < count; ++index) {
        std::string call = arguments[index];
        std::array<long, 6> values{};
        const std::size_t colon = call.find(':');
        std::size_t used = 0;
        for (std::size_t at = colon; at != std::string::npos && used < values.size();
             at = call.find(',', at + 1)) {
            if (call.compare(at + 1, 1, "p") == 0) {
                values[used++] = reinterpret_cast<long>(buffers.emplace_back().data());
            } else {
                values[used++] = std::atol(call.c_str() + at + 1);
            }
        }
        call.resize(colon == std::string::npos ? call.size() : colon);
        void* function = dlsym(library, call.c_str());
        if (function == nullptr) {
            std::fprintf(stderr, "%s\n", dlerror());
            return 4;
        }
        const int result = reinterpret_cast<int (*)(long, long, long, long, long, long)>(function)(
            values[0], values[1], values[2], values[3], values[4], values[5]);
        std::printf("%s returned %d\n", call.c_str(), result);
    }
    return 0;
}
