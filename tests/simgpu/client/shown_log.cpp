// SPDX-License-Identifier: Apache-2.0
#include "shown_log.hpp"

#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstdlib>
#include <cstring>

namespace simgpu {

void ShownLog::open(const std::string& dir) {
    const char* const asked = std::getenv("SIMGPU_SHOWN");
    if (asked != nullptr && std::strcmp(asked, "1") == 0)
        path_ = dir + "/shown." + std::to_string(::getpid()) + ".jsonl";
}

bool ShownLog::write() {
    if (path_.empty()) return true;
    const std::lock_guard lock(mutex_);
    std::FILE* const file = std::fopen(path_.c_str(), "we");
    if (file == nullptr) return false;
    for (const auto& [op, shown_ns] : shown_)
        std::fprintf(file, "{\"op\":%" PRIu64 ",\"shown_ns\":%" PRIu64 "}\n", op, shown_ns);
    shown_.clear();
    const bool good = std::ferror(file) == 0;
    return std::fclose(file) == 0 && good;
}

}  // namespace simgpu
