// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/process.hpp"

#include <pthread.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <mutex>
#include <new>

#include "arbiter/futex.hpp"
#include "arbiter/job_identity.hpp"
#include "arbiter/options.hpp"
#include "shim/blind_spots.hpp"
#include "shim/gate/device_gate.hpp"
#include "shim/gate/driver_device.hpp"
#include "shim/gate/graphs.hpp"
#include "shim/log.hpp"

namespace crossover {

// Starts at 1: the first launch finds out where the process stands.
constinit std::atomic<std::uint32_t> attention_word{1};
thread_local constinit ThreadState thread_state_now;

namespace {

constexpr std::size_t kMaxGates = 32;
constexpr std::uint64_t kExitBoundNs = 200'000'000;
constexpr std::uintptr_t kLegacyStream = 1;
constexpr std::uintptr_t kPerThreadStream = 2;

struct ContextEntry {
    bool attached = false;  // guarded by Process::mutex
};

struct Primary {  // a device's primary context; guarded by Process::mutex
    std::uintptr_t context = 0;
    std::uint32_t retained = 0;
};

struct StreamEntry {
    DeviceGate* gate = nullptr;
    Stream* stream = nullptr;
};

// Made at the first intercepted CUDA call that needs it and never destroyed: threads of the host
// may run on while the process exits.
struct Process {
    Process();
    DeviceGate* gate_of_context(void* context) noexcept;
    DeviceGate* attach(void* context) noexcept;

    Options options;
    JobIdentity job;
    bool job_is_provisional = false;
    std::atomic<bool> passing{false};  // ungated for good
    Graphs graphs;
    std::atomic<std::uint32_t> unattached{0};  // contexts known to exist without a gate
    HandleMap<ContextEntry> contexts{256};
    std::atomic<std::uint32_t> letting_go{0};
    HandleMap<StreamEntry> streams{2048};
    DriverEvents events;

    const pid_t pid = ::getpid();
    std::mutex mutex;  // attaching, naming, stopping
    std::array<Primary, kMaxGates> primaries{};
    std::array<std::atomic<DeviceGate*>, kMaxGates> gates{};
    std::atomic<std::size_t> gate_count{0};
};

std::atomic<Process*> process_now{nullptr};
std::atomic<bool> in_forked_child{false};

void pass_for_good(Process& process) noexcept {
    process.passing.store(true, std::memory_order_release);
    attention_word.store(0, std::memory_order_release);
}

template <class Body>
void for_each_gate(Process& process, Body&& body) noexcept {
    const std::size_t count = process.gate_count.load(std::memory_order_acquire);
    for (std::size_t index = 0; index < count; ++index) {
        if (DeviceGate* gate = process.gates[index].load(std::memory_order_acquire)) {
            body(*gate);
        }
    }
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
        const std::uint64_t own[2] = {static_cast<std::uint64_t>(::getpid()), monotonic_ns()};
        char name[kJobNameBytes];
        std::snprintf(name, sizeof name, "pid-%d", static_cast<int>(::getpid()));
        job = identity_from_bytes(own, sizeof own, name);
    }
    ::pthread_atfork(nullptr, nullptr, &after_fork_in_child);
}

Process* process() noexcept {
    Process* made = process_now.load(std::memory_order_acquire);
    if (made == nullptr && !in_forked_child.load(std::memory_order_relaxed)) {
        static std::mutex making;
        const std::lock_guard<std::mutex> guard(making);
        made = process_now.load(std::memory_order_acquire);
        if (made == nullptr) {
            made = new (std::nothrow) Process();
            process_now.store(made, std::memory_order_release);
            if (made != nullptr && made->passing.load(std::memory_order_relaxed)) {
                attention_word.store(0, std::memory_order_release);
            }
        }
    }
    return made;
}

// The state, if this process is gated at all.
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
        log_line(LogLevel::kFault,
                 "cannot join the jobs of device %u: %s; this process goes on ungated", ordinal,
                 status_text(status));
        pass_for_good(*this);
        return nullptr;
    }
    log_line(LogLevel::kInfo, "job %s joined device %u", job.name, ordinal);
    if (static_cast<LogLevel>(options.log) >= LogLevel::kInfo) {
        report_blind_spots();
    }
    found = gate.release();
    gates[index].store(found, std::memory_order_release);
    gate_count.store(index + 1, std::memory_order_release);
    if (ContextEntry* known = contexts.find(reinterpret_cast<std::uintptr_t>(context));
        known && !known->attached) {
        known->attached = true;
        unattached.fetch_sub(1, std::memory_order_acq_rel);
    }
    refresh_attention();
    return found;
}

// As the driver takes it from any of its two families of functions.
std::uintptr_t driver_handle(StreamHandle handle) noexcept {
    if (handle.value == 0) {
        return handle.per_thread ? kPerThreadStream : kLegacyStream;
    }
    return handle.value;
}

// The stream takes part in a capture: what is called on it now does nothing now.
bool is_capturing(Process& state, StreamHandle handle) noexcept {
    return state.graphs.any_capture() && driver_handle(handle) != kLegacyStream &&
           state.events.capturing(driver_handle(handle));
}

// A stream's name among all threads: the per-thread default stream is a different one in each.
std::uintptr_t capture_key(StreamHandle handle) noexcept {
    const std::uintptr_t value = driver_handle(handle);
    return value == kPerThreadStream ? (current_thread_number() << 16) ^ 3 : value;
}

// The stream's entry, made at first sight; nullptr when it cannot be followed.
StreamEntry* entry_of(Process& state, StreamHandle handle) noexcept {
    std::uintptr_t key = handle.value;
    std::uintptr_t own_handle = handle.value;
    StreamKind kind = StreamKind::kBlocking;
    if (handle.value <= kPerThreadStream) {
        const bool per_thread =
            handle.value == kPerThreadStream || (handle.value == 0 && handle.per_thread);
        const auto context = reinterpret_cast<std::uintptr_t>(current_context());
        if (context == 0) {
            return nullptr;
        }
        kind = per_thread ? StreamKind::kPerThread : StreamKind::kLegacyDefault;
        own_handle = per_thread ? kPerThreadStream : kLegacyStream;
        key = per_thread ? (context ^ (current_thread_number() << 16) ^ 3) : (context ^ 1);
    }
    if (StreamEntry* known = state.streams.find(key)) {
        return known;
    }
    void* context =
        handle.value <= kPerThreadStream ? current_context() : context_of_stream(handle.value);
    DeviceGate* gate = state.gate_of_context(context);
    if (gate == nullptr) {
        return nullptr;
    }
    if (handle.value > kPerThreadStream && stream_is_non_blocking(handle.value)) {
        kind = StreamKind::kNonBlocking;
    }
    Stream* stream = gate->inference().stream(key, own_handle, kind, current_thread_number());
    if (stream == nullptr) {
        return nullptr;
    }
    return state.streams.find_or_add(key, [&](StreamEntry& fresh) { fresh = {gate, stream}; });
}

}  // namespace

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
// launches

Launch begin_launch(StreamHandle handle, bool communication) noexcept {
    Process* state = active_process();
    if (state == nullptr) {
        return {};
    }
    if (is_capturing(*state, handle)) {
        state->graphs.captured(capture_number(driver_handle(handle)),
                               {.communicates = communication,
                                .computes = !communication,
                                .call = thread_state().call});
        return {};
    }
    const StreamEntry* entry = entry_of(*state, handle);
    if (entry == nullptr) {
        return {};
    }
    Stream& stream = *entry->stream;
    if (communication) {
        const std::uint64_t number =
            entry->gate->begin_collective(stream, thread_state().call, false);
        return {entry->gate, &stream, number, true};
    }
    if (stream.communication.load(std::memory_order_acquire)) {
        stream.launches.fetch_add(1, std::memory_order_relaxed);
        return {};
    }
    if (!entry->gate->enter(stream)) {
        return {};
    }
    return {entry->gate, &stream, 0, false};
}

Launch begin_graph_launch(StreamHandle handle, std::uintptr_t executable) noexcept {
    Process* state = active_process();
    if (state == nullptr) {
        return {};
    }
    const GraphContent content = state->graphs.content(executable);
    if (is_capturing(*state, handle)) {
        state->graphs.captured(capture_number(driver_handle(handle)), content);
        return {};
    }
    if (!content.communicates) {
        return begin_launch(handle, false);
    }
    const StreamEntry* entry = entry_of(*state, handle);
    if (entry == nullptr) {
        return {};
    }
    Stream& stream = *entry->stream;
    if (content.computes && !stream.communication.load(std::memory_order_acquire)) {
        if (!entry->gate->enter(stream)) {
            return {};
        }
        return {entry->gate, &stream, entry->gate->begin_collective(stream, content.call, true),
                false};
    }
    return {entry->gate, &stream, entry->gate->begin_collective(stream, content.call, false), true};
}

void end_launch(const Launch& launch, bool launched) noexcept {
    if (launch.gate == nullptr) {
        return;
    }
    if (launch.collective != 0) {
        launch.gate->end_collective(*launch.stream, launch.collective, launched);
    }
    if (!launch.communication) {
        launch.gate->leave(*launch.stream, launched);
    }
}

// ---------------------------------------------------------------------------------- streams and
// events

void event_recorded(StreamHandle handle, std::uintptr_t event) noexcept {
    Process* state = active_process();
    if (state != nullptr && is_capturing(*state, handle)) {
        event_destroyed(event);  // it stands for a place in the capture now, not in a stream
        return;
    }
    const StreamEntry* entry = state == nullptr ? nullptr : entry_of(*state, handle);
    if (entry != nullptr) {
        entry->gate->inference().event_recorded(event, *entry->stream);
    }
}

void before_stream_wait(StreamHandle handle, std::uintptr_t event) noexcept {
    Process* state = active_process();
    if (state != nullptr && is_capturing(*state, handle)) {
        return;
    }
    const StreamEntry* entry = state == nullptr ? nullptr : entry_of(*state, handle);
    if (entry != nullptr) {
        entry->gate->inference().before_wait(*entry->stream, event);
    }
}

// Handles are used again by the driver, so these two run also while launches need no attention.
void event_destroyed(std::uintptr_t event) noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state != nullptr && !in_forked_child.load(std::memory_order_relaxed)) {
        for_each_gate(*state, [&](DeviceGate& gate) { gate.inference().event_destroyed(event); });
    }
}

void stream_destroyed(std::uintptr_t stream) noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state == nullptr || in_forked_child.load(std::memory_order_relaxed)) {
        return;
    }
    state->graphs.capture_ended(stream);
    if (const StreamEntry* entry = state->streams.find(stream)) {
        entry->gate->inference().remove_stream(stream);
        state->streams.remove(stream);
    }
}

// ------------------------------------------------------------------------------------------------
// captures and graphs

NothingRecorded::NothingRecorded() noexcept {
    Process* state = attention() ? process_now.load(std::memory_order_acquire) : nullptr;
    if (state == nullptr || in_forked_child.load(std::memory_order_relaxed)) {
        return;
    }
    for_each_gate(*state, [&](DeviceGate& gate) {
        gate.inference().hold_records();
        ++held_;
    });
}

NothingRecorded::~NothingRecorded() {
    Process* state = process_now.load(std::memory_order_acquire);
    while (held_ != 0) {
        state->gates[--held_].load(std::memory_order_acquire)->inference().allow_records();
    }
}

void capture_began(StreamHandle stream, bool into_graph) noexcept {
    Process* state = active_process();
    if (state == nullptr) {
        return;
    }
    state->graphs.capture_began(capture_key(stream));
    if (into_graph) {
        state->graphs.captured(capture_number(driver_handle(stream)),
                               {.communicates = false, .computes = true, .call = {}});
    }
    refresh_attention();
}

std::uint64_t capture_ending(StreamHandle stream) noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    return state == nullptr || !state->graphs.any_capture() ? 0
                                                            : capture_number(driver_handle(stream));
}

void capture_ended(StreamHandle stream, std::uint64_t capture, std::uintptr_t graph) noexcept {
    Process* state = process_now.load(std::memory_order_acquire);
    if (state == nullptr || !state->graphs.any_capture() ||
        state->events.capturing(driver_handle(stream))) {
        return;  // refused: the capture goes on
    }
    state->graphs.captured_into(capture, graph);
    state->graphs.capture_ended(capture_key(stream));
    refresh_attention();
}

// Handles are used again by the driver, so these run also while launches need no attention.
void graph_copied(std::uintptr_t from, std::uintptr_t to) noexcept {
    if (Process* state = process_now.load(std::memory_order_acquire)) {
        state->graphs.copied(from, to);
    }
}

void graph_instantiated(std::uintptr_t graph, std::uintptr_t executable) noexcept {
    if (Process* state = process_now.load(std::memory_order_acquire)) {
        state->graphs.instantiated(graph, executable);
    }
}

void graph_destroyed(std::uintptr_t graph) noexcept {
    if (Process* state = process_now.load(std::memory_order_acquire)) {
        state->graphs.graph_destroyed(graph);
    }
}

void executable_destroyed(std::uintptr_t executable) noexcept {
    if (Process* state = process_now.load(std::memory_order_acquire)) {
        state->graphs.executable_destroyed(executable);
    }
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
