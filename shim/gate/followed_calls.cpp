// SPDX-License-Identifier: Apache-2.0
// What the hooks tell of launches, streams, events, captures and graphs: finds the gate and hands
// on. No policy.
#include <mutex>

#include "shim/gate/driver_device.hpp"
#include "shim/gate/process_state.hpp"
#include "shim/inference/thread_end.hpp"

namespace crossover {

namespace {

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

}  // namespace

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
    StreamEntry* entry = state.streams.find_or_add(key, [&](StreamEntry& fresh) {
        fresh = {gate, stream};
    });
    if (kind == StreamKind::kPerThread && entry != nullptr) {
        // Nobody else can name the stream, and a later thread may get this one's number. Without
        // memory for it what the thread leaves unmarked keeps the job from draining.
        at_thread_end(&stream_destroyed, key);
    }
    return entry;
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
    // With compute in it, too: inside it waits for the peer ranks, and the turn never does.
    Stream& stream = *entry->stream;
    return {entry->gate, &stream,
            entry->gate->begin_collective(
                stream, content.call,
                content.computes && !stream.communication.load(std::memory_order_acquire)),
            true};
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

StreamWait begin_stream_wait(StreamHandle handle, std::uintptr_t event) noexcept {
    Process* state = active_process();
    if (state != nullptr && is_capturing(*state, handle)) {
        return {};
    }
    const StreamEntry* entry = state == nullptr ? nullptr : entry_of(*state, handle);
    if (entry == nullptr) {
        return {};
    }
    return {entry->gate, entry->stream, entry->gate->begin_wait(*entry->stream, event)};
}

void end_stream_wait(const StreamWait& wait) noexcept {
    if (wait.gate != nullptr) {
        wait.gate->end_wait(*wait.stream, wait.move);
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

}  // namespace crossover
