// SPDX-License-Identifier: Apache-2.0
// dlsym, so that look-ups by name get our functions too. Every other look-up is handed on by a tail
// jump, with the caller's return address in place: RTLD_NEXT and RTLD_DEFAULT are computed from it.
// No allocation, no lock and no logging on this path: allocators call dlsym while they start.
#include <dlfcn.h>

#include <cstring>

#include "shim/resolve.hpp"
#include "shim/wrapped.hpp"

namespace {

using crossover::DlsymFunction;

struct Name {
    const char* text;
    void* (*wrapped)(void* real);
};

constexpr Name kNames[] = {
#define CX_DRIVER(name, prototype) \
    {#name, static_cast<void* (*)(void*)>(&crossover::wrapped_driver_function)},
#include "shim/intercepts_driver.def"
#undef CX_DRIVER
#define CX_RUNTIME(name, prototype) {#name, &crossover::wrapped_runtime_function},
#include "shim/intercepts_runtime.def"
#undef CX_RUNTIME
#define CX_NCCL(name) {#name, &crossover::wrapped_nccl_function},
#include "shim/intercepts_nccl.def"
#undef CX_NCCL
};

const Name* known_name(const char* name) noexcept {
    if (name == nullptr ||
        (std::strncmp(name, "cu", 2) != 0 && std::strncmp(name, "nccl", 4) != 0 &&
         std::strncmp(name, "__cuda", 6) != 0)) {
        return nullptr;
    }
    for (const Name& each : kNames) {
        if (std::strcmp(each.text, name) == 0) {
            return &each;
        }
    }
    return nullptr;
}

// Replaces what the real look-up finds, but only if it is the very function we wrap: a library that
// forwards to another one under the same names keeps finding its own.
void* look_up_wrapped(void* handle, const char* name) noexcept {
    void* real = crossover::real_dlsym()(handle, name);
    const Name* known = real == nullptr ? nullptr : known_name(name);
    return known == nullptr ? real : known->wrapped(real);
}

}  // namespace

// Chooses where the exported dlsym jumps. Pseudo-handles depend on the caller and find our exported
// functions by the ordinary search order, so they always go to the real one.
extern "C" [[gnu::visibility("hidden"), gnu::used]] DlsymFunction crossover_pick_dlsym(
    void* handle, const char* name) noexcept {
    const DlsymFunction real = crossover::real_dlsym();
    if (handle == RTLD_NEXT || handle == RTLD_DEFAULT || known_name(name) == nullptr) {
        return real;
    }
    return &look_up_wrapped;
}

#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    .cfi_startproc
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call crossover_pick_dlsym
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    jmp *%rax
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlsym
    .type dlsym, %function
dlsym:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x0, x1, [sp, #16]
    bl crossover_pick_dlsym
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    br x16
    .cfi_endproc
    .size dlsym, .-dlsym
)");
#else
#error "dlsym needs a tail jump for this architecture"
#endif
