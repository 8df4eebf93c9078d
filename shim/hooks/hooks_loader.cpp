// SPDX-License-Identifier: Apache-2.0
// dlsym and dlvsym, so that look-ups by name get our functions too. Every other look-up is handed
// on by a tail jump, with the caller's return address in place: RTLD_NEXT and RTLD_DEFAULT are
// computed from it. No allocation, no lock and no logging on this path: allocators call dlsym while
// they start.
#include <dlfcn.h>

#include <algorithm>
#include <array>

#include "shim/resolve.hpp"
#include "shim/text.hpp"
#include "shim/wrapped.hpp"

namespace {

using crossover::DlsymFunction;
using crossover::DlvsymFunction;

enum class Library { kDriver, kRuntime, kNccl };

struct Name {
    const char* text;
    Library library;
};

// Below, at or above zero, as the first stands before, at or behind the other.
constexpr int order_of(const char* one, const char* other) noexcept {
    while (*one != '\0' && *one == *other) {
        ++one;
        ++other;
    }
    return *one - *other;
}

constexpr bool before(const Name& one, const Name& other) noexcept {
    return order_of(one.text, other.text) < 0;
}

constexpr auto kNames = [] {
    auto names = std::to_array<Name>({
#define CX_DRIVER(name, prototype) {#name, Library::kDriver},
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
#define CX_RUNTIME(name, prototype) {#name, Library::kRuntime},
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
#define CX_NCCL(name) {#name, Library::kNccl},
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
    });
    std::sort(names.begin(), names.end(), &before);
    return names;
}();

const Name* known_name(const char* name) noexcept {
    if (name == nullptr ||
        (!crossover::starts_with(name, "cu") && !crossover::starts_with(name, "nccl") &&
         !crossover::starts_with(name, "__cuda"))) {
        return nullptr;
    }
    std::size_t low = 0;
    std::size_t high = kNames.size();
    while (low < high) {
        const std::size_t middle = (low + high) / 2;
        const int order = order_of(kNames[middle].text, name);
        if (order == 0) {
            return &kNames[middle];
        }
        (order < 0 ? low : high) = order < 0 ? middle + 1 : middle;
    }
    return nullptr;
}

bool has(const Name& name, const char* version) noexcept {
    switch (name.library) {
        case Library::kDriver:
            return crossover::driver_has(name.text);
        case Library::kRuntime:
            return crossover::runtime_has(name.text, version);
        case Library::kNccl:
            return crossover::nccl_has(name.text);
    }
    return false;
}

void* wrapped(const Name& name, void* real) noexcept {
    switch (name.library) {
        case Library::kDriver:
            return crossover::wrapped_driver_function(real);
        case Library::kRuntime:
            return crossover::wrapped_runtime_function(real);
        case Library::kNccl:
            return crossover::wrapped_nccl_function(real);
    }
    return real;
}

// Whether the caller's own search may go on as it is: false where it would end at ours although
// there is no real function that it would have ended at.
bool would_find(void* handle, const Name& name, const char* version, const void* caller) noexcept {
    if (handle == RTLD_DEFAULT) {
        return has(name, version);
    }
    if (!crossover::comes_next_after(caller, name.text)) {
        return true;  // ours is not what it would end at
    }
    return (version == nullptr ? crossover::find_behind_us(name.text)
                               : crossover::find_behind_us(name.text, version)) != nullptr;
}

bool is_look_up(const char* name) noexcept {
    return name != nullptr &&
           (crossover::same_text(name, "dlsym") || crossover::same_text(name, "dlvsym"));
}

bool depends_on_caller(void* handle) noexcept {
    return handle == RTLD_NEXT || handle == RTLD_DEFAULT;
}

// One that is not ours, although ours comes before it: there is no real function behind ours.
void* past_us(void* handle, const char* name, const char* version, const void* caller) noexcept {
    if (handle == RTLD_DEFAULT) {
        void* found = version == nullptr ? crossover::real_dlsym()(RTLD_DEFAULT, name)
                                         : crossover::real_dlvsym()(RTLD_DEFAULT, name, version);
        if (found != nullptr && !crossover::is_ours(found)) {
            return found;
        }
        found = crossover::find_in_scope_of(caller, name, version);
        if (found != nullptr) {
            return found;
        }
    }
    // A miss is told by dlerror(), as the caller expects.
    void* behind = version == nullptr ? crossover::real_dlsym()(RTLD_NEXT, name)
                                      : crossover::real_dlvsym()(RTLD_NEXT, name, version);
    return crossover::is_ours(behind) ? nullptr : behind;
}

// Replaces what the real look-up finds, but only if it is the very function we wrap: a library that
// forwards to another one under the same names keeps finding its own.
void* replaced(const char* name, const char* version, void* real) noexcept {
    const Name* known = real == nullptr ? nullptr : known_name(name);
    if (known == nullptr) {
        return real;
    }
    if (crossover::is_ours(real)) {  // by the handle of the program itself
        return has(*known, version) ? real : past_us(RTLD_NEXT, name, version, nullptr);
    }
    return wrapped(*known, real);
}

// Where the exported functions jump for our names. Jumped to, so these see the caller's address.
void* look_up_replaced(void* handle, const char* name) noexcept {
    return replaced(name, nullptr, crossover::next_dlsym()(handle, name));
}
void* look_up_replaced_version(void* handle, const char* name, const char* version) noexcept {
    return replaced(name, version, crossover::next_dlvsym()(handle, name, version));
}
void* look_up_past_us(void* handle, const char* name) noexcept {
    return past_us(handle, name, nullptr, __builtin_return_address(0));
}
void* look_up_version_past_us(void* handle, const char* name, const char* version) noexcept {
    return past_us(handle, name, version, __builtin_return_address(0));
}

}  // namespace

// Choose where the exported functions jump. The caller's own search finds our exports in their
// place in the order, so that goes on to the real look-up.
extern "C" [[gnu::visibility("hidden"), gnu::used]] DlsymFunction crossover_pick_dlsym(
    void* handle, const char* name, const void* caller) noexcept {
    const Name* known = known_name(name);
    if (known == nullptr) {
        return crossover::next_dlsym();
    }
    if (!depends_on_caller(handle)) {
        return &look_up_replaced;
    }
    return would_find(handle, *known, nullptr, caller) ? crossover::next_dlsym() : &look_up_past_us;
}

extern "C" [[gnu::visibility("hidden"), gnu::used]] DlvsymFunction crossover_pick_dlvsym(
    void* handle, const char* name, const char* version, const void* caller) noexcept {
    if (handle == RTLD_NEXT && is_look_up(name)) {
        // A wrapper of dlsym before us looks for the next one. Ours has no version; without one it
        // is found in its place in the order. The third argument is not looked at.
        return reinterpret_cast<DlvsymFunction>(reinterpret_cast<void*>(crossover::real_dlsym()));
    }
    const Name* known = known_name(name);
    if (known == nullptr) {
        return crossover::next_dlvsym();
    }
    if (!depends_on_caller(handle)) {
        return &look_up_replaced_version;
    }
    return would_find(handle, *known, version, caller) ? crossover::next_dlvsym()
                                                       : &look_up_version_past_us;
}

// `caller` is the register of pick's last argument, which gets the return address.
#if defined(__x86_64__)
#define CX_THIRD rdx
#define CX_FOURTH rcx
#define CX_TAIL_JUMP(name, pick, caller)     \
    asm(".text\n"                            \
        ".globl " #name                      \
        "\n"                                 \
        ".type " #name ", @function\n" #name \
        ":\n"                                \
        "    .cfi_startproc\n"               \
        "    endbr64\n"                      \
        "    pushq %rdi\n"                   \
        "    .cfi_adjust_cfa_offset 8\n"     \
        "    pushq %rsi\n"                   \
        "    .cfi_adjust_cfa_offset 8\n"     \
        "    pushq %rdx\n"                   \
        "    .cfi_adjust_cfa_offset 8\n"     \
        "    movq 24(%rsp), %" #caller       \
        "\n"                                 \
        "    call " #pick                    \
        "\n"                                 \
        "    popq %rdx\n"                    \
        "    .cfi_adjust_cfa_offset -8\n"    \
        "    popq %rsi\n"                    \
        "    .cfi_adjust_cfa_offset -8\n"    \
        "    popq %rdi\n"                    \
        "    .cfi_adjust_cfa_offset -8\n"    \
        "    jmp *%rax\n"                    \
        "    .cfi_endproc\n"                 \
        "    .size " #name ", .-" #name "\n")
#elif defined(__aarch64__)
#define CX_THIRD x2
#define CX_FOURTH x3
#define CX_TAIL_JUMP(name, pick, caller)     \
    asm(".text\n"                            \
        ".globl " #name                      \
        "\n"                                 \
        ".type " #name ", %function\n" #name \
        ":\n"                                \
        "    .cfi_startproc\n"               \
        "    hint #34\n" /* a landing pad */ \
        "    stp x29, x30, [sp, #-48]!\n"    \
        "    .cfi_def_cfa_offset 48\n"       \
        "    .cfi_offset 29, -48\n"          \
        "    .cfi_offset 30, -40\n"          \
        "    stp x0, x1, [sp, #16]\n"        \
        "    str x2, [sp, #32]\n"            \
        "    mov " #caller                   \
        ", x30\n"                            \
        "    bl " #pick                      \
        "\n"                                 \
        "    mov x16, x0\n"                  \
        "    ldp x0, x1, [sp, #16]\n"        \
        "    ldr x2, [sp, #32]\n"            \
        "    ldp x29, x30, [sp], #48\n"      \
        "    .cfi_restore 30\n"              \
        "    .cfi_restore 29\n"              \
        "    .cfi_def_cfa_offset 0\n"        \
        "    br x16\n"                       \
        "    .cfi_endproc\n"                 \
        "    .size " #name ", .-" #name "\n")
#else
#error "dlsym needs a tail jump for this architecture"
#endif

#define CX_LOOK_UP(name, pick, caller) CX_TAIL_JUMP(name, pick, caller)
CX_LOOK_UP(dlsym, crossover_pick_dlsym, CX_THIRD);
CX_LOOK_UP(dlvsym, crossover_pick_dlvsym, CX_FOURTH);
