// SPDX-License-Identifier: Apache-2.0
// A program on a model GPU, told to window inference as the hooks would tell it. For tests only.
#pragma once

#include <gtest/gtest.h>

#include <optional>

#include "shim/inference/windows.hpp"
#include "tests/unit/fake_gpu.hpp"

namespace crossover {

inline constexpr std::int64_t kMs = 1'000'000;
inline constexpr std::uint64_t kMinWindow = 300'000;
inline constexpr StreamKey kMain = 0x1000;
inline constexpr StreamKey kComm = 0x2000;
inline constexpr StreamKey kOther = 0x3000;
inline constexpr EventKey kReady = 0x10;
inline constexpr EventKey kDone = 0x20;

// Plays a program on the model GPU and tells inference what the hooks would.
class Windows : public testing::Test {
  protected:
    Stream& stream(StreamKey key, StreamKind kind = StreamKind::kNonBlocking) {
        Stream* found = windows.stream(key, key, kind, current_thread_number());
        EXPECT_NE(found, nullptr);
        return *found;
    }
    // A launch; returns the collective it would have to wait for.
    std::uint64_t launch(Stream& on, std::int64_t ns) {
        const std::uint64_t behind = windows.unfinished_behind(on);
        gpu.work(on.handle, ns);
        windows.compute_submitted(on);
        return behind;
    }
    std::uint64_t collective(Stream& on, std::int64_t ns, std::uint64_t bytes = 1000) {
        const std::uint64_t number = windows.before_collective(on, {7, bytes, 1});
        gpu.work(on.handle, ns);
        windows.after_collective(on, number, true);
        return number;
    }
    void record(EventKey event, Stream& on) { windows.event_recorded(event, on); }
    void wait(Stream& on, EventKey event, const Stream& recorded_on) {
        windows.before_wait(on, event);
        gpu.join(on.handle, recorded_on.handle);
    }
    std::optional<FinishedCollective> finish_at(std::int64_t time) {
        gpu.now = time;
        return windows.poll_finished();
    }
    // A backward pass and its sum on a stream of its own; kDone is behind that.
    std::uint64_t compute_and_sum(Stream& main, Stream& comm, std::int64_t compute_ns,
                                  std::int64_t communicate_ns) {
        launch(main, compute_ns);
        record(kReady, main);
        wait(comm, kReady, main);
        const std::uint64_t number = collective(comm, communicate_ns);
        record(kDone, comm);
        return number;
    }
    // One iteration of data-parallel training with one bucket after the backward pass. Returns the
    // collective that the optimizer's launch stands behind.
    std::uint64_t ddp_iteration(std::int64_t compute_ns, std::int64_t communicate_ns) {
        Stream& main = stream(kMain);
        Stream& comm = stream(kComm);
        compute_and_sum(main, comm, compute_ns, communicate_ns);
        wait(main, kDone, comm);
        return launch(main, 0);
    }

    FakeGpu gpu;
    WindowInference windows{gpu};
};

}  // namespace crossover
