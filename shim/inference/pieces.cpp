// SPDX-License-Identifier: Apache-2.0
// Window inference's view of a piece of compute: at which place of the iteration it begins, and how
// long it takes on the GPU. Whether it passes without a turn is decided in small_pieces.cpp.
#include <algorithm>

#include "shim/inference/windows.hpp"

namespace crossover {

std::uint64_t WindowInference::context() const noexcept {
    std::uint64_t mixed = 0;
    for (const std::uint64_t each : recent_) {
        mixed = mix_signature(mixed, each);
    }
    return mixed;
}

std::uint64_t WindowInference::compute_launches() const noexcept {
    std::uint64_t launches = 0;
    for (const Stream* each : all_streams_) {
        launches += each->submitted.load(std::memory_order_acquire);
    }
    return launches;
}

std::uint64_t WindowInference::place(const Stream& stream) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    // Behind any bucket of equal ones the newest collectives are the same. A stream that waits for
    // none of them comes ever further behind.
    const std::uint64_t beside = std::min(next_number_ - 1 - behind(stream), kMostBeside);
    return mix_signature(mix_signature(context(), beside),
                         compute_launches() - compute_before_newest_);
}

void WindowInference::drop_piece(PieceMarks& marks) noexcept {
    give_event(marks.begin);
    marks.begin = nullptr;
    for (Marker*& each : marks.ends) {
        drop_marker(each);
    }
}

bool WindowInference::piece_begins(PieceMarks& marks, Stream& stream) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    drop_piece(marks);
    if (faulty() || gpu_.capturing(stream.handle)) {
        return false;
    }
    marks.begin = take_event();
    if (marks.begin != nullptr && record(marks.begin, stream.handle)) {
        return true;
    }
    drop_piece(marks);
    return false;
}

bool WindowInference::piece_ended(PieceMarks& marks) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    std::size_t kept = 0;
    for (Stream* each : all_streams_) {
        if (each->communication.load(std::memory_order_relaxed)) {
            continue;
        }
        const bool marked = each->submitted.load(std::memory_order_acquire) == each->marked ||
                            (markable(*each) && mark(*each));
        const bool full = kept == marks.ends.size();
        if (!marked || (full && each->marker != nullptr && !each->marker->done)) {
            drop_piece(marks);
            return false;
        }
        if (!full && each->marker != nullptr) {
            ++each->marker->references;
            marks.ends[kept++] = each->marker;
        }
    }
    return true;
}

PieceProgress WindowInference::piece(PieceMarks& marks) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (marks.begin == nullptr || faulty()) {
        return {};
    }
    if (gpu_.query(marks.begin) == EventState::kPending) {
        return {PieceState::kWaits, 0};
    }
    std::int64_t longest = 0;
    for (Marker* each : marks.ends) {
        if (each == nullptr) {
            break;
        }
        if (!marker_done(*each)) {
            return {PieceState::kRuns, 0};
        }
        longest = std::max(longest, gpu_.elapsed_ns(marks.begin, each->event));
    }
    // No piece takes no time: the driver could not tell.
    if (faulty() || longest == 0) {
        return {};
    }
    return {PieceState::kOver, static_cast<std::uint64_t>(longest)};
}

}  // namespace crossover
