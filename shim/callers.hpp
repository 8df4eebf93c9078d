// SPDX-License-Identifier: Apache-2.0
// A table of real functions for each library that calls ours: what its references would have been
// bound to without us. Several runtimes, or several copies of NCCL, may be in one process, some
// inside the libraries that use them. No policy, no CUDA type.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>

#include "shim/resolve.hpp"

namespace crossover {

// Any thread, no lock. A caller seen once is remembered for good; its library stays loaded.
template <class Table, std::size_t kMaxCallers = 128>
class TablesOfCallers {
  public:
    // The table for the code at `caller`, and for one `kind` of reference. A new one is filled by
    // fill(table, caller), which says whether it found anything; if not, nothing is remembered.
    // nullptr then, and for callers beyond the number that is remembered.
    template <class Fill>
    const Table* find(const void* caller, unsigned kind, Fill&& fill) noexcept {
        const Table* found = known(caller, kind);
        return found != nullptr ? found : add(caller, kind, fill);
    }

    // The table if it is filled already, else nullptr. Calls nothing: launches come by here.
    const Table* known(const void* caller, unsigned kind) const noexcept {
        const auto address = reinterpret_cast<std::uintptr_t>(caller);
        for (const Entry& entry : entries_) {
            const std::uintptr_t bytes = entry.bytes.load(std::memory_order_acquire);
            if (address - entry.begin.load(std::memory_order_relaxed) < bytes &&
                entry.kind == kind) {
                return &entry.table;
            }
            if (bytes == 0) {
                break;  // free, or being filled: then there may be more, and one is filled again
            }
        }
        return nullptr;
    }

  private:
    struct Entry {
        std::atomic<std::uintptr_t> begin{0};
        std::atomic<std::uintptr_t> bytes{0};  // written last; 0: not there yet
        unsigned kind = 0;
        Table table;
    };

    // Two threads that meet here make two equal entries, of which the first is used.
    template <class Fill>
    [[gnu::noinline]] const Table* add(const void* caller, unsigned kind, Fill& fill) noexcept {
        Table table;
        std::uintptr_t begin = 0;
        std::uintptr_t end = 0;
        if (!fill(table, caller)) {
            return nullptr;
        }
        if (!bounds_of(caller, begin, end)) {
            begin = reinterpret_cast<std::uintptr_t>(caller);  // generated code: this one place
            end = begin + 1;
        }
        const std::size_t index = count_.load(std::memory_order_relaxed) >= kMaxCallers
                                      ? kMaxCallers
                                      : count_.fetch_add(1, std::memory_order_acq_rel);
        if (index >= kMaxCallers) {
            return nullptr;
        }
        Entry& entry = entries_[index];
        entry.begin.store(begin, std::memory_order_relaxed);
        entry.kind = kind;
        entry.table = table;
        entry.bytes.store(end - begin, std::memory_order_release);
        return &entry.table;
    }

    std::array<Entry, kMaxCallers> entries_{};
    std::atomic<std::size_t> count_{0};
};

}  // namespace crossover
