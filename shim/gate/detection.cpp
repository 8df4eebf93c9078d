// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/detection.hpp"

#include <atomic>
#include <cstddef>
#include <new>

#include "shim/gate/driver_device.hpp"
#include "shim/inference/handle_map.hpp"
#include "shim/inference/history.hpp"

namespace crossover {

namespace {

enum class Verdict : std::uint32_t {
    kOther,    // by all that is known
    kLearned,  // as the profiler told at its last launch
    kNccl,     // by its name
    kHelper,   // NCCL's, by its name, but no communication
};

struct Function {
    std::atomic<Verdict> verdict{Verdict::kOther};
    std::atomic<std::uint32_t> generation{0};
};

std::atomic<std::uint32_t> generation{1};  // of handles: a new one whenever some became invalid

Verdict verdict_of(KernelName name) noexcept {
    switch (name) {
        case KernelName::kNccl:
            return Verdict::kNccl;
        case KernelName::kHelper:
            return Verdict::kHelper;
        case KernelName::kOther:
            break;
    }
    return Verdict::kOther;
}

// `otherwise` where the driver does not tell.
Verdict by_name(std::uintptr_t function, Verdict otherwise = Verdict::kOther) noexcept {
    const auto name = name_of_kernel(function);
    return name ? verdict_of(*name) : otherwise;
}

HandleMap<Function>& functions() noexcept {
    // Never destroyed: threads of the host may launch while the process exits.
    alignas(HandleMap<Function>) static std::byte place[sizeof(HandleMap<Function>)];
    static auto* const known = new (place) HandleMap<Function>(16384);
    return *known;
}

// nullptr when the table is full.
Function* find(std::uintptr_t function) noexcept {
    const std::uint32_t now = generation.load(std::memory_order_acquire);
    Function* known = functions().find(function);
    if (known == nullptr) {
        known = functions().find_or_add(function, [&](Function& fresh) {
            fresh.verdict.store(by_name(function), std::memory_order_relaxed);
            fresh.generation.store(now, std::memory_order_relaxed);
        });
    } else if (known->generation.load(std::memory_order_acquire) != now) {
        // Where the driver does not tell, a handle that is used again was looked up again; what was
        // learned of its former function is void.
        const Verdict before = known->verdict.load(std::memory_order_acquire);
        known->verdict.store(
            by_name(function, before == Verdict::kLearned ? Verdict::kOther : before),
            std::memory_order_release);
        known->generation.store(now, std::memory_order_release);
    }
    return known;
}

// By a look-up; the same may be looked up before each launch.
void set_verdict(std::uintptr_t function, Verdict verdict) noexcept {
    // Nothing is kept of the many functions that are nobody's.
    if (verdict == Verdict::kOther && functions().find(function) == nullptr) {
        return;
    }
    Function* known = find(function);
    if (known == nullptr) {
        return;
    }
    const Verdict before = known->verdict.load(std::memory_order_acquire);
    if (before != verdict && !(before == Verdict::kLearned && verdict == Verdict::kOther)) {
        known->verdict.store(verdict, std::memory_order_release);
    }
}

}  // namespace

bool is_communication(std::uintptr_t function, ThreadState& thread) noexcept {
    // What the profiler taught must be confirmed launch by launch.
    if (thread.unconfirmed != 0 && thread.unconfirmed_learned) {
        if (Function* last = find(thread.unconfirmed)) {
            Verdict learned = Verdict::kLearned;
            last->verdict.compare_exchange_strong(learned, Verdict::kOther);
        }
    }
    thread.unconfirmed = 0;
    const bool inside = thread.inside_nccl != 0;
    if (function == 0) {
        return inside;
    }
    Function* known = find(function);
    const Verdict verdict =
        known == nullptr ? by_name(function) : known->verdict.load(std::memory_order_acquire);
    if (verdict == Verdict::kNccl) {
        return true;
    }
    if (verdict == Verdict::kHelper || inside) {
        return verdict != Verdict::kHelper;
    }
    thread.unconfirmed = function;
    thread.unconfirmed_learned = verdict == Verdict::kLearned;
    return verdict == Verdict::kLearned;
}

void profiler_launch_began(ThreadState& thread) noexcept { ++thread.inside_nccl; }

void profiler_launch_ended(ThreadState& thread) noexcept {
    if (thread.inside_nccl != 0) {
        --thread.inside_nccl;
    }
    if (thread.nccl_depth == 0) {
        thread.call_carried = true;
    }
}

void profiler_launch_was(ThreadState& thread) noexcept {
    const std::uintptr_t function = thread.unconfirmed;
    thread.unconfirmed = 0;
    // While launches need no attention they leave no trace, and the last one that did is not meant.
    if (function == 0 || !attention()) {
        return;
    }
    if (Function* known = find(function)) {
        Verdict seen = Verdict::kOther;
        known->verdict.compare_exchange_strong(seen, Verdict::kLearned);
    }
}

void profiler_call(ThreadState& thread, std::uint64_t communicator, std::uint64_t bytes,
                   std::uint64_t operation) noexcept {
    if (thread.nccl_depth != 0) {
        return;
    }
    if (thread.call_carried) {
        thread.call = {};
        thread.call_carried = false;
    }
    thread.call.communicator = mix_signature(thread.call.communicator, communicator);
    thread.call.bytes += bytes;
    thread.call.operation = mix_signature(thread.call.operation, operation);
}

void function_named(std::uintptr_t function, const char* name) noexcept {
    if (function != 0 && name != nullptr) {
        set_verdict(function, verdict_of(kernel_name(name)));
    }
}

void function_same(std::uintptr_t function, std::uintptr_t as) noexcept {
    const Function* known = functions().find(as);
    if (function == 0 || function == as) {
        return;
    }
    const Verdict verdict =
        known == nullptr ? Verdict::kOther : known->verdict.load(std::memory_order_acquire);
    set_verdict(function, verdict == Verdict::kLearned ? Verdict::kOther : verdict);
}

void functions_lost() noexcept { generation.fetch_add(1, std::memory_order_acq_rel); }

}  // namespace crossover
