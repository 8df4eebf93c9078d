// SPDX-License-Identifier: Apache-2.0
// Writes down, as JSON lines, what the event rings of a folder's segments say: every event once,
// until it is told to stop. Segments that are files are copied by read(2) and not mapped, so one
// that is cut off or overwritten costs that file and no more. It judges nothing and changes
// nothing.
#include <fcntl.h>
#include <fmt/format.h>
#include <signal.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <cstddef>
#include <cstdio>
#include <cstring>
#include <map>
#include <memory>
#include <string>
#include <utility>

#include "arbiter/futex.hpp"
#include "arbiter/ring.hpp"
#include "arbiter/segment.hpp"
#include "arbiter/segment_memory.hpp"

namespace crossover {
namespace {

constexpr long kPeriodNs = 10'000'000;
constexpr std::uint64_t kForgetNs = 20'000'000'000;  // after its name has gone and its last event

volatile sig_atomic_t stopped = 0;
void stop(int) { stopped = 1; }

// Of a file: device and inode; of memory: 0 and its identity.
using SourceId = std::pair<std::uint64_t, std::uint64_t>;

// One segment, by name or no more.
class Source {
  public:
    // `descriptor` is this one's now. `memory` is mapped, or the file is the segment.
    Source(std::string device, int number, int descriptor, MappedSegment memory)
        : device_(std::move(device)),
          number_(number),
          descriptor_(descriptor),
          memory_(std::move(memory)),
          copy_(std::make_unique<Segment>()),
          last_ns_(monotonic_ns()) {
        line("open", monotonic_ns(), "");
    }
    ~Source() { close(descriptor_); }
    Source(const Source&) = delete;
    Source& operator=(const Source&) = delete;

    // False: nothing more will come.
    bool follow(bool named) {
        const std::uint64_t now = monotonic_ns();
        if (!read(0, sizeof(Header)) || !sound()) {
            line("damaged", now, "");
            return false;
        }
        const SegmentEnd end = copy_->header.end.load();
        if (end == SegmentEnd::kGivenUp && !given_up_) {
            given_up_ = true;
            line("given_up", now, "");
        }
        if (!read(offsetof(Segment, ring), sizeof(std::uint64_t)) ||
            (copy_->ring.next.load() != next_ && !take())) {
            line("damaged", now, "");
            return false;
        }
        return named || now < last_ns_ + kForgetNs;  // which may be later than now
    }

  private:
    bool sound() const {
        return copy_->header.magic == kSegmentMagic && copy_->header.version == kLayoutVersion &&
               copy_->header.total_bytes == sizeof(Segment);
    }

    bool read(std::size_t offset, std::size_t bytes) {
        char* const to = reinterpret_cast<char*>(copy_.get()) + offset;
        if (memory_) {
            std::memcpy(to, reinterpret_cast<const char*>(memory_.view()) + offset, bytes);
            return true;
        }
        return pread(descriptor_, to, bytes, static_cast<off_t>(offset)) ==
               static_cast<ssize_t>(bytes);
    }

    bool take() {
        if (!read(offsetof(Segment, jobs), sizeof copy_->jobs) ||
            !read(offsetof(Segment, ring), sizeof copy_->ring)) {
            return false;
        }
        const std::uint64_t now = monotonic_ns();  // after all that was copied
        names();
        if (next_ > copy_->ring.next.load()) return false;
        const EventBatch batch = read_events(*copy_, next_);
        // Not yet complete ones are waited for, a little.
        if (batch.lost != 0 && batch.next - next_ <= kRingEvents && ++tries_ < 5) return true;
        tries_ = 0;
        for (const EventRecord& event : batch.events) {
            // Copied while it was overwritten: no event comes from the future.
            if (event.time_ns > now) continue;
            line(event_name(event.kind), event.time_ns,
                 fmt::format(R"(,"value":{},"client":{},"job":{},"key":"{:016x}")", event.value,
                             event.client, event.job, event.job_key));
        }
        if (batch.lost != 0) line("lost", now, fmt::format(R"(,"value":{})", batch.lost));
        next_ = batch.next;
        last_ns_ = now;
        return true;
    }

    void names() {
        for (const JobSlot& job : copy_->jobs) {
            if (job.key == 0 || names_[job.key] == 1) continue;
            names_[job.key] = 1;
            std::string name;
            for (const char c : std::string(job.name, strnlen(job.name, sizeof job.name))) {
                name += c >= ' ' && c <= '~' && c != '"' && c != '\\' ? c : '?';
            }
            line("name", monotonic_ns(),
                 fmt::format(R"(,"key":"{:016x}","name":"{}")", job.key, name));
        }
    }

    void line(const char* kind, std::uint64_t time_ns, const std::string& rest) const {
        fmt::print(R"({{"time_ns":{},"device":"{}","file":{},"kind":"{}"{}}})"
                   "\n",
                   time_ns, device_, number_, kind, rest);
    }

    const std::string device_;
    const int number_;
    const int descriptor_;
    const MappedSegment memory_;
    std::unique_ptr<Segment> copy_;
    std::map<std::uint64_t, int> names_;
    std::uint64_t next_ = 0;
    std::uint64_t last_ns_;
    int tries_ = 0;
    bool given_up_ = false;
};

class Recorder {
  public:
    explicit Recorder(const char* folder) { std::strncpy(path_, folder, sizeof path_ - 1); }

    void look() {
        Folder folder;
        std::map<SourceId, bool> named;
        if (choose_folder(path_, false, folder) == Status::kOk) {
            for (const SegmentFile& file : list_segments(folder)) {
                const int descriptor = open(file.path.c_str(), O_RDONLY | O_CLOEXEC);
                struct stat info {};
                if (descriptor < 0 || fstat(descriptor, &info) != 0) continue;
                Locator locator{};
                const bool in_memory = read_locator(descriptor, locator);
                const SourceId id =
                    in_memory ? SourceId{0, locator.identity} : SourceId{info.st_dev, info.st_ino};
                named[id] = true;
                MappedSegment memory;
                const bool fresh = !sources_.contains(id) && !finished_.contains(id);
                const bool there = in_memory ? fresh && open_read_only(folder, file.path.c_str(),
                                                                       memory) == Status::kOk
                                             : info.st_size >= static_cast<off_t>(sizeof(Segment));
                if (fresh && there) {
                    char device[kUuidTextBytes];
                    format_uuid(file.device, device);
                    sources_.emplace(id, std::make_unique<Source>(device, ++opened_, descriptor,
                                                                  std::move(memory)));
                } else {
                    close(descriptor);
                }
            }
        }
        std::erase_if(finished_, [&](const auto& each) { return !named.contains(each.first); });
        for (auto each = sources_.begin(); each != sources_.end();) {
            if (each->second->follow(named.contains(each->first))) {
                ++each;
                continue;
            }
            finished_[each->first] = true;  // as long as it keeps its name
            each = sources_.erase(each);
        }
        std::fflush(stdout);
    }

  private:
    char path_[256] = {};
    std::map<SourceId, std::unique_ptr<Source>> sources_;
    std::map<SourceId, bool> finished_;
    int opened_ = 0;
};

}  // namespace
}  // namespace crossover

int main(int argc, char** argv) {
    if (argc != 2 || argv[1][0] != '/') {
        std::fprintf(stderr, "usage: chaos_recorder FOLDER   (an absolute path)\n");
        return 2;
    }
    struct sigaction action {};
    action.sa_handler = crossover::stop;
    sigaction(SIGTERM, &action, nullptr);
    sigaction(SIGINT, &action, nullptr);
    crossover::Recorder recorder(argv[1]);
    while (crossover::stopped == 0) {
        recorder.look();
        const timespec period{0, crossover::kPeriodNs};
        nanosleep(&period, nullptr);
    }
    recorder.look();
    return 0;
}
