// SPDX-License-Identifier: Apache-2.0
// What this process captures, and which of its graphs communicate: remembered while a stream
// captures, carried from the capture to its graph, to copies of it and to executable graphs. Plain
// numbers: no CUDA or NCCL header, no window inference, no gate.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "shim/inference/handle_map.hpp"
#include "shim/inference/windows.hpp"

namespace crossover {

// What one launch of a graph submits, as far as anything of it was seen.
struct GraphContent {
    bool communicates = false;  // NCCL's kernels
    bool computes = false;      // others
    CollectiveCall call{};      // of all its collectives together
};

// Every function may be called by any thread and does not throw. Nothing is allocated; when a table
// is full, a graph counts as plain compute.
class Graphs {
  public:
    // --- which streams began a capture. A key that cannot be noted keeps any_capture() true, which
    // costs a question to the driver at each launch and nothing else.

    // One relaxed load: some stream of the process may be capturing.
    bool any_capture() const noexcept { return captures_.load(std::memory_order_acquire) != 0; }
    void capture_began(std::uintptr_t stream) noexcept;
    void capture_ended(std::uintptr_t stream) noexcept;

    // --- what they collect. `capture` is the driver's number of it, which is never used again.

    void captured(std::uint64_t capture, const GraphContent& content) noexcept;
    // The capture has become part of `graph`; 0: it came to nothing.
    void captured_into(std::uint64_t capture, std::uintptr_t graph) noexcept;

    // --- graphs and executable graphs, whose handles are used again after their end

    void copied(std::uintptr_t from, std::uintptr_t to) noexcept;
    void instantiated(std::uintptr_t graph, std::uintptr_t executable) noexcept;
    void graph_destroyed(std::uintptr_t graph) noexcept { forget(graphs_, graph); }
    void executable_destroyed(std::uintptr_t executable) noexcept {
        forget(executables_, executable);
    }
    // What launching it submits: plain compute unless a collective was captured. No lock.
    GraphContent content(std::uintptr_t executable) noexcept;

  private:
    static constexpr std::size_t kMaxStreams = 128;
    static constexpr std::size_t kMaxCaptures = 128;
    struct Captured {
        std::uint64_t capture = 0;  // 0: free
        GraphContent content;
    };
    using Table = HandleMap<GraphContent>;

    static void add(GraphContent& to, const GraphContent& more) noexcept;
    void put(Table& table, std::uintptr_t handle, const GraphContent& content) noexcept;
    void forget(Table& table, std::uintptr_t handle) noexcept;

    std::atomic<std::uint32_t> captures_{0};
    std::atomic<std::uint32_t> known_{0};  // entries of both tables: 0 in most processes
    std::mutex mutex_;
    std::array<std::uintptr_t, kMaxStreams> streams_{};  // mutex_; 0: free
    std::array<Captured, kMaxCaptures> collected_{};     // mutex_
    std::size_t next_displaced_ = 0;                     // mutex_
    Table graphs_{4096};
    Table executables_{4096};
};

}  // namespace crossover
