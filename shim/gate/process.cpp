// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/process.hpp"

#include <pthread.h>
#include <sys/auxv.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <exception>
#include <mutex>
#include <new>

#include "arbiter/futex.hpp"
#include "arbiter/job_identity.hpp"
#include "arbiter/options.hpp"
#include "arbiter/segment.hpp"
#include "shim/blind_spots.hpp"
#include "shim/gate/driver_device.hpp"
#include "shim/gate/process_state.hpp"
#include "shim/log.hpp"

namespace crossover {

// Starts at 1: the first launch finds out where the process stands.
constinit std::atomic<std::uint32_t> attention_word{1};
thread_local constinit ThreadState thread_state_now;
constinit std::atomic<Process*> process_now{nullptr};
constinit std::atomic<bool> in_forked_child{false};

namespace {

constexpr std::uint64_t kExitBoundNs = 200'000'000;

void pass_for_good(Process& process) noexcept {
    process.passing.store(true, std::memory_order_release);
    attention_word.store(0, std::memory_order_release);
}

// The child has no CUDA, no watcher and no attachment, whatever the copied memory says. The objects
// are leaked.
void after_fork_in_child() noexcept {
    in_forked_child.store(true, std::memory_order_relaxed);
    attention_word.store(0, std::memory_order_relaxed);
    if (Process* process = process_now.load(std::memory_order_relaxed)) {
        process->passing.store(true, std::memory_order_relaxed);
        for_each_gate(*process, [](DeviceGate& gate) { gate.abandon_after_fork(); });
    }
}

// What the program's own exit handlers wait for may be a thread that waits here.
void at_exit_begins() noexcept {
    const Process* process = process_now.load(std::memory_order_acquire);
    if (process != nullptr && !in_forked_child.load(std::memory_order_relaxed) &&
        process->pid == ::getpid()) {
        let_go();
    }
}

// Process ids repeat in other containers, and these may start at the same time: the kernel's gift
// of random bytes to each program does not repeat.
std::array<std::uint64_t, 4> unlike_any_other_process() noexcept {
    std::array<std::uint64_t, 4> bytes{static_cast<std::uint64_t>(::getpid()), monotonic_ns()};
    if (const auto* random = reinterpret_cast<const void*>(::getauxval(AT_RANDOM))) {
        std::memcpy(&bytes[2], random, 16);
    }
    return bytes;
}

}  // namespace

Process::Process() {
    char error[256];
    if (!parse_environment(&::getenv, options, error, sizeof error)) {
        log_line(LogLevel::kFault, "%s; this process goes on ungated", error);
        options.mode = static_cast<std::uint32_t>(Mode::kOff);
    }
    set_log_level(static_cast<LogLevel>(options.log));
    if (static_cast<Mode>(options.mode) == Mode::kOff) {
        passing.store(true, std::memory_order_relaxed);
        return;
    }
    if (identity_from_environment(&::getenv, job) == IdentitySource::kNone) {
        // Until a communicator names the job, this process is a job of its own.
        job_is_provisional = true;
        char name[kJobNameBytes];
        std::snprintf(name, sizeof name, "pid-%d", static_cast<int>(::getpid()));
        const auto own = unlike_any_other_process();
        job = identity_from_bytes(own.data(), sizeof own, name);
    }
    ::pthread_atfork(nullptr, nullptr, &after_fork_in_child);
    std::atexit(&at_exit_begins);
}

// Without memory for it the process goes on ungated: its launches need no attention then, and a
// later call that comes by here tries again.
static Process* make_process() noexcept {
    try {
        return new (std::nothrow) Process();
    } catch (const std::exception&) {
        return nullptr;
    }
}

Process* process() noexcept {
    Process* made = process_now.load(std::memory_order_acquire);
    if (made == nullptr && !in_forked_child.load(std::memory_order_relaxed)) {
        static std::mutex making;
        const std::lock_guard<std::mutex> guard(making);
        made = process_now.load(std::memory_order_acquire);
        if (made == nullptr) {
            made = make_process();
            process_now.store(made, std::memory_order_release);
            if (made == nullptr || made->passing.load(std::memory_order_relaxed)) {
                attention_word.store(0, std::memory_order_release);
            }
        }
    }
    return made;
}

Process* active_process() noexcept {
    Process* state = process();
    return state == nullptr || state->passing.load(std::memory_order_acquire) ? nullptr : state;
}

DeviceGate* Process::gate_of_context(void* context) noexcept {
    if (context == nullptr) {
        return nullptr;
    }
    DeviceGate* found = nullptr;
    for_each_gate(*this, [&](DeviceGate& gate) {
        if (gate.context() == context) {
            found = &gate;
        }
    });
    return found != nullptr ? found : attach(context);
}

// Names the folder where that is what was refused, and what is wrong with it.
static void report_refusal(const Options& options, std::uint32_t ordinal, Status status) noexcept {
    const char* reason = status_text(status);
    Folder folder;
    switch (status) {
        case Status::kNotFound:
            reason = "its parent folder does not exist";
            [[fallthrough]];
        case Status::kForeign:
        case Status::kAccess:
        case Status::kNoSpace:
            static_cast<void>(choose_folder(options.dir, false, folder));
            break;
        default:
            break;
    }
    log_line(LogLevel::kFault,
             "cannot join the jobs of device %u: %s%s%s; this process goes on ungated", ordinal,
             folder.path, folder.path[0] == '\0' ? "" : ": ", reason);
}

DeviceGate* Process::attach(void* context) noexcept {
    const std::lock_guard<std::mutex> guard(mutex);
    DeviceGate* found = nullptr;
    for_each_gate(*this, [&](DeviceGate& gate) {
        if (gate.context() == context) {
            found = &gate;
        }
    });
    const std::size_t index = gate_count.load(std::memory_order_relaxed);
    if (found != nullptr || index == kMaxGates || passing.load(std::memory_order_relaxed)) {
        return found;
    }
    DeviceUuid device;
    std::uint32_t ordinal = 0;
    if (!device_of_current_context(context, device, ordinal)) {
        return nullptr;
    }
    Status status = Status::kOk;
    std::unique_ptr<DeviceGate> gate =
        DeviceGate::start(device, ordinal, context, job, options, status);
    if (gate == nullptr) {
        report_refusal(options, ordinal, status);
        pass_for_good(*this);
        return nullptr;
    }
    log_line(LogLevel::kInfo, "job %s joined device %u", job.name, ordinal);
    if (static_cast<LogLevel>(options.log) >= LogLevel::kInfo) {
        report_blind_spots();
    }
    found = gate.release();
    gates[index].store(found, std::memory_order_release);
    gate_count.store(index + 1, std::memory_order_seq_cst);
    if (letting_go.load(std::memory_order_seq_cst) != 0) {
        found->let_go();  // it was not there when the others were told
        if (letting_go.load(std::memory_order_seq_cst) == 0) {
            found->allow();
        }
    }
    if (ContextEntry* known = contexts.find(reinterpret_cast<std::uintptr_t>(context));
        known && !known->attached) {
        known->attached = true;
        unattached.fetch_sub(1, std::memory_order_acq_rel);
    }
    refresh_attention();
    return found;
}

static bool attention_needed(Process& state) noexcept {
    bool needed =
        state.gate_count.load(std::memory_order_acquire) == 0 ||
        state.unattached.load(std::memory_order_acquire) != 0 ||
        state.graphs.any_capture();  // what is captured alone may be launched beside others
    for_each_gate(state, [&](DeviceGate& gate) { needed = needed || !gate.quiet(); });
    return needed && !state.passing.load(std::memory_order_acquire);
}

// Several threads may be here. What the last to write found must still be so after its write, or it
// would undo the word of one that knew better.
void refresh_attention() noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state == nullptr) {
        return;
    }
    bool needed = false;
    do {
        needed = attention_needed(*state);
        attention_word.exchange(needed ? 1 : 0, std::memory_order_acq_rel);
    } while (attention_needed(*state) != needed);
}

// ------------------------------------------------------------------------------------------------
// contexts

void context_retained(std::uint32_t ordinal, std::uintptr_t context) noexcept {
    Process* state = active_process();
    if (state == nullptr) {
        return;
    }
    const std::lock_guard<std::mutex> guard(state->mutex);
    if (ordinal < kMaxGates) {
        state->primaries[ordinal].context = context;
        ++state->primaries[ordinal].retained;
    }
    if (state->contexts.find(context) == nullptr &&
        state->contexts.find_or_add(context, [](ContextEntry& fresh) { fresh.attached = false; }) !=
            nullptr) {
        state->unattached.fetch_add(1, std::memory_order_acq_rel);
    }
    refresh_attention();
}

// Streams, events and markers of the context are about to dangle; what is left of the process runs
// ungated.
template <class Matches>
static void lose_contexts(Matches&& matches) noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state == nullptr || in_forked_child.load(std::memory_order_relaxed)) {
        return;
    }
    for_each_gate(*state, [&](DeviceGate& gate) {
        if (matches(gate)) {
            pass_for_good(*state);
            gate.stop(kExitBoundNs);
        }
    });
}

void context_released(std::uint32_t ordinal) noexcept {
    Process* state = active_process();
    if (state == nullptr || ordinal >= kMaxGates) {
        return;
    }
    std::uintptr_t lost = 0;
    {
        const std::lock_guard<std::mutex> guard(state->mutex);
        Primary& primary = state->primaries[ordinal];
        if (primary.retained != 0 && --primary.retained == 0) {
            lost = primary.context;
        }
    }
    if (lost != 0) {
        context_lost(lost);
    }
}

void context_lost(std::uintptr_t context) noexcept {
    lose_contexts([&](DeviceGate& gate) {
        return reinterpret_cast<std::uintptr_t>(gate.context()) == context;
    });
}

void device_contexts_lost(std::uint32_t ordinal) noexcept {
    lose_contexts([&](DeviceGate& gate) { return gate.ordinal() == ordinal; });
}

// ---------------------------------------------------------------------------------------
// communicators

bool following() noexcept {
    const Process* state = process_now.load(std::memory_order_acquire);
    return state != nullptr && !state->passing.load(std::memory_order_acquire);
}

void communicator_made(const void* id, std::size_t id_bytes, int ranks) noexcept {
    Process* state = active_process();
    if (state == nullptr || ranks < 2) {
        return;
    }
    const std::lock_guard<std::mutex> guard(state->mutex);
    if (!state->job_is_provisional) {
        return;
    }
    state->job_is_provisional = false;
    state->job = identity_from_bytes(id, id_bytes, nullptr);
    for_each_gate(*state, [&](DeviceGate& gate) { gate.rekey(state->job); });
}

void let_go() noexcept {
    if (Process* state = process_now.load(std::memory_order_acquire)) {
        state->letting_go.fetch_add(1, std::memory_order_acq_rel);
        for_each_gate(*state, [](DeviceGate& gate) { gate.let_go(); });
    }
}

void allow() noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state != nullptr && state->letting_go.fetch_sub(1, std::memory_order_acq_rel) == 1 &&
        !state->passing.load(std::memory_order_acquire)) {
        for_each_gate(*state, [](DeviceGate& gate) { gate.allow(); });
    }
}

// At exit(): nobody is held any more, and the segment is left in good order where that can be had
// at once.
[[gnu::destructor]] static void at_exit() {
    Process* state = process_now.load(std::memory_order_acquire);
    // A child made by clone(2) itself has run no fork handler.
    if (state == nullptr || in_forked_child.load(std::memory_order_relaxed) ||
        state->pid != ::getpid()) {
        return;
    }
    pass_for_good(*state);
    for_each_gate(*state, [](DeviceGate& gate) { gate.stop(kExitBoundNs); });
}

}  // namespace crossover
