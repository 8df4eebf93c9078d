// SPDX-License-Identifier: Apache-2.0
// For tests of the preloaded library: guest programs in processes of their own, and a look into the
// segments of the machine the test runs on. No CUDA; nothing here is preloaded by itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <map>
#include <string>
#include <thread>
#include <utility>
#include <vector>

namespace crossover::test {

// A running guest_cuda. Ends with the object.
class Guest {
  public:
    // `with` is set over this process's environment ("NAME=value"); LD_PRELOAD is the library
    // unless it is among them.
    explicit Guest(const std::vector<std::string>& words,
                   const std::vector<std::string>& with = {});
    ~Guest();
    Guest(const Guest&) = delete;
    Guest& operator=(const Guest&) = delete;

    // Reads its output up to and with the line; false at the output's end.
    bool wait_for_line(const std::string& line);
    void send_line();
    void send(int signal) const;
    // Closes its input and waits for its end: wait status, and everything it said since.
    int finish();
    const std::string& out() const { return out_; }
    const std::string& err() const { return err_; }
    pid_t pid() const { return pid_; }

  private:
    pid_t pid_ = -1;
    int input_ = -1;
    int output_ = -1;
    std::string error_file_;
    std::string out_;
    std::string err_;
};

struct ClientSeen {
    std::string job;
    std::uint64_t windows = 0;
    std::uint64_t crossings = 0;
    std::uint64_t communicated_ns = 0;
    std::uint64_t collectives = 0;  // submitted, among the last thousands of events
    std::uint32_t ordinal = 0;
    bool claims = false;
    bool waits = false;
};
struct JobSeen {
    std::uint64_t turns = 0;
    std::uint32_t clients = 0;
    std::uint64_t expired = 0;  // turns cut by their lease, among the last thousands of events
};
struct DeviceSeen {
    std::vector<std::pair<pid_t, ClientSeen>> clients;
    std::map<std::string, JobSeen> jobs;
    // Clients of the process; one that is registered once has one.
    std::vector<ClientSeen> of(pid_t pid) const;
};
// By UUID in 32 hexadecimal digits: every segment in CROSSOVER_DIR, or in `folder`.
std::map<std::string, DeviceSeen> look(const char* folder = nullptr);
// The only device there is a segment of; empty when there is none or there are more.
DeviceSeen look_at_device(const char* folder = nullptr);

// Polls until it holds; the test's own watchdog ends a wait that never does.
template <class Condition>
void await(Condition&& condition) {
    while (!condition()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

int exit_status_of(int wait_status);  // -signal when a signal ended it

}  // namespace crossover::test
