// SPDX-License-Identifier: Apache-2.0
// Inside of process.hpp: the state behind its functions, for the files that implement them and for
// nobody else.
#pragma once

#include <unistd.h>

#include <array>
#include <atomic>
#include <mutex>

#include "shim/gate/device_gate.hpp"
#include "shim/gate/graphs.hpp"
#include "shim/gate/process.hpp"

namespace crossover {

inline constexpr std::size_t kMaxGates = 32;
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

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

extern std::atomic<Process*> process_now;
extern std::atomic<bool> in_forked_child;

template <class Body>
void for_each_gate(Process& process, Body&& body) noexcept {
    const std::size_t count = process.gate_count.load(std::memory_order_acquire);
    for (std::size_t index = 0; index < count; ++index) {
        if (DeviceGate* gate = process.gates[index].load(std::memory_order_acquire)) {
            body(*gate);
        }
    }
}

// The state, made at the first call; nullptr in a forked child or without memory.
Process* process() noexcept;
// The state, if this process is gated at all.
Process* active_process() noexcept;
// The stream's entry, made at first sight; nullptr when it cannot be followed.
StreamEntry* entry_of(Process& state, StreamHandle handle) noexcept;

}  // namespace crossover
