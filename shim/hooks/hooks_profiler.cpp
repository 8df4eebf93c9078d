// SPDX-License-Identifier: Apache-2.0
// NCCL's profiler interface as a source of collectives where neither its calls nor its kernels'
// names tell of them: the tables that NCCL looks up, and dlopen, through which it is led to them.
// Tells detection what NCCL reports; no policy, no CUDA or NCCL header, nothing kept of the events.
//
// NCCL asks dlopen for "libnccl-profiler.so" where the user has named no profiler
// (NCCL_PROFILER_PLUGIN), and that alone is answered with this library, and only when no such file
// is found: whatever the user has chosen comes first, and no environment is touched. Every other
// dlopen is handed on by a tail jump with the caller's return address in place, because RUNPATH,
// $ORIGIN and namespaces are those of the caller. No allocation, no lock, no logging on that path.
#include <dlfcn.h>
#include <limits.h>

#include <atomic>
#include <cstdint>
#include <cstring>

#include "shim/gate/detection.hpp"
#include "shim/gate/process.hpp"
#include "shim/inference/history.hpp"
#include "shim/nccl_profiler.hpp"
#include "shim/resolve.hpp"

namespace profiler = crossover::profiler;
using crossover::ThreadState;

// ------------------------------------------------------------------------------------- the tables

namespace {

// NCCL hands a handle back at the event's end, and skips that for none.
char launch_handle;
char group_handle;

constexpr int kMaskOld = static_cast<int>(profiler::kColl | profiler::kP2p);
constexpr int kMaskNew =
    static_cast<int>(profiler::kCollApi | profiler::kP2pApi | profiler::kKernelLaunch);

// Of NCCL's names for its types (ncclFloat32, ...), by their width in bits at the end.
std::uint64_t type_bytes(const char* name) noexcept {
    const std::size_t length = name == nullptr ? 0 : std::strlen(name);
    const auto ends_with = [&](const char* suffix) {
        const std::size_t size = std::strlen(suffix);
        return length >= size && std::strcmp(name + length - size, suffix) == 0;
    };
    if (ends_with("64")) {
        return 8;
    }
    if (ends_with("32")) {
        return 4;
    }
    return ends_with("16") ? 2 : 1;
}

std::uint64_t number_of(const char* text) noexcept {
    std::uint64_t number = 0;
    for (; text != nullptr && *text != '\0'; ++text) {
        number = crossover::mix_signature(number, static_cast<unsigned char>(*text));
    }
    return number;
}

void named(std::uint64_t id, int ranks) noexcept {
    crossover::communicator_made(&id, sizeof id, ranks);
}

// The communicator's own hash is its context: a stable number of it, and never none.
void* context_of(std::uint64_t id) noexcept { return reinterpret_cast<void*>(id | 1); }

profiler::Result init_v1(void** context, int* mask) {
    *context = context_of(0);
    *mask = kMaskOld;
    return profiler::kSuccess;
}

profiler::Result init_v4(void** context, int* mask, const char*, std::uint64_t hash, int, int ranks,
                         int, profiler::Logger) {
    named(hash, ranks);
    *context = context_of(hash);
    *mask = kMaskOld;
    return profiler::kSuccess;
}

profiler::Result init_v5(void** context, std::uint64_t id, int* mask, const char*, int, int ranks,
                         int, profiler::Logger) {
    named(id, ranks);
    *context = context_of(id);
    *mask = kMaskNew;
    return profiler::kSuccess;
}

profiler::Result start_old(void*, void** handle, void* descriptor) {
    *handle = nullptr;
    if (static_cast<const profiler::OldDescriptor*>(descriptor)->type == profiler::kGroup) {
        *handle = &group_handle;
        crossover::profiler_launch_was(crossover::thread_state());
    }
    return profiler::kSuccess;
}

profiler::Result start_new(void* context, void** handle, void* descriptor) {
    const auto& event = *static_cast<const profiler::Descriptor*>(descriptor);
    ThreadState& thread = crossover::thread_state();
    *handle = nullptr;
    const auto communicator = reinterpret_cast<std::uintptr_t>(context);
    switch (event.type) {
        case profiler::kKernelLaunch:
            *handle = &launch_handle;
            crossover::profiler_launch_began(thread);
            break;
        case profiler::kCollApi:
            crossover::profiler_call(thread, communicator,
                                     event.coll_api.count * type_bytes(event.coll_api.datatype),
                                     number_of(event.coll_api.function));
            break;
        case profiler::kP2pApi:
            crossover::profiler_call(thread, communicator,
                                     event.p2p_api.count * type_bytes(event.p2p_api.datatype),
                                     number_of(event.p2p_api.function));
            break;
        default:
            break;
    }
    return profiler::kSuccess;
}

profiler::Result stop(void* handle) {
    if (handle == &launch_handle) {
        crossover::profiler_launch_ended(crossover::thread_state());
    }
    return profiler::kSuccess;
}

profiler::Result record(void*, int, void*) { return profiler::kSuccess; }

profiler::Result finalize(void*) { return profiler::kSuccess; }

constexpr const char* kName = "crossover";

}  // namespace

#define CX_TABLE(version, Init, init, start)                                                       \
    extern "C" [[gnu::visibility("default")]] const profiler::Table<Init> ncclProfiler_v##version; \
    const profiler::Table<Init> ncclProfiler_v##version = {kName, &init,   &(start),               \
                                                           &stop, &record, &finalize};
CX_TABLE(1, profiler::InitV1, init_v1, start_old)
CX_TABLE(2, profiler::InitV1, init_v1, start_old)
CX_TABLE(3, profiler::InitV1, init_v1, start_old)
CX_TABLE(4, profiler::InitV4, init_v4, start_old)
CX_TABLE(5, profiler::InitV5, init_v5, start_new)
CX_TABLE(6, profiler::InitV5, init_v5, start_new)
#undef CX_TABLE

// -------------------------------------------------------------------------------------- dlopen

namespace {

using DlopenFunction = void* (*)(const char* name, int flags);

constexpr const char* kDefaultProfiler = "libnccl-profiler.so";

DlopenFunction real_dlopen() noexcept {
    static std::atomic<DlopenFunction> found{nullptr};
    DlopenFunction function = found.load(std::memory_order_acquire);
    if (function == nullptr) {
        function = reinterpret_cast<DlopenFunction>(crossover::real_dlsym()(RTLD_NEXT, "dlopen"));
        found.store(function, std::memory_order_release);
    }
    return function;
}

// As NCCL's own RUNPATH would find it, of which $ORIGIN is the usual one.
void* open_beside(const void* caller, const char* name, int flags) noexcept {
    Dl_info info{};
    if (dladdr(caller, &info) == 0 || info.dli_fname == nullptr) {
        return nullptr;
    }
    const char* slash = std::strrchr(info.dli_fname, '/');
    const std::size_t folder =
        slash == nullptr ? 0 : static_cast<std::size_t>(slash - info.dli_fname) + 1;
    char path[PATH_MAX];
    if (folder == 0 || folder + std::strlen(name) >= sizeof path) {
        return nullptr;
    }
    std::memcpy(path, info.dli_fname, folder);
    std::strcpy(path + folder, name);
    return real_dlopen()(path, flags);
}

void* open_profiler(const char* name, int flags, const void* caller) noexcept {
    void* theirs = real_dlopen()(name, flags);
    if (theirs == nullptr) {
        theirs = open_beside(caller, name, flags);
    }
    Dl_info own{};
    if (theirs != nullptr || !crossover::following() || dladdr(&launch_handle, &own) == 0) {
        return theirs;
    }
    return real_dlopen()(own.dli_fname, flags | RTLD_NOLOAD);
}

}  // namespace

// Chooses where the exported dlopen jumps; the caller's address is its third argument there.
extern "C" [[gnu::visibility("hidden"), gnu::used]] void* crossover_pick_dlopen(
    const char* name) noexcept {
    if (name != nullptr && std::strcmp(name, kDefaultProfiler) == 0) {
        return reinterpret_cast<void*>(&open_profiler);
    }
    return reinterpret_cast<void*>(real_dlopen());
}

#if defined(__x86_64__)
asm(R"(
    .text
    .globl dlopen
    .type dlopen, @function
dlopen:
    .cfi_startproc
    pushq %rdi
    .cfi_adjust_cfa_offset 8
    pushq %rsi
    .cfi_adjust_cfa_offset 8
    subq $8, %rsp
    .cfi_adjust_cfa_offset 8
    call crossover_pick_dlopen
    addq $8, %rsp
    .cfi_adjust_cfa_offset -8
    popq %rsi
    .cfi_adjust_cfa_offset -8
    popq %rdi
    .cfi_adjust_cfa_offset -8
    movq (%rsp), %rdx
    jmp *%rax
    .cfi_endproc
    .size dlopen, .-dlopen
)");
#elif defined(__aarch64__)
asm(R"(
    .text
    .globl dlopen
    .type dlopen, %function
dlopen:
    .cfi_startproc
    stp x29, x30, [sp, #-32]!
    .cfi_def_cfa_offset 32
    .cfi_offset 29, -32
    .cfi_offset 30, -24
    stp x0, x1, [sp, #16]
    bl crossover_pick_dlopen
    mov x16, x0
    ldp x0, x1, [sp, #16]
    ldp x29, x30, [sp], #32
    .cfi_restore 30
    .cfi_restore 29
    .cfi_def_cfa_offset 0
    mov x2, x30
    br x16
    .cfi_endproc
    .size dlopen, .-dlopen
)");
#else
#error "dlopen needs a tail jump for this architecture"
#endif
