// SPDX-License-Identifier: Apache-2.0
// Which pieces of compute pass without a turn. A piece is what a job launches from one stand to the
// next. A stand is: a launch behind another collective than before, the loss of the turn, or a
// pause of the launching threads in which the GPU runs dry. A piece that was short the last times
// at the same place of the iteration (an optimizer step between two windows, a loss that is read
// back) costs the job that has the turn less than handing the turn over would. No clock, no
// arbiter, no policy of turns.
//
// Rules:
//  1. A place is the run of the newest collectives, with how many of them the stream does not stand
//     behind and the number of launches since. How many launches a piece has at a place is learned
//     first, then how long they take: each only under a turn.
//  2. A piece passes if it was short the last time, with the same number of launches, and never
//     with more launches than that.
//  3. One that was measured long, or went on after its last launch, must be measured short again
//     under a turn, and twice as often after each such mistake.
//  4. At most so many pieces, and so long in all, pass between two turns.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <mutex>

#include "shim/inference/signature_table.hpp"
#include "shim/inference/windows.hpp"

namespace crossover {

// A launch asks next() before it is made and tells made() after. Any thread may call any of these.
class SmallPieces {
  public:
    static constexpr std::uint32_t kMostLaunches = 128;  // of a piece
    static constexpr std::uint32_t kMostInARow = 6;      // pieces between two turns
    static constexpr std::uint64_t kLongestNs =
        1'000'000;                                      // a piece that takes more is no small one
    static constexpr std::uint64_t kPauseNs = 100'000;  // between launches: perhaps a stand
    static constexpr std::uint64_t kLaunchingPart = 4;  // see measured()
    static constexpr std::uint32_t kMostNeeded = 64;    // see Entry::needed
    static constexpr std::uint32_t kMostSkipped = 32;   // see Entry::skipped

    explicit SmallPieces(WindowInference& inference) noexcept : inference_(inference) {}

    enum class Answer : std::uint32_t {
        kTurn,    // the launch needs the turn
        kUnder,   // it has the turn
        kPasses,  // it goes on without one
        kBegins,  // likewise, and is the first of its piece
        kSoon,    // without the turn: to ask again, when the piece before has ended or is late
        kLater,   // likewise, when the collective has ended that the stream, and that piece, is
                  // behind; another small piece goes on behind it at once
    };
    // False: launches under a turn need not ask.
    bool following() const noexcept { return following_.load(std::memory_order_relaxed); }
    // `limit_ns`: what a piece may take, as expected, to pass.
    Answer next(Stream& stream, std::uint64_t now, bool holding, std::uint64_t limit_ns) noexcept;
    // The launch was taken by the driver, or refused. True: it was the last of its piece, whose end
    // is marked now; marked() is to follow with the time.
    bool made(bool launched) noexcept;
    void marked(std::uint64_t now) noexcept;
    // The job stands still, or has lost the turn: the next launch begins a piece.
    void stop() noexcept;
    // Measures what has ended, and finds what passed and turns out long. To be called now and then.
    void watch(std::uint64_t now, std::uint64_t limit_ns) noexcept;
    // How long the piece that passes was expected to take, in ns.
    std::uint64_t expected_ns() noexcept;

  private:
    struct Entry {
        std::uint64_t length_ns = 0;  // mean of the last ones; as measured, of one too long
        std::uint32_t launches = 0;   // of the piece; 0: not known
        std::uint32_t least = 0;      // launches after which it was seen to go on
        std::uint32_t good = 0;       // measured short one after the other
        std::uint32_t needed = 1;     // so many before the piece passes
        std::uint32_t long_ones = 0;  // measured long one after the other
        std::uint32_t skipped = 0;    // not followed since, as they are known to be long
        bool passes(std::uint64_t limit_ns) const noexcept {
            return launches != 0 && good >= needed && length_ns <= limit_ns;
        }
    };

    // A piece whose end is marked, and that is not yet measured.
    struct Probe {
        PieceMarks marks;
        bool pending = false;
        bool passing = false;
        std::uint64_t place = 0;
        std::uint64_t began_ns = 0;   // when the first launch asked
        std::uint64_t marked_ns = 0;  // when the end was marked
        std::uint64_t begun_ns = 0;   // when it was first seen to run; 0: not yet
    };
    static constexpr std::size_t kProbes = kMostInARow + 2;  // they may all wait for a collective

    enum class State : std::uint32_t {
        kNone,      // the next launch begins a piece
        kCounting,  // one is under way
        kMarked,    // and its expected last launch was made
    };
    Answer begin(Stream& stream, std::uint64_t now, bool holding, std::uint64_t limit_ns) noexcept;
    Answer beyond(const Stream& stream, std::uint64_t now, bool holding,
                  std::uint64_t limit_ns) noexcept;
    bool may_pass(const Entry& known, std::uint64_t limit_ns) const noexcept;
    bool late(Probe& probe, std::uint64_t now, std::uint64_t limit_ns) noexcept;
    void settle(std::uint64_t now, std::uint64_t limit_ns) noexcept;
    void measured(Probe& probe, std::uint64_t length_ns) noexcept;
    void mistaken(Entry& entry, bool passed) noexcept;
    Entry& entry() noexcept { return entries_.use(place_); }

    WindowInference& inference_;
    std::atomic<bool> following_{false};

    std::mutex mutex_;  // everything below; WindowInference's comes after it
    State state_ = State::kNone;
    bool passing_ = false;
    std::uint64_t place_ = 0;
    std::uint64_t last_ns_ = 0;  // when the last launch asked
    std::uint32_t asked_ = 0;    // launches of the piece
    std::uint32_t made_ = 0;
    std::uint32_t in_a_row_ = 0;   // pieces that passed since the last turn
    std::uint64_t passed_ns_ = 0;  // what they were expected to take
    Probe* probe_ = nullptr;       // of the piece; nullptr: it is not measured
    std::array<Probe, kProbes> probes_{};
    SignatureTable<Entry, 1024> entries_;  // by place
};

}  // namespace crossover
