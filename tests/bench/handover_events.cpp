// SPDX-License-Identifier: Apache-2.0
// Follows the event rings of a folder's segments until its input ends and prints, as JSON, how long
// after each hand-over the job that got the turn made its first launch. Reads only; whole programs
// are started by handover.py.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "arbiter/ring.hpp"
#include "arbiter/segment.hpp"

namespace {

using namespace crossover;

constexpr std::uint64_t kAsleepNs = 1'000'000;  // a job that waited this long slept
constexpr int kLookMs = 20;                     // the ring holds seconds

struct Figures {
    std::vector<double> launch_us;  // from the release, which is the grant, to the first launch
    std::uint64_t handovers = 0;    // grants to a job that slept, made by another's release
    std::uint64_t cut = 0;          // turns that their lease ended
    std::uint64_t lost = 0;         // events
};

class Ring {
  public:
    explicit Ring(MappedSegment segment) : segment_(std::move(segment)) {}

    const char* path() const { return segment_.path(); }
    bool is_named() const { return segment_.is_named(); }

    void read(Figures& figures) {
        EventBatch batch = read_events(*segment_.view(), next_);
        next_ = batch.next;
        figures.lost += batch.lost;
        for (const EventRecord& event : batch.events) take(event, figures);
    }

  private:
    void take(const EventRecord& event, Figures& figures) {
        switch (event.kind) {
            case EventKind::kExpire:
                ++figures.cut;
                granted_.erase(event.job_key);
                break;
            case EventKind::kRelease:
                released_ns_ = event.time_ns;
                granted_.erase(event.job_key);
                break;
            case EventKind::kGrant:
                // One transition has one time: this grant came of that release.
                if (event.time_ns == released_ns_ && event.value >= kAsleepNs) {
                    ++figures.handovers;
                    granted_[event.job_key] = event.time_ns;
                }
                break;
            case EventKind::kCompute:
                if (const auto found = granted_.find(event.job_key); found != granted_.end()) {
                    figures.launch_us.push_back(static_cast<double>(event.time_ns - found->second) /
                                                1e3);
                    granted_.erase(found);
                }
                break;
            default:
                break;
        }
    }

    MappedSegment segment_;
    std::uint64_t next_ = 0;
    std::uint64_t released_ns_ = 0;
    std::map<std::uint64_t, std::uint64_t> granted_;  // by job: when, and no launch since
};

void look(const char* directory, std::vector<Ring>& rings) {
    Folder folder;
    if (choose_folder(directory, false, folder) != Status::kOk) return;  // not there yet
    for (const SegmentFile& file : list_segments(folder)) {
        bool known = false;
        for (const Ring& ring : rings)
            known = known || (file.path == ring.path() && ring.is_named());
        if (known) continue;
        MappedSegment segment;
        if (open_read_only(folder, file.path.c_str(), segment) == Status::kOk) {
            rings.emplace_back(std::move(segment));
        }
    }
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 2 || argv[1][0] != '/') {
        std::fputs("usage: handover_events FOLDER (an absolute path); ends with its input\n",
                   stderr);
        return 2;
    }
    Figures figures;
    std::vector<Ring> rings;
    std::puts("ready");
    std::fflush(stdout);
    pollfd input{STDIN_FILENO, POLLIN, 0};
    for (bool open = true; open;) {
        open = poll(&input, 1, kLookMs) == 0;
        look(argv[1], rings);
        for (Ring& ring : rings) ring.read(figures);
    }
    const nlohmann::json report = {{"handovers", figures.handovers},
                                   {"cut_by_lease", figures.cut},
                                   {"events_lost", figures.lost},
                                   {"launch_us", figures.launch_us}};
    std::puts(report.dump().c_str());
    return 0;
}
