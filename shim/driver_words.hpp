// SPDX-License-Identifier: Apache-2.0
// Words of memory that the GPU and the process share, and streams that wait on one of them. Memory
// of our own that is registered with the driver, so it outlives the context. No turn, no epoch's
// meaning, no CUDA type here.
#pragma once

#include <atomic>
#include <cstdint>

namespace crossover {

class DriverWords {
  public:
    // Maps and registers the words; needs a current context, on a device that is called `ordinal`.
    // kNone: this driver or device has no stream memory operations, or refuses. kEnded: the process
    // ends, and the driver with it. Once, by one thread.
    enum class Opened { kYes, kNone, kEnded };
    Opened open(std::uint32_t ordinal) noexcept;

    // Makes the stream, when it comes to this place, first write `epoch` to the word `index`, then
    // wait until the word 0 has come to it. False: the driver refuses. The caller makes sure that
    // the stream does not capture.
    bool put(std::uintptr_t stream, std::uint32_t index, std::uint32_t epoch) noexcept;
    // Makes the stream, when it comes to this place, wait while hold() says so. Otherwise as put().
    bool put_hold(std::uintptr_t stream) noexcept;

    // --- plain memory: no call to the driver, any thread, after open()

    void let_through(std::uint32_t epoch) noexcept {
        words_[0].store(epoch, std::memory_order_release);
    }
    void hold(bool held) noexcept { words_[kHold].store(held ? 1 : 0, std::memory_order_release); }
    std::uint32_t at(std::uint32_t index) const noexcept {
        return words_[index].load(std::memory_order_acquire);
    }

    // Words 1 to kStreams are the streams'.
    static constexpr std::uint32_t kStreams = 4094;

  private:
    static constexpr std::uint32_t kHold = kStreams + 1;
    static constexpr std::uint32_t kWords = kHold + 1;

    std::atomic<std::uint32_t>* words_ = nullptr;  // never unmapped: streams may wait on it
    std::uint64_t device_address_ = 0;
};

}  // namespace crossover
