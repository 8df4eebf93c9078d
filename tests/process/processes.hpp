// SPDX-License-Identifier: Apache-2.0
// Forked child processes, memory shared with them, and a folder for their segments. Every wait is
// bounded; children die with the test.
#pragma once

#include <gtest/gtest.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>
#include <functional>
#include <memory>
#include <new>
#include <string>
#include <thread>

#include "arbiter/client.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/segment.hpp"

namespace crossover {

// In a child: ends it with a line that names what did not hold.
#define CX_CHILD_CHECK(condition)                                                     \
    do {                                                                              \
        if (!(condition)) {                                                           \
            fprintf(stderr, "%s:%d: in child: %s\n", __FILE__, __LINE__, #condition); \
            _exit(1);                                                                 \
        }                                                                             \
    } while (false)

inline constexpr std::uint64_t kMs = 1'000'000;
inline constexpr std::uint64_t kLongNs = 60'000 * kMs;  // "something hangs"

inline std::uint64_t in_long() { return monotonic_ns() + kLongNs; }

// Polls; false after a minute.
template <class Condition>
bool eventually(Condition&& condition) {
    const std::uint64_t deadline = in_long();
    while (!condition()) {
        if (monotonic_ns() > deadline) return false;
        std::this_thread::sleep_for(std::chrono::microseconds(200));
    }
    return true;
}

class Process {
  public:
    explicit Process(const std::function<void()>& body) : pid_(fork()) {
        if (pid_ != 0) return;
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        body();
        _exit(0);  // no static destructors or test reports of the parent
    }
    ~Process() {
        if (pid_ > 0) {
            kill(pid_, SIGKILL);
            waitpid(pid_, nullptr, 0);
        }
    }
    Process(const Process&) = delete;
    Process& operator=(const Process&) = delete;

    pid_t pid() const { return pid_; }
    void send(int signal) const { kill(pid_, signal); }
    // The wait status; afterwards the process is gone.
    int wait() {
        int status = -1;
        waitpid(pid_, &status, 0);
        pid_ = -1;
        return status;
    }
    void expect_success() { EXPECT_EQ(wait(), 0); }
    void kill_now() {
        send(SIGKILL);
        const int status = wait();
        EXPECT_TRUE(WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL)
            << "ended by itself, status " << status;
    }

  private:
    pid_t pid_;
};

template <class T>
class Shared {
  public:
    Shared()
        : value_(new (mmap(nullptr, sizeof(T), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS,
                           -1, 0)) T()) {}
    ~Shared() { munmap(value_, sizeof(T)); }
    Shared(const Shared&) = delete;
    Shared& operator=(const Shared&) = delete;
    T* operator->() const { return value_; }
    T& operator*() const { return *value_; }

  private:
    T* value_;
};

class ProcessTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "crossover-process-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        for (std::uint8_t i = 0; i < 16; ++i) device_.bytes[i] = static_cast<std::uint8_t>(i * 3);
    }
    void TearDown() override { std::filesystem::remove_all(root_); }

    std::string file() const { return root_ + "/GPU-00030609-0c0f-1215-181b-1e2124272a2d.v" + std::to_string(kLayoutVersion); }
    bool file_exists() const { return std::filesystem::exists(file()); }

    std::unique_ptr<Client> attach(std::uint64_t key, std::uint64_t lease_ms,
                                   Status& status) const {
        Options options;
        root_.copy(options.dir, sizeof options.dir - 1);
        options.lease_ms = lease_ms;
        options.memory = in_files_ ? 1 : 0;
        JobIdentity job;
        job.key = key;
        snprintf(job.name, sizeof job.name, "job%llu", static_cast<unsigned long long>(key));
        return Client::attach(device_, job, 0, options, status);
    }
    // For children: must succeed. The lease of 10 s is never what moves a turn in a test of deaths.
    std::unique_ptr<Client> must_attach(std::uint64_t key, std::uint64_t lease_ms = 10'000) const {
        Status status = Status::kOk;
        std::unique_ptr<Client> client = attach(key, lease_ms, status);
        if (client == nullptr) {
            fprintf(stderr, "attach: %s\n", status_text(status));
            _exit(1);
        }
        return client;
    }
    // A read-only look at the segment, as the tools have.
    MappedSegment view() const {
        Folder folder;
        MappedSegment segment;
        EXPECT_EQ(choose_folder(root_.c_str(), false, folder), Status::kOk);
        EXPECT_EQ(open_read_only(folder, file().c_str(), segment), Status::kOk);
        return segment;
    }

    std::string root_;
    DeviceUuid device_;
    bool in_files_ = false;  // the segment lies in the file itself
};

}  // namespace crossover
