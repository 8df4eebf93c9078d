// SPDX-License-Identifier: Apache-2.0
// The library's state in this process: options, the job's identity, the gates of its devices, and
// the calls that the hooks make around what they intercept. No CUDA or NCCL header: handles are
// numbers here.
//
// Every function may be called by any thread, does nothing harmful when called at any time of the
// process's life, and never throws.
#pragma once

#include <atomic>
#include <cstdint>

#include "shim/inference/windows.hpp"

namespace crossover {

class DeviceGate;

// 0: launches pass without a further look, because the process is alone on its devices or ungated
// for good. One relaxed load a launch; written only when that changes.
extern std::atomic<std::uint32_t> attention_word;
inline bool attention() noexcept { return attention_word.load(std::memory_order_relaxed) != 0; }

// What the calling thread is in the middle of.
struct ThreadState {
    std::uint32_t depth = 0;       // inside an intercepted call: what it calls in turn passes
    std::uint32_t nccl_depth = 0;  // inside a call of NCCL, or between group start and end
    CollectiveCall call{};         // what those calls asked for so far
};
ThreadState& thread_state() noexcept;

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
    bool communication = false;
};
Launch begin_launch(StreamHandle stream, bool communication) noexcept;
void end_launch(const Launch& launch, bool launched) noexcept;

void event_recorded(StreamHandle stream, std::uintptr_t event) noexcept;
void event_destroyed(std::uintptr_t event) noexcept;
void before_stream_wait(StreamHandle stream, std::uintptr_t event) noexcept;
void stream_destroyed(std::uintptr_t stream) noexcept;  // before the driver destroys it
void capture_began() noexcept;
void capture_ended() noexcept;
// A context was made or retained: its first launch attaches the process to its device.
void context_made(std::uintptr_t context) noexcept;
// A context, or the primary one of a device, goes away with its streams and events: from here on
// the process goes on ungated.
void context_lost(std::uintptr_t context) noexcept;
void device_contexts_lost(std::uint32_t ordinal) noexcept;

// The first communicator with more than one rank names the job where nothing else does. `id` are
// its bytes.
void communicator_made(const void* id, std::size_t id_bytes, int ranks) noexcept;
// Around ncclCommAbort and the like: every waiting thread passes.
void let_go() noexcept;
void allow() noexcept;

}  // namespace crossover
