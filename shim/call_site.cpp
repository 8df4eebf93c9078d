// SPDX-License-Identifier: Apache-2.0
#include "shim/call_site.hpp"

#include <dlfcn.h>

#include <cstdio>
#include <cstring>

#define UNW_LOCAL_ONLY
#include <libunwind.h>

namespace crossover {

namespace {

constexpr int kFramesShown = 3;
constexpr int kFramesWalked = 64;

const char* base_name(const char* path) noexcept {
    const char* slash = std::strrchr(path, '/');
    return slash == nullptr ? path : slash + 1;
}

}  // namespace

void describe_call_site(char* text, std::size_t bytes) noexcept {
    if (bytes == 0) {
        return;
    }
    text[0] = '\0';
    Dl_info self{};
    ::dladdr(reinterpret_cast<void*>(&describe_call_site), &self);
    unw_context_t context;
    unw_cursor_t cursor;
    if (unw_getcontext(&context) != 0 || unw_init_local(&cursor, &context) != 0) {
        return;
    }
    std::size_t used = 0;
    int shown = 0;
    for (int walked = 0; walked < kFramesWalked && shown < kFramesShown && unw_step(&cursor) > 0;
         ++walked) {
        unw_word_t address = 0;
        unw_get_reg(&cursor, UNW_REG_IP, &address);
        Dl_info place{};
        const bool known = ::dladdr(reinterpret_cast<void*>(address), &place) != 0;
        if (known && place.dli_fbase == self.dli_fbase) {
            continue;
        }
        char function[96] = "?";
        unw_word_t offset = 0;
        unw_get_proc_name(&cursor, function, sizeof function, &offset);
        const int length =
            std::snprintf(text + used, bytes - used, "%s%s+0x%lx (%s)", shown == 0 ? "" : " < ",
                          function, static_cast<unsigned long>(offset),
                          known && place.dli_fname != nullptr ? base_name(place.dli_fname) : "?");
        if (length < 0 || static_cast<std::size_t>(length) >= bytes - used) {
            return;  // cut, and closed by snprintf
        }
        used += static_cast<std::size_t>(length);
        ++shown;
    }
}

}  // namespace crossover
