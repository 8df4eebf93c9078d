// SPDX-License-Identifier: Apache-2.0
#include "shim/inference/small_pieces.hpp"

#include <algorithm>

namespace crossover {

SmallPieces::Answer SmallPieces::next(Stream& stream, std::uint64_t now, bool holding,
                                      std::uint64_t limit_ns) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (state_ == State::kMarked && asked_ >= entry().launches) {
        if (const Answer answer = beyond(stream, now, holding, limit_ns);
            !holding && answer != Answer::kPasses) {
            return answer;
        }
    } else if (state_ == State::kCounting && !passing_ && entry().launches == 0 &&
               asked_ > entry().least && now - std::min(now, last_ns_) > kPauseNs) {
        entry().launches = asked_;  // to be shown the next time
        state_ = State::kNone;
    }
    if (state_ != State::kNone && !holding && (!passing_ || asked_ >= entry().launches)) {
        // The turn went while a piece was under way, or more is launched than may pass.
        if (passing_) {
            mistaken(entry(), true);
        }
        state_ = State::kNone;
        passing_ = false;
        return Answer::kTurn;
    }
    Answer answer = holding ? Answer::kUnder : Answer::kPasses;
    if (state_ == State::kNone) {
        answer = begin(stream, now, holding, limit_ns);
        if (state_ == State::kNone) {
            return answer;
        }
    }
    ++asked_;
    last_ns_ = now;
    if (asked_ > kMostLaunches) {
        // Too long for all this: the next is begun after the next stand.
        entry().launches = entry().least = 0;
        state_ = State::kCounting;
        following_.store(false, std::memory_order_relaxed);
    }
    return answer;
}

// A launch more than the last times. kPasses: the piece is over, or it is not known and the turn is
// there; the state says how to go on. Under the lock.
SmallPieces::Answer SmallPieces::beyond(const Stream& stream, std::uint64_t now, bool holding,
                                        std::uint64_t limit_ns) noexcept {
    Entry& known = entry();
    const bool passed = passing_;
    state_ = State::kNone;
    passing_ = false;
    if (!probe_->pending) {
        return Answer::kPasses;  // settled
    }
    const PieceProgress progress = inference_.piece(probe_->marks);
    if (progress.state == PieceState::kOver) {
        measured(*probe_, progress.ns);
        return Answer::kPasses;
    }
    if (passed && holding && progress.state != PieceState::kUnknown) {
        return Answer::kPasses;  // what comes behind it has the turn, and is another piece
    }
    if (progress.state == PieceState::kWaits) {
        if (!passed) {
            return Answer::kPasses;  // for a collective, not for the device
        }
        // What is launched behind it would wait for that as well; a piece that waits for nothing
        // was launched a moment ago.
        const bool behind = inference_.newest_unfinished(stream) != 0;
        if (!behind && now > probe_->marked_ns + std::max(limit_ns, kLongestNs)) {
            return Answer::kTurn;
        }
        const Entry* const following = behind ? entries_.find(inference_.place(stream)) : nullptr;
        if (following != nullptr && may_pass(*following, limit_ns)) {
            return Answer::kPasses;  // another small one
        }
        state_ = State::kMarked;
        passing_ = true;
        return behind ? Answer::kLater : Answer::kSoon;
    }
    if (progress.state == PieceState::kRuns && passed && !late(*probe_, now, limit_ns)) {
        state_ = State::kMarked;
        passing_ = true;
        return Answer::kSoon;
    }
    if (!passed && now - std::min(now, last_ns_) > kPauseNs) {
        return Answer::kPasses;  // perhaps it is over, and is heard of late
    }
    // Nor does the device stand still there: the piece is a longer one.
    known.least = known.launches;
    known.launches = 0;
    mistaken(known, passed);
    probe_->pending = false;
    if (!passed) {
        state_ = State::kCounting;
        return Answer::kPasses;
    }
    return Answer::kTurn;
}

// Under the lock. Rules 2 and 4.
bool SmallPieces::may_pass(const Entry& known, std::uint64_t limit_ns) const noexcept {
    return known.passes(limit_ns) && in_a_row_ < kMostInARow &&
           passed_ns_ + known.length_ns <= 2 * limit_ns;
}

// Under the lock. The state stays kNone where no piece begins.
SmallPieces::Answer SmallPieces::begin(Stream& stream, std::uint64_t now, bool holding,
                                       std::uint64_t limit_ns) noexcept {
    settle(now, limit_ns);
    place_ = inference_.place(stream);
    Entry& known = entry();
    passing_ = false;
    probe_ = nullptr;
    if (holding) {
        in_a_row_ = 0;
        passed_ns_ = 0;
        if (known.long_ones > 1 && known.skipped < std::min(1U << known.long_ones, kMostSkipped)) {
            ++known.skipped;
            following_.store(false, std::memory_order_relaxed);
            return Answer::kUnder;
        }
        known.skipped = 0;
    } else if (!may_pass(known, limit_ns)) {
        following_.store(true, std::memory_order_relaxed);
        return Answer::kTurn;
    }
    const auto spare = std::find_if(probes_.begin(), probes_.end(),
                                    [](const Probe& each) { return !each.pending; });
    if (known.launches != 0 && spare != probes_.end() &&
        inference_.piece_begins(spare->marks, stream)) {
        probe_ = &*spare;
        probe_->place = place_;
        probe_->began_ns = now;
        probe_->begun_ns = 0;
        probe_->passing = !holding;
    }
    following_.store(true, std::memory_order_relaxed);
    if (!holding) {
        if (probe_ == nullptr) {
            return Answer::kTurn;  // what is not measured does not pass
        }
        ++in_a_row_;
        passed_ns_ += known.length_ns;
        passing_ = true;
    }
    state_ = State::kCounting;
    asked_ = made_ = 0;
    return holding ? Answer::kUnder : Answer::kBegins;
}

bool SmallPieces::made(bool launched) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (state_ != State::kCounting || !launched || ++made_ != entry().launches) {
        return false;
    }
    if (probe_ == nullptr || !inference_.piece_ended(probe_->marks)) {
        entry().good = 0;
        probe_ = nullptr;
        return false;
    }
    state_ = State::kMarked;
    probe_->pending = true;
    probe_->marked_ns = last_ns_;
    return true;
}

void SmallPieces::marked(std::uint64_t now) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    if (probe_ != nullptr) {
        probe_->marked_ns = now;
    }
}

void SmallPieces::stop() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    following_.store(true, std::memory_order_relaxed);
    if (state_ == State::kCounting && asked_ <= kMostLaunches) {
        Entry& known = entry();
        known.good = 0;  // not as many as the last times
        known.launches = asked_;
        known.least = 0;
    }
    state_ = State::kNone;
    passing_ = false;
}

void SmallPieces::watch(std::uint64_t now, std::uint64_t limit_ns) noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    settle(now, limit_ns);
}

// Whether a piece that passed runs for longer than it may. Under the lock, as is all that follows.
bool SmallPieces::late(Probe& probe, std::uint64_t now, std::uint64_t limit_ns) noexcept {
    if (probe.begun_ns == 0) {
        probe.begun_ns = std::max(now, probe.marked_ns);
    }
    return now > probe.begun_ns + std::max(limit_ns, kLongestNs);
}

void SmallPieces::settle(std::uint64_t now, std::uint64_t limit_ns) noexcept {
    for (Probe& each : probes_) {
        // The launching threads may still be about to tell when they have marked it.
        if (!each.pending || (&each == probe_ && state_ == State::kMarked && !passing_)) {
            continue;
        }
        const PieceProgress progress = inference_.piece(each.marks);
        if (progress.state == PieceState::kOver) {
            measured(each, progress.ns);
        } else if (progress.state == PieceState::kRuns && each.passing &&
                   late(each, now, limit_ns)) {
            in_a_row_ = kMostInARow;
            if (Entry* known = entries_.find(each.place)) {
                mistaken(*known, true);
            }
            each.pending = false;
        } else if (progress.state == PieceState::kUnknown) {
            each.pending = false;
        }
    }
}

void SmallPieces::measured(Probe& probe, std::uint64_t length_ns) noexcept {
    probe.pending = false;
    Entry* const known = entries_.find(probe.place);
    if (known == nullptr) {
        return;
    }
    // A thread that lost its core between two launches makes the piece no longer for the device;
    // how much of that time the device worked is not known.
    const std::uint64_t launching_ns = std::min(probe.marked_ns - probe.began_ns, length_ns);
    length_ns -= launching_ns - launching_ns / kLaunchingPart;
    if (length_ns > kLongestNs) {
        known->length_ns = length_ns;
        known->long_ones = std::min(known->long_ones + 1, 16U);
        known->launches = 0;  // perhaps it can be parted
        mistaken(*known, probe.passing);
        return;
    }
    known->long_ones = 0;
    known->length_ns = known->good == 0 ? length_ns : known->length_ns / 4 * 3 + length_ns / 4;
    known->good = std::min(known->good + 1, kMostNeeded);
    if (known->good >= 2 * known->needed) {
        known->needed = std::max(known->needed / 2, 1U);
    }
}

void SmallPieces::mistaken(Entry& known, bool passed) noexcept {
    known.good = 0;
    if (passed) {
        known.needed = std::min(2 * known.needed, kMostNeeded);
    }
}

std::uint64_t SmallPieces::expected_ns() noexcept {
    const std::lock_guard<std::mutex> guard(mutex_);
    return entry().length_ns;
}

}  // namespace crossover
