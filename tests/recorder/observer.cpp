// SPDX-License-Identifier: Apache-2.0
// Preloaded before libcrossover.so: notes what the vendor's libraries get from dlsym and
// cuGetProcAddress, and what the driver alone would have given. It changes no answer but one: a
// cuGetProcAddress that is handed out is replaced by one of the observer's, which notes and passes
// on. Nothing here judges; scripts/handshake does.
#include <cstring>

#include "tests/recorder/log.hpp"

namespace {

using Dlsym = void* (*)(void*, const char*);
using LookUpV1 = int (*)(const char*, void**, int, unsigned long);
using LookUpV2 = int (*)(const char*, void**, int, unsigned long, int*);

Dlsym libc_dlsym() {
    static const Dlsym found = [] {
        void* symbol = dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.34");
        return reinterpret_cast<Dlsym>(
            symbol != nullptr ? symbol : dlvsym(RTLD_NEXT, "dlsym", "GLIBC_2.2.5"));
    }();
    return found;
}

// The dlsym that the process would use without the observer.
Dlsym next_dlsym() {
    static const Dlsym found = [] {
        const Dlsym libc = libc_dlsym();
        void* symbol = libc(RTLD_NEXT, "dlsym");
        return symbol == nullptr ? libc : reinterpret_cast<Dlsym>(symbol);
    }();
    return found;
}

// What the process was given at the last look-up of each, to be called by ours.
LookUpV1 given_v1;
LookUpV2 given_v2;

LookUpV2 driver_look_up() {
    void* driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
    return driver == nullptr
               ? nullptr
               : reinterpret_cast<LookUpV2>(libc_dlsym()(driver, "cuGetProcAddress_v2"));
}

int observed_v1(const char* symbol, void** function, int version, unsigned long flags);
int observed_v2(const char* symbol, void** function, int version, unsigned long flags, int* status);

void note(const char* how, const char* symbol, int version, unsigned long flags,
          const void* expected, const void* got, const void* caller) {
    const recorder::Owner real = recorder::owner_of(expected);
    const recorder::Owner owner = recorder::owner_of(got);
    recorder::record("look-up\t%s\t%s\t%d\t%lu\t%s\t%s\t%s\t%s", how, symbol, version, flags,
                     real.name, owner.library, owner.name, recorder::owner_of(caller).library);
}

// The answer itself, or the observer's twin of a cuGetProcAddress.
void* observed(void* got) {
    const recorder::Owner owner = recorder::owner_of(got);
    if (owner.start != got) {
        return got;
    }
    if (std::strcmp(owner.name, "cuGetProcAddress") == 0) {
        given_v1 = reinterpret_cast<LookUpV1>(got);
        return reinterpret_cast<void*>(&observed_v1);
    }
    if (std::strcmp(owner.name, "cuGetProcAddress_v2") == 0) {
        given_v2 = reinterpret_cast<LookUpV2>(got);
        return reinterpret_cast<void*>(&observed_v2);
    }
    return got;
}

void note_answer(const char* how, const char* symbol, void** function, int version,
                 unsigned long flags, int result, const void* caller) {
    void* expected = nullptr;
    const LookUpV2 real = driver_look_up();
    if (real != nullptr && real(symbol, &expected, version, flags, nullptr) != 0) {
        expected = nullptr;
    }
    void* got = result == 0 ? *function : nullptr;
    note(how, symbol, version, flags, expected, got, caller);
    if (got != nullptr) {
        *function = observed(got);
    }
}

int observed_v1(const char* symbol, void** function, int version, unsigned long flags) {
    const int result = given_v1(symbol, function, version, flags);
    note_answer("cuGetProcAddress", symbol, function, version, flags, result,
                __builtin_return_address(0));
    return result;
}

int observed_v2(const char* symbol, void** function, int version, unsigned long flags,
                int* status) {
    const int result = given_v2(symbol, function, version, flags, status);
    note_answer("cuGetProcAddress_v2", symbol, function, version, flags, result,
                __builtin_return_address(0));
    return result;
}

bool starts_with(const char* name, const char* start) {
    const std::size_t length = std::strlen(start);
    return std::strncmp(name, start, length) == 0 && name[length] >= 'A' && name[length] <= 'Z';
}

// Of the driver, the runtime or NCCL: cu[A-Z]…, cuda[A-Z]…, __cuda[A-Z]…, nccl[A-Z]….
bool of_interest(const char* name) {
    return name != nullptr && (starts_with(name, "cu") || starts_with(name, "cuda") ||
                               starts_with(name, "__cuda") || starts_with(name, "nccl"));
}

void* observed_dlsym(void* handle, const char* name) {
    void* got = next_dlsym()(handle, name);
    note("dlsym", name, 0, 0, libc_dlsym()(handle, name), got, __builtin_return_address(0));
    return observed(got);
}

}  // namespace

// Chooses where our dlsym jumps. A pseudo-handle is resolved from the caller's place, so those
// look-ups are only noted.
extern "C" [[gnu::visibility("hidden"), gnu::used]] Dlsym recorder_pick_dlsym(void* handle,
                                                                              const char* name) {
    if (!of_interest(name)) {
        return next_dlsym();
    }
    if (handle == RTLD_DEFAULT || handle == RTLD_NEXT) {
        recorder::record("pseudo\t%s", name);
        return next_dlsym();
    }
    return &observed_dlsym;
}

asm(R"(
    .text
    .globl dlsym
    .type dlsym, @function
dlsym:
    pushq %rdi
    pushq %rsi
    subq $8, %rsp
    call recorder_pick_dlsym
    addq $8, %rsp
    popq %rsi
    popq %rdi
    jmp *%rax
    .size dlsym, .-dlsym
)");
