// SPDX-License-Identifier: Apache-2.0
// Window inference: from the order of launches, collectives, event records and stream waits it
// tells whether a stream stands behind an unfinished collective, whether all submitted compute has
// finished (drained), and how long the window will be. One object per device and process. It knows
// no CUDA, no NCCL, no arbiter: streams and events are opaque numbers, the GPU is GpuEvents.
//
// Thread-safety: every public function may be called by any thread. Those the launch path uses take
// no lock unless a stream is new. Functions that record events take the lock for that long, and are
// called with a current context.
//
// Rules (design, "window inference"):
//  1. A collective gets number k; its stream is then behind k. An event record copies the stream's
//  number to
//     the event, a stream wait merges it into the waiting stream; blocking streams and the legacy
//     default stream follow CUDA's implicit order.
//  2. A drain marker is recorded on each stream with unmarked compute when a collective is
//     submitted, on a stream just before it is put behind a collective, and on a per-thread default
//     stream at its thread's event records and end, as no other thread can name it.
//  3. Drained = on every stream all launches are covered by its last marker and that marker is
//  done.
//  4. A stream on which collectives run and that was joined to others' compute, without carrying
//  most of the
//     launches itself, is a communication stream: its kernels belong to the collective.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "shim/inference/gpu_events.hpp"
#include "shim/inference/handle_map.hpp"
#include "shim/inference/history.hpp"

namespace crossover {

using StreamKey = std::uintptr_t;
using EventKey = std::uintptr_t;

enum class StreamKind : std::uint32_t {
    kNonBlocking,  // no implicit order with the legacy default stream
    kBlocking,
    kLegacyDefault,
    kPerThread,  // only its own thread can name it, so only that thread marks it: at its event
                 // records, its collectives, and at its end (remove_stream)
};

// A marker event with the number of owners that still want to ask it.
struct Marker {
    GpuEvent event = nullptr;
    std::uint32_t references = 0;
    bool done = false;
};

// A line of its own: threads that launch on different streams share nothing.
struct alignas(64) Stream {
    StreamKey handle = 0;
    StreamKind kind = StreamKind::kNonBlocking;
    std::atomic<bool> communication{false};
    std::atomic<std::uint64_t> behind{0};  // newest collective it depends on
    std::atomic<std::uint64_t> passed{
        0};  // newest collective that launches on it need not wait for
    std::atomic<std::uint64_t> crossed{0};    // newest collective that a launch has met on it
    std::atomic<std::uint64_t> submitted{0};  // compute launches that the driver has taken
    std::atomic<std::uint64_t> launches{0};   // others: packing kernels of a communication
                                              // stream, graphs with collectives in them
    std::uint64_t all_launches() const noexcept {
        return submitted.load(std::memory_order_acquire) + launches.load(std::memory_order_relaxed);
    }
    // A thread puts it behind a collective just now: launches stay out (the gate's).
    std::atomic<bool> moving{false};
    // Guarded by WindowInference::mutex_.
    std::uint64_t marked = 0;  // value of `submitted` that `marker` covers
    Marker* marker = nullptr;
    bool joined_compute = false;  // has waited for another stream's compute
    bool alive = false;
    std::uint64_t thread = 0;  // kPerThread: its thread
    // The gate's (gate/turnkeeper.cpp): the newest epoch that what is launched on it waits for, and
    // the word that is its own.
    std::atomic<std::uint32_t> epoch{0};
    std::atomic<std::uint32_t> word{0};
};

struct CollectiveCall {
    std::uint64_t communicator = 0;  // any stable number of it, 0 unknown
    std::uint64_t bytes = 0;         // 0 unknown
    std::uint64_t operation = 0;     // any stable number of its kind
};

// A stream is put behind an event.
struct StreamMove {
    std::uint64_t collective = 0;  // that it is thereby put behind; 0: none
    bool kept_out = false;         // nobody launches on the stream meanwhile
};

inline constexpr std::size_t kMaxMarkers = 8;  // streams with compute that are told apart

// A piece of compute, from one launch to another. Of WindowInference alone.
struct PieceMarks {
    GpuEvent begin = nullptr;
    std::array<Marker*, kMaxMarkers> ends{};
};

enum class PieceState : std::uint32_t {
    kWaits,  // its first launch has not begun: it stands behind a collective
    kRuns,
    kOver,
    kUnknown,  // cannot be measured
};

struct PieceProgress {
    PieceState state = PieceState::kUnknown;
    std::uint64_t ns = 0;  // kOver: how long it took
};

struct FinishedCollective {
    std::uint64_t number = 0;
    std::uint64_t running_ns = 0;  // on the GPU, waiting for peers included
    std::uint64_t exposed_ns = 0;  // part of it after the job's compute had drained
    std::uint64_t place = 0;       // in the iteration, as a number that comes again
};

class WindowInference {
  public:
    explicit WindowInference(GpuEvents& gpu);
    ~WindowInference();
    WindowInference(const WindowInference&) = delete;
    WindowInference& operator=(const WindowInference&) = delete;

    // --- streams
    // -------------------------------------------------------------------------------------------
    // The stream's record; nullptr when the table is full, or without memory.
    Stream* stream(StreamKey key, StreamKey handle, StreamKind kind, std::uint64_t thread) noexcept;
    Stream* find_stream(StreamKey key) noexcept { return streams_.find(key); }
    // The stream is about to go. Its work still counts; of a per-thread stream only what could be
    // marked, so it is to be called by the stream's own thread.
    void remove_stream(StreamKey key) noexcept;
    // Forgets what is known and takes every stream to have unmarked compute: tracking starts
    // (again).
    void restart() noexcept;

    // --- the launch path
    // ----------------------------------------------------------------------------------- The
    // newest unfinished collective that a launch on the stream would stand behind, or 0.
    std::uint64_t unfinished_behind(Stream& stream) noexcept {
        const std::uint64_t newest = behind(stream);
        if (newest > stream.crossed.load(std::memory_order_relaxed)) {
            note_crossing(stream, newest);
        }
        return newest <= stream.passed.load(std::memory_order_relaxed) || finished(newest) ? 0
                                                                                           : newest;
    }
    // The newest collective that the stream stands behind, if it is unfinished, whether launches
    // wait for it or not; or 0.
    std::uint64_t newest_unfinished(const Stream& stream) const noexcept {
        const std::uint64_t newest = behind(stream);
        return finished(newest) ? 0 : newest;
    }
    // A launch on the stream would be the first behind its newest collective, finished or not. To
    // be asked before unfinished_behind().
    bool meets_collective(const Stream& stream) const noexcept {
        return behind(stream) > stream.crossed.load(std::memory_order_relaxed);
    }
    // The driver has taken a compute launch of the stream. To be called before the launching thread
    // is counted out of the gate's traffic.
    void compute_submitted(Stream& stream) noexcept {
        stream.submitted.fetch_add(1, std::memory_order_acq_rel);
    }
    // Whether waiting for `number`, and for what runs before it on its stream, is expected to pay
    // (behind a graph that computes also while nothing is known of it); when not, the stream is
    // marked as having passed it.
    bool crossing_pays(Stream& stream, std::uint64_t number, std::uint64_t min_window_ns) noexcept;
    bool finished(std::uint64_t number) const noexcept {
        if (number == 0) {
            return true;
        }
        const Collective& collective = slot(number);
        // A slot that went to a later collective was free before, so its former owner had finished.
        return collective.number.load(std::memory_order_acquire) != number ||
               collective.state.load(std::memory_order_acquire) == State::kFinished;
    }

    // --- the rest
    // --------------------------------------------------------------------------------------------
    // Around the launch of a communication kernel on the stream. The number, or 0 when it is not
    // tracked. `computes`: a graph of compute and collectives, whose compute ends unseen, so that
    // nothing of it counts as a window; what comes behind it crosses at its end.
    std::uint64_t before_collective(Stream& stream, const CollectiveCall& call,
                                    bool computes = false) noexcept;
    void after_collective(Stream& stream, std::uint64_t number, bool launched) noexcept;
    void event_recorded(EventKey event, Stream& stream) noexcept;
    void event_destroyed(EventKey event) noexcept;
    // Whether waiting for the event puts the stream behind a collective that it does not stand
    // behind yet.
    bool puts_behind(const Stream& stream, EventKey event) noexcept;
    // Around the driver's wait. The number of the collective that the stream is thereby put behind,
    // or 0. Where others may launch on the stream meanwhile, nobody knows whether that stands
    // behind it, too.
    std::uint64_t before_wait(Stream& stream, EventKey event) noexcept;
    void after_wait(Stream& stream, const StreamMove& move) noexcept;

    // --- the watcher
    // -------------------------------------------------------------------------------------------
    // Asks the oldest collectives in flight; returns one that has finished since, or nothing.
    std::optional<FinishedCollective> poll_finished() noexcept;
    // Number of the newest collective in flight, or 0.
    std::uint64_t newest_in_flight() const noexcept {
        return newest_in_flight_.load(std::memory_order_acquire);
    }
    // A graph that computes, too, is in flight: the device is in use and no window can be told.
    bool computing_graph_in_flight() const noexcept {
        return computing_graphs_.load(std::memory_order_acquire) != 0;
    }
    // All submitted compute is covered by markers that are done. Asks the GPU.
    bool drained() noexcept;
    // The unfinished collective that all compute stands behind: all of the job's compute has
    // finished but for what was launched behind a collective that is still in flight, or drained()
    // with one in flight. 0: some compute may run, or nothing is in flight. Tells a window where
    // threads launch on behind it, so it is no ground for giving the turn back. To be asked after
    // poll_finished().
    std::uint64_t stands_behind() noexcept;
    // The collective has not ended. Asks the GPU; poll_finished() still has to find its end.
    bool still_runs(std::uint64_t number) noexcept;
    // Records markers on streams whose launches are not covered. True when every one could be
    // marked.
    bool mark_open_streams() noexcept;
    // How long a window that is open now is expected to last, for this collective, or the newest
    // one in flight, and those that run before it on its stream.
    std::optional<std::uint64_t> expected_window_ns(std::uint64_t number = 0) noexcept;
    // Whether all collectives before it have ended.
    bool is_oldest(std::uint64_t number) noexcept;
    // By how much earlier windows of this collective differed from that, on average.
    std::uint64_t window_deviation_ns(std::uint64_t number) noexcept;
    // --- pieces of compute (small_pieces.hpp, which has one thread at a time call these)
    // Where the iteration stands as the stream sees it, as one number: the newest collectives, how
    // many of them it does not stand behind, and the launches since.
    std::uint64_t place(const Stream& stream) noexcept;
    // Around a piece: marks its beginning on the stream, and its end on all with compute. False:
    // what could not be marked is not measured. The marks are the caller's to keep, and to give
    // again.
    bool piece_begins(PieceMarks& marks, Stream& stream) noexcept;
    bool piece_ended(PieceMarks& marks) noexcept;
    // From the one to the other. Asks the GPU.
    PieceProgress piece(PieceMarks& marks) noexcept;

    // Between the two no event of ours is recorded; the caller does no other call in between.
    void hold_records() noexcept { mutex_.lock(); }
    void allow_records() noexcept { mutex_.unlock(); }
    // An event of ours failed: inference cannot be trusted any more.
    bool faulty() const noexcept { return faulty_.load(std::memory_order_acquire); }

  private:
    enum class State : std::uint32_t { kFree, kSubmitting, kInFlight, kFinished };
    struct Collective {
        std::atomic<std::uint64_t> number{0};
        std::atomic<State> state{State::kFree};
        StreamKey stream = 0;
        bool computes = false;
        GpuEvent begin = nullptr;
        GpuEvent end = nullptr;
        std::uint64_t context_signature = 0;
        std::uint64_t crossing_signature = 0;
        std::uint64_t window_signature = 0;
        std::uint64_t communicator_signature = 0;
        // The last markers of the job's compute as the collective saw them, with the stream of
        // each.
        struct Mark {
            const Stream* stream = nullptr;
            Marker* marker = nullptr;
            std::uint64_t launches = 0;  // of the stream, that the marker covers
            // What was launched on the stream since stands behind the collective.
            bool before = false;
        };
        std::array<Mark, kMaxMarkers> marks{};
    };
    struct EventRecord {
        std::atomic<std::uint64_t> behind{0};
        std::atomic<StreamKey> compute_stream{
            0};  // 0: the stream it was recorded on carries no compute
    };
    static constexpr std::size_t kCollectives = 256;
    static constexpr std::size_t kSpareEvents = 64;
    static constexpr std::size_t kContext = 4;  // collectives that tell a place in the iteration
    static constexpr std::uint64_t kMostBeside = 64;  // collectives; see place()

    // With CUDA's implicit order: the legacy default stream stands behind all blocking streams, and
    // they behind it.
    std::uint64_t behind(const Stream& stream) const noexcept {
        const std::uint64_t own = stream.behind.load(std::memory_order_acquire);
        if (stream.kind == StreamKind::kNonBlocking) {
            return own;
        }
        const bool legacy = stream.kind == StreamKind::kLegacyDefault;
        return std::max(
            own, (legacy ? blocking_behind_ : legacy_behind_).load(std::memory_order_acquire));
    }
    void put_behind(Stream& stream, std::uint64_t number) noexcept;
    Collective& slot(std::uint64_t number) noexcept { return collectives_[number % kCollectives]; }
    const Collective& slot(std::uint64_t number) const noexcept {
        return collectives_[number % kCollectives];
    }
    static bool ordered_behind(const Stream& stream, const Stream& collectives) noexcept;
    bool markable(const Stream& stream) const noexcept;
    Marker* new_marker() noexcept;
    bool mark(Stream& stream, bool refusal_is_fault = true) noexcept;
    bool covered(const Stream& stream) noexcept;
    std::uint64_t waits_for(const Stream& stream) noexcept;
    bool orphans_done() noexcept;
    void attach_mark(Collective& collective, const Stream& stream, bool before) noexcept;
    static void doubt_order(Collective& collective, const Stream* stream, bool kept_out) noexcept;
    void drop_marker(Marker*& marker) noexcept;
    void retire(Collective& collective) noexcept;
    void note_crossing(Stream& stream, std::uint64_t number) noexcept;
    void update_in_flight() noexcept;
    std::uint64_t context() const noexcept;
    std::uint64_t compute_launches() const noexcept;
    void drop_piece(PieceMarks& marks) noexcept;
    std::uint64_t measure_exposed(Collective& collective, std::uint64_t running_ns) noexcept;
    std::optional<std::uint64_t> predict_window(const Collective& collective) const noexcept;
    std::optional<std::uint64_t> predict_crossing(const Collective& collective) const noexcept;
    template <typename Predict>
    std::optional<std::uint64_t> predict_until(std::uint64_t number,
                                               Predict predict) const noexcept;
    bool marker_done(Marker& marker) noexcept;
    GpuEvent take_event() noexcept;
    void give_event(GpuEvent event) noexcept;
    bool record(GpuEvent event, StreamKey stream) noexcept;

    GpuEvents& gpu_;
    HandleMap<Stream> streams_{1024};
    HandleMap<EventRecord> events_{16384};
    std::array<Collective, kCollectives> collectives_;
    std::atomic<std::uint64_t> newest_in_flight_{0};
    std::atomic<std::uint32_t> computing_graphs_{0};  // in flight
    std::atomic<bool> faulty_{false};
    // Newest collective that a blocking stream (per-thread default streams included) or the legacy
    // default stream stands behind, of streams that are gone too: their work still counts.
    std::atomic<std::uint64_t> blocking_behind_{0};
    std::atomic<std::uint64_t> legacy_behind_{0};

    mutable std::mutex mutex_;  // everything below
    std::vector<Stream*> all_streams_;
    std::vector<Marker*> orphans_;  // of destroyed streams whose work may still run
    std::vector<GpuEvent> spare_events_;
    std::vector<std::unique_ptr<Marker>> markers_;
    std::vector<Marker*> spare_markers_;
    // By place in the iteration, windows that may be of length 0: by the collectives before, and by
    // how many came since the last crossing.
    WindowHistory contexts_;
    WindowHistory crossings_;
    // By communicator and size, windows that did open; by communicator, all.
    WindowHistory windows_;
    std::uint64_t next_number_ = 1;
    std::uint64_t oldest_in_flight_ = 1;  // no collective below it is in flight
    std::uint64_t position_ = 0;          // collectives since the last crossing
    std::array<std::uint64_t, kContext>
        recent_{};                             // what the newest collectives were, newest first
    std::uint64_t compute_before_newest_ = 0;  // launches
};

// A number of the calling thread that no other live thread of the process has.
std::uint64_t current_thread_number() noexcept;

}  // namespace crossover
