// SPDX-License-Identifier: Apache-2.0
// Child processes of the hand-over benchmark, memory they share, their clients and the kernel's
// counts of them. No measurement here, no judgement.
#pragma once

#include <sys/mman.h>
#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <memory>
#include <new>
#include <stdexcept>
#include <string>
#include <vector>

#include "arbiter/client.hpp"
#include "arbiter/segment.hpp"

namespace crossover::bench {

inline constexpr std::uint64_t kMs = 1'000'000;
inline constexpr std::uint64_t kSecond = 1'000 * kMs;
inline constexpr std::uint64_t kLongNs = 120 * kSecond;  // "something hangs"

[[noreturn]] void fail(const std::string& why);
void sleep_ns(std::uint64_t ns);

// A forked child. It ends with its parent; the destructor ends it.
class Child {
  public:
    // Exit status 0 when `body` returns; 1 and a line on standard error when it throws.
    explicit Child(const std::function<void()>& body);
    Child(Child&& other) noexcept;
    Child(const Child&) = delete;
    Child& operator=(const Child&) = delete;
    Child& operator=(Child&&) = delete;
    ~Child();

    pid_t pid() const { return pid_; }
    // True once it has ended well; throws when it has ended otherwise. Does not wait.
    bool done();

  private:
    pid_t pid_ = -1;
};

// Waits until all have ended well; throws when one has not, or after `longest_ns`.
void wait_for_all(std::vector<Child>& children, std::uint64_t longest_ns);
// Waits until `condition`; throws when a child has ended, or after kLongNs.
void wait_until(const std::function<bool()>& condition, std::vector<Child>& children,
                const char* what);

// A value in memory that children share. T must be fit for it (atomics, plain data).
template <class T>
class Shared {
  public:
    explicit Shared(std::size_t count = 1) : bytes_(sizeof(T) * count) {
        void* memory =
            mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        if (memory == MAP_FAILED) fail("no shared memory");
        values_ = static_cast<T*>(memory);
        for (std::size_t i = 0; i < count; ++i) new (values_ + i) T();
    }
    ~Shared() { munmap(values_, bytes_); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T* operator->() const { return values_; }
    T& operator*() const { return *values_; }
    T& operator[](std::size_t at) const { return values_[at]; }

  private:
    std::size_t bytes_;
    T* values_ = nullptr;
};

// A private folder for segments, in shared memory where there is any; removed with its content.
class SegmentDirectory {
  public:
    SegmentDirectory();
    ~SegmentDirectory();
    SegmentDirectory(const SegmentDirectory&) = delete;
    SegmentDirectory& operator=(const SegmentDirectory&) = delete;

    // Attaches this process to device number `device` as a client of job number `job`; throws.
    std::unique_ptr<Client> attach(std::uint32_t device, std::uint32_t job) const;
    // Read-only looks at every segment, as the tools have.
    std::vector<MappedSegment> look() const;

  private:
    std::string path_;
};

// Whether the process's first thread sleeps ('S' in /proc/PID/stat).
class SleepLook {
  public:
    explicit SleepLook(pid_t pid);
    ~SleepLook();
    SleepLook(const SleepLook&) = delete;
    SleepLook& operator=(const SleepLook&) = delete;
    bool sleeps() const;

  private:
    int file_ = -1;
};

struct Switches {
    std::uint64_t voluntary = 0;
    std::uint64_t involuntary = 0;
};
// Sum over all threads of the process.
Switches switches_of(pid_t pid);

}  // namespace crossover::bench
