// SPDX-License-Identifier: Apache-2.0
// The library's state in this process: options, the job's identity, the gates of its devices, and
// the calls that the hooks make around what they intercept. No CUDA or NCCL header: handles are
// numbers here.
//
// Every function may be called by any thread, does nothing harmful when called at any time of the
// process's life, and never throws.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/inference/windows.hpp"

namespace crossover {

class DeviceGate;

// 0: launches pass without a further look, because the process is alone on its devices or ungated
// for good. One relaxed load a launch; written only when that changes.
[[gnu::visibility("hidden")]] extern std::atomic<std::uint32_t> attention_word;
inline bool attention() noexcept { return attention_word.load(std::memory_order_relaxed) != 0; }

// What the calling thread is in the middle of.
struct ThreadState {
    std::uint32_t depth = 0;       // inside an intercepted call: what it calls in turn passes
    std::uint32_t nccl_depth = 0;  // inside a call of NCCL, or between group start and end
    CollectiveCall call{};         // what those calls asked for so far
    const void* caller = nullptr;  // of the runtime wrapper that is being entered
    // See detection.hpp.
    std::uint32_t inside_nccl = 0;     // NCCL's own code runs: what is launched is its kernel
    bool call_carried = false;         // a launch has carried `call`: the next one begins anew
    bool unconfirmed_learned = false;  // `unconfirmed` was taken for NCCL's
    std::uintptr_t unconfirmed = 0;    // last launched function that only the profiler can tell
};
// Initial-exec: the library is loaded at start, so a look is one instruction.
[[gnu::tls_model("initial-exec"),
  gnu::visibility("hidden")]] extern thread_local constinit ThreadState thread_state_now;
inline ThreadState& thread_state() noexcept { return thread_state_now; }

// Stream handles as the program gives them; 0, 1 and 2 are CUDA's default streams. `per_thread`: 0
// means the per-thread default stream.
struct StreamHandle {
    std::uintptr_t value = 0;
    bool per_thread = false;
};

// Around one launch. begin may wait (the turn, a crossing); end must follow with the driver's
// verdict.
struct Launch {
    DeviceGate* gate = nullptr;  // nullptr: not followed
    Stream* stream = nullptr;
    std::uint64_t collective = 0;
    bool communication = false;  // nothing but that
};
Launch begin_launch(StreamHandle stream, bool communication) noexcept;
// The same for a graph: compute, a collective, or both, as its capture has shown.
Launch begin_graph_launch(StreamHandle stream, std::uintptr_t executable) noexcept;
void end_launch(const Launch& launch, bool launched) noexcept;

void event_recorded(StreamHandle stream, std::uintptr_t event) noexcept;
void event_destroyed(std::uintptr_t event) noexcept;
// Around the driver's putting a stream behind an event.
struct StreamWait {
    DeviceGate* gate = nullptr;  // nullptr: not followed
    Stream* stream = nullptr;
    StreamMove move;
};
StreamWait begin_stream_wait(StreamHandle stream, std::uintptr_t event) noexcept;
void end_stream_wait(const StreamWait& wait) noexcept;
void stream_destroyed(std::uintptr_t stream) noexcept;  // before the driver destroys it

// While it lives, nothing of ours is recorded on any stream, so that a stream cannot begin to
// capture between our look at it and our record. Around the beginning of a capture; takes no lock
// while launches need no attention.
class NothingRecorded {
  public:
    NothingRecorded() noexcept;
    ~NothingRecorded();
    NothingRecorded(const NothingRecorded&) = delete;
    NothingRecorded& operator=(const NothingRecorded&) = delete;

  private:
    std::size_t held_ = 0;  // gates, from the first
};
// The driver has begun a capture on the stream; into a graph that was there, of unknown content, or
// into one of its own.
void capture_began(StreamHandle stream, bool into_graph) noexcept;
// Around the end of the stream's capture: the driver's number of the capture (0: none), and what
// has come of it (0: no graph).
std::uint64_t capture_ending(StreamHandle stream) noexcept;
void capture_ended(StreamHandle stream, std::uint64_t capture, std::uintptr_t graph) noexcept;
void graph_copied(std::uintptr_t from, std::uintptr_t to) noexcept;
void graph_instantiated(std::uintptr_t graph, std::uintptr_t executable) noexcept;
void graph_destroyed(std::uintptr_t graph) noexcept;  // these two before the driver destroys it
void executable_destroyed(std::uintptr_t executable) noexcept;

// The device's primary context was retained: its first launch attaches the process to the device.
void context_retained(std::uint32_t ordinal, std::uintptr_t context) noexcept;
// Before it is released, which ends it when nobody retains it any more.
void context_released(std::uint32_t ordinal) noexcept;
// A context, or the primary one of a device, goes away with its streams and events: from here on
// the process goes on ungated.
void context_lost(std::uintptr_t context) noexcept;
void device_contexts_lost(std::uint32_t ordinal) noexcept;

// This process is gated, or may become so: its first CUDA call has been seen, and it is not ungated
// for good.
bool following() noexcept;

// The first communicator with more than one rank names the job where nothing else does. `id` are
// its bytes.
void communicator_made(const void* id, std::size_t id_bytes, int ranks) noexcept;
// Around ncclCommAbort and the like: every waiting thread passes.
void let_go() noexcept;
void allow() noexcept;

}  // namespace crossover
