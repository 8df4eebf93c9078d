// SPDX-License-Identifier: Apache-2.0
#include "shim/gate/graphs.hpp"

#include <algorithm>

#include "shim/inference/history.hpp"

namespace crossover {

void Graphs::capture_began(std::uintptr_t stream) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (std::find(streams_.begin(), streams_.end(), stream) != streams_.end()) {
        return;
    }
    captures_.fetch_add(1, std::memory_order_acq_rel);
    const auto place = std::find(streams_.begin(), streams_.end(), std::uintptr_t{0});
    if (place != streams_.end()) {
        *place = stream;
    }
}

void Graphs::capture_ended(std::uintptr_t stream) noexcept {
    if (!any_capture()) {
        return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    const auto place = std::find(streams_.begin(), streams_.end(), stream);
    if (place != streams_.end()) {
        *place = 0;
        captures_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

void Graphs::add(GraphContent& to, const GraphContent& more) noexcept {
    to.computes = to.computes || more.computes;
    if (more.communicates) {
        to.communicates = true;
        to.call.communicator = mix_signature(to.call.communicator, more.call.communicator);
        to.call.bytes += more.call.bytes;
        to.call.operation = mix_signature(to.call.operation, more.call.operation);
    }
}

void Graphs::captured(std::uint64_t capture, const GraphContent& content) noexcept {
    if (capture == 0) {
        return;
    }
    const std::lock_guard<std::mutex> guard(mutex_);
    Captured* place = nullptr;
    for (Captured& each : collected_) {
        if (each.capture == capture) {
            add(each.content, content);
            return;
        }
        if (each.capture == 0 && place == nullptr) {
            place = &each;
        }
    }
    if (place == nullptr) {
        // Captures that broke off without our seeing it fill the table in the end.
        place = &collected_[next_displaced_];
        next_displaced_ = (next_displaced_ + 1) % kMaxCaptures;
    }
    *place = {capture, {}};
    add(place->content, content);
}

void Graphs::captured_into(std::uint64_t capture, std::uintptr_t graph) noexcept {
    if (capture == 0) {
        return;
    }
    GraphContent content;
    {
        const std::lock_guard<std::mutex> guard(mutex_);
        const auto found = std::find_if(collected_.begin(), collected_.end(),
                                        [&](const Captured& c) { return c.capture == capture; });
        if (found == collected_.end()) {
            return;
        }
        content = found->content;
        *found = {};
    }
    if (graph != 0) {
        put(graphs_, graph, content);
    }
}

void Graphs::copied(std::uintptr_t from, std::uintptr_t to) noexcept {
    if (known_.load(std::memory_order_acquire) == 0) {
        return;
    }
    forget(graphs_, to);  // what had this handle before has ended unseen
    if (const GraphContent* content = graphs_.find(from)) {
        put(graphs_, to, *content);
    }
}

void Graphs::instantiated(std::uintptr_t graph, std::uintptr_t executable) noexcept {
    if (known_.load(std::memory_order_acquire) == 0) {
        return;
    }
    forget(executables_, executable);
    if (const GraphContent* content = graphs_.find(graph); content && content->communicates) {
        put(executables_, executable, *content);
    }
}

GraphContent Graphs::content(std::uintptr_t executable) noexcept {
    if (known_.load(std::memory_order_acquire) != 0) {
        if (const GraphContent* known = executables_.find(executable)) {
            return *known;
        }
    }
    return {.communicates = false, .computes = true, .call = {}};
}

// A graph may be captured into more than once, so what comes adds to what is there.
void Graphs::put(Table& table, std::uintptr_t handle, const GraphContent& content) noexcept {
    bool fresh = false;
    GraphContent* entry = table.find_or_add(handle, [&](GraphContent& made) {
        made = content;
        fresh = true;
    });
    if (fresh) {
        known_.fetch_add(1, std::memory_order_acq_rel);
    } else if (entry != nullptr) {
        const std::lock_guard<std::mutex> guard(mutex_);
        add(*entry, content);
    }
}

void Graphs::forget(Table& table, std::uintptr_t handle) noexcept {
    if (known_.load(std::memory_order_acquire) != 0 && table.find(handle) != nullptr) {
        table.remove(handle);
        known_.fetch_sub(1, std::memory_order_acq_rel);
    }
}

}  // namespace crossover
