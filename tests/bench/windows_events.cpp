// SPDX-License-Identifier: Apache-2.0
// Records every event of a folder's rings for the benchmark "windows": one JSON line each on
// standard output, from the first segment that appears to the end of standard input. It judges
// nothing.
//   windows_events DIR
// A line of an event: device, ordinal and pid of its client (null: of no client), time_ns, kind,
// value, job. A line of a loss: device, lost, from_ns. A line of a time in which one of the
// processors ran nothing of this machine's for a millisecond or more, which another guest of the
// same host may cause and no scheduler here knows of: stood_still_ns, until_ns.
#include <fmt/format.h>
#include <poll.h>
#include <sched.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <ctime>
#include <iterator>
#include <map>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "arbiter/futex.hpp"
#include "arbiter/ring.hpp"
#include "command.hpp"
#include "segments.hpp"
#include "snapshot.hpp"

namespace {

using crossover::EventKind;
using crossover::EventRecord;
namespace command = crossover::command;

// 8192 events in this time would be 160000 a second: more than any job makes.
constexpr int kPollMs = 50;

// On each processor a thread that goes before all others, the virtual GPU's real-time ones
// included, and wakes up every half millisecond. While it did not run, nobody on this machine did.
// Where such a priority is not to be had, nothing is told.
class StandstillWatch {
  public:
    StandstillWatch() {
        cpu_set_t allowed;
        if (::sched_getaffinity(0, sizeof allowed, &allowed) != 0) {
            return;
        }
        for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
            if (CPU_ISSET(cpu, &allowed)) {
                threads_.emplace_back([this, cpu] { watch(cpu); });
            }
        }
    }
    ~StandstillWatch() {
        over_ = true;
        for (std::thread& each : threads_) {
            each.join();
        }
    }
    StandstillWatch(const StandstillWatch&) = delete;
    StandstillWatch& operator=(const StandstillWatch&) = delete;

  private:
    static constexpr long kPeriodNs = 500'000;
    static constexpr std::uint64_t kStoodStillNs = 1'000'000;
    static constexpr int kPriority = 50;

    void watch(int cpu) const {
        cpu_set_t one;
        CPU_ZERO(&one);
        CPU_SET(cpu, &one);
        sched_param priority{};
        priority.sched_priority = kPriority;
        if (::sched_setaffinity(0, sizeof one, &one) != 0 ||
            ::sched_setscheduler(0, SCHED_FIFO, &priority) != 0) {
            return;
        }
        ::prctl(PR_SET_TIMERSLACK, 1UL, 0UL, 0UL, 0UL);
        while (!over_) {
            const std::uint64_t before = crossover::monotonic_ns();
            const timespec period{0, kPeriodNs};
            ::nanosleep(&period, nullptr);
            const std::uint64_t now = crossover::monotonic_ns();
            if (now - before >= kStoodStillNs) {  // however long before it last ran
                fmt::print("{{\"stood_still_ns\":{},\"until_ns\":{}}}\n", before + kPeriodNs, now);
            }
        }
    }

    std::atomic<bool> over_{false};
    std::vector<std::thread> threads_;
};

const char* name_of(EventKind kind) {
    switch (kind) {
        case EventKind::kNone:
            return "none";
#define CX_EVENT(identifier, number, name, meaning) \
    case EventKind::identifier:                     \
        return name;
#include "crossover/events.def"
#undef CX_EVENT
    }
    return "unknown";
}

// A segment and who its clients are: slots are used again, and the ring only names the slot.
class Source {
  public:
    explicit Source(std::shared_ptr<command::OpenSegment> open)
        : open_(std::move(open)),
          device_(command::uuid_text(open_->segment().header.device_uuid)) {}

    bool is(const std::shared_ptr<command::OpenSegment>& open) const { return open_ == open; }

    void read() {
        const auto batch = crossover::read_events(open_->segment(), next_);
        for (const EventRecord& event : batch.events) {
            if (event.place != next_) {
                fmt::print("{{\"device\":\"{}\",\"lost\":{},\"from_ns\":{}}}\n", device_,
                           event.place - next_, last_ns_);
            }
            next_ = event.place + 1;
            last_ns_ = event.time_ns;
            print(event);
        }
    }

  private:
    struct Client {
        std::uint64_t pid = 0;
        std::uint32_t ordinal = 0;
    };

    void print(const EventRecord& event) {
        const bool attaches = event.kind == EventKind::kAttach;
        if (attaches && event.client != 0 && event.client <= crossover::kMaxClients) {
            clients_[event.client] = {event.value,
                                      open_->segment().clients[event.client - 1].ordinal};
        }
        std::string client = "\"ordinal\":null,\"pid\":null";
        if (const auto known = clients_.find(event.client); known != clients_.end()) {
            client =
                fmt::format("\"ordinal\":{},\"pid\":{}", known->second.ordinal, known->second.pid);
        }
        fmt::print(
            "{{\"device\":\"{}\",{},\"time_ns\":{},\"kind\":\"{}\",\"value\":{},"
            "\"job\":\"{:x}\"}}\n",
            device_, client, event.time_ns, name_of(event.kind), event.value, event.job_key);
    }

    std::shared_ptr<command::OpenSegment> open_;
    std::string device_;
    std::uint64_t next_ = 0;
    std::uint64_t last_ns_ = 0;
    std::map<std::uint32_t, Client> clients_;  // by slot + 1
};

void record(const std::string& dir) {
    command::SegmentFolder folder(dir);
    std::vector<Source> sources;
    const StandstillWatch standstills;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    for (bool last = false;; last = ::poll(&input, 1, kPollMs) != 0) {
        folder.refresh();
        for (const auto& open : folder.segments()) {
            const auto known = [&open](const Source& source) { return source.is(open); };
            if (std::none_of(sources.begin(), sources.end(), known)) {
                sources.emplace_back(open);
            }
        }
        for (Source& source : sources) {
            source.read();
        }
        if (last) {
            return;
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fputs("usage: windows_events DIR; ends at the end of standard input\n", stderr);
        return command::kExitUsage;
    }
    try {
        record(argv[1]);
    } catch (const command::Failure& failure) {
        fmt::print(stderr, "windows_events: {}\n", failure.what());
        return failure.exit_status();
    } catch (const std::exception& error) {
        fmt::print(stderr, "windows_events: {}\n", error.what());
        return command::kExitFailure;
    }
    return 0;
}
