// SPDX-License-Identifier: Apache-2.0
// The event loop: see plan_simulation.hpp. A rank waits for its turn, computes with its collectives
// submitted on the way, gives the turn back where it stands behind them for long enough, and goes
// on when they have ended on all ranks.
#include "plan_simulation.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <queue>

#include "arbiter/state.hpp"
#include "bound.hpp"
#include "command.hpp"

namespace crossover::command {
namespace {

constexpr double kNsPerMs = 1e6;
constexpr std::uint64_t kNever = std::numeric_limits<std::uint64_t>::max();

// The same numbers everywhere, unlike the standard library's distributions.
class Random {
  public:
    explicit Random(std::uint64_t seed) : state_(seed) {}
    double even() {  // in [0, 1)
        state_ += 0x9E3779B97F4A7C15;
        std::uint64_t mixed = state_;
        mixed = (mixed ^ mixed >> 30) * 0xBF58476D1CE4E5B9;
        mixed = (mixed ^ mixed >> 27) * 0x94D049BB133111EB;
        return static_cast<double>((mixed ^ mixed >> 31) >> 11) * 0x1p-53;
    }

  private:
    std::uint64_t state_;
};

// A device or a link: its users get equal shares of it.
class Shared {
  public:
    struct User {
        std::uint32_t id;
        double left_ns;  // of its work, the resource to itself
    };

    void add(std::uint64_t now, std::uint32_t id, double work_ns) {
        advance(now);
        users_.push_back({id, work_ns});
    }
    // Takes a user away; what was left of its work.
    double remove(std::uint64_t now, std::uint32_t id) {
        advance(now);
        const auto user =
            std::find_if(users_.begin(), users_.end(), [&](const User& u) { return u.id == id; });
        const double left = user->left_ns;
        users_.erase(user);
        return left;
    }
    // When the next user is through, and who. kNever: nobody is there.
    std::uint64_t next(std::uint64_t now, std::uint32_t& id) {
        advance(now);
        const auto first =
            std::min_element(users_.begin(), users_.end(),
                             [](const User& a, const User& b) { return a.left_ns < b.left_ns; });
        if (first == users_.end()) {
            return kNever;
        }
        id = first->id;
        const double wait = std::max(0.0, first->left_ns) * static_cast<double>(users_.size());
        return now + static_cast<std::uint64_t>(std::ceil(wait));
    }
    bool uses(std::uint32_t id) const {
        return std::any_of(users_.begin(), users_.end(), [&](const User& u) { return u.id == id; });
    }
    double busy_ns() const { return busy_ns_; }
    std::uint64_t version = 0;  // of the event that announces its next end

  private:
    void advance(std::uint64_t now) {
        if (!users_.empty()) {
            const auto passed = static_cast<double>(now - updated_);
            busy_ns_ += passed;
            for (User& user : users_) {
                user.left_ns -= passed / static_cast<double>(users_.size());
            }
        }
        updated_ = now;
    }

    std::vector<User> users_;
    std::uint64_t updated_ = 0;
    double busy_ns_ = 0;
};

struct UnmapSegment {
    void operator()(Segment* segment) const { ::munmap(segment, sizeof(Segment)); }
};
using OwnSegment = std::unique_ptr<Segment, UnmapSegment>;

// Pages that are not touched cost no memory, so thousands of devices fit.
OwnSegment make_segment() {
    void* memory = ::mmap(nullptr, sizeof(Segment), PROT_READ | PROT_WRITE,
                          MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (memory == MAP_FAILED) {
        throw Failure("not enough memory for so many devices");
    }
    return OwnSegment(new (memory) Segment);
}

// One job on one device.
struct Rank {
    double speed = 1;         // of this iteration's compute
    double left_ns = 0;       // of a piece that a lease cut
    std::uint32_t piece = 0;  // of compute: the step of the iteration
    bool waits = false;       // for the turn
    bool behind = false;      // stands behind collectives; `piece` is what comes after them
};

struct Job {
    std::vector<Rank> ranks;
    std::vector<PlannedStep> pieces;
    std::vector<std::uint32_t> needed;   // collectives that must have ended after each piece
    std::vector<double> collective_ns;   // each, the link to itself
    std::vector<std::uint32_t> arrived;  // ranks that submitted each collective
    std::uint32_t ended = 0;             // collectives of this iteration
    std::uint32_t through = 0;           // ranks that computed the whole iteration
    bool running = false;                // a collective is on the link
    double jitter = 0;
    std::vector<std::uint64_t> ends_ns;  // of its iterations
};

class Simulation {
  public:
    Simulation(std::span<const PlannedJob> jobs, const PlanSetting& setting, PlanMode mode)
        : setting_(setting), turns_(mode == PlanMode::kCrossover), random_(setting.seed) {
        links_.resize(setting.separate_links ? jobs.size() : 1);
        devices_.resize(setting.devices);
        lease_ends_.resize(setting.devices, kNever);
        for (std::uint32_t device = 0; turns_ && device < setting.devices; ++device) {
            segments_.push_back(make_segment());
        }
        for (const PlannedJob& planned : jobs) {
            add(planned);
        }
    }

    PlanResult run() {
        for (std::uint32_t job = 0; job < jobs_.size(); ++job) {
            for (std::uint32_t device = 0; device < setting_.devices; ++device) {
                push(1 + job, Kind::kBegin, device, job, 0);
            }
        }
        while (!done()) {
            const Event event = events_.top();
            events_.pop();
            now_ = event.time_ns;
            handle(event);
        }
        PlanResult result;
        for (const Job& job : jobs_) {
            const std::size_t last = job.ends_ns.size() - 1;
            const std::size_t first = last / 5;
            result.period_ms.push_back(static_cast<double>(job.ends_ns[last] - job.ends_ns[first]) /
                                       static_cast<double>(last - first) / kNsPerMs);
        }
        for (const Shared& device : devices_) {
            result.device_busy +=
                device.busy_ns() / static_cast<double>(now_) / static_cast<double>(devices_.size());
        }
        return result;
    }

  private:
    enum class Kind { kBegin, kDevice, kLink, kLease };
    struct Event {
        std::uint64_t time_ns;
        std::uint64_t number;  // those of one time come in the order they were made
        Kind kind;
        std::uint32_t place;  // device or link
        std::uint32_t job;
        std::uint64_t version;
        bool operator>(const Event& other) const {
            return time_ns != other.time_ns ? time_ns > other.time_ns : number > other.number;
        }
    };

    void add(const PlannedJob& planned) {
        const auto index = static_cast<std::uint32_t>(jobs_.size());
        Job job;
        job.ranks.resize(setting_.devices);
        job.pieces = course_of(planned);
        for (const PlannedStep& piece : job.pieces) {
            if (piece.communicate_ms > 0) {
                job.collective_ns.push_back(piece.communicate_ms * kNsPerMs);
            }
            job.needed.push_back(static_cast<std::uint32_t>(job.collective_ns.size()));
        }
        job.arrived.resize(job.collective_ns.size(), 0);
        job.jitter = planned.jitter;
        for (const OwnSegment& segment : segments_) {
            Wakes wakes;
            Joining joining;
            joining.job_key = index + 1;
            joining.weight = planned.weight;
            joining.fixed_lease_ns = setting_.lease_ns;
            attach_client(*segment, index, joining, 1, wakes);
        }
        jobs_.push_back(std::move(job));
        draw_jitter(jobs_.back());
    }

    void draw_jitter(Job& job) {
        for (Rank& rank : job.ranks) {
            rank.piece = 0;
            rank.behind = false;
            rank.speed = 1 + job.jitter * (2 * random_.even() - 1);
        }
    }

    bool done() const {
        return std::all_of(jobs_.begin(), jobs_.end(), [&](const Job& job) {
            return job.ends_ns.size() > setting_.iterations;
        });
    }

    void push(std::uint64_t time_ns, Kind kind, std::uint32_t place, std::uint32_t job,
              std::uint64_t version) {
        events_.push({time_ns, number_++, kind, place, job, version});
    }

    // Announces the next end on a device or link; earlier announcements are void.
    void announce(Shared& shared, Kind kind, std::uint32_t place) {
        std::uint32_t job = 0;
        const std::uint64_t end_ns = shared.next(now_, job);
        ++shared.version;
        if (end_ns != kNever) {
            push(end_ns, kind, place, job, shared.version);
        }
    }

    void handle(const Event& event) {
        switch (event.kind) {
            case Kind::kBegin:
                begin(event.place, event.job);
                break;
            case Kind::kDevice:
                if (event.version == devices_[event.place].version) {
                    devices_[event.place].remove(now_, event.job);
                    piece_computed(event.place, event.job);
                    announce(devices_[event.place], Kind::kDevice, event.place);
                }
                break;
            case Kind::kLink:
                if (event.version == links_[event.place].version) {
                    links_[event.place].remove(now_, event.job);
                    collective_ended(event.job);
                    announce(links_[event.place], Kind::kLink, event.place);
                }
                break;
            case Kind::kLease:
                lease_ended(event.place);
                break;
        }
    }

    // ---- turns

    // The rank wants to compute: goes on, or waits for its turn.
    void begin(std::uint32_t device, std::uint32_t job) {
        Rank& rank = jobs_[job].ranks[device];
        if (of_rank(jobs_[job].pieces[rank.piece].compute_ms, device) <= 0) {
            piece_computed(device, job);  // only communicates
            return;
        }
        if (turns_) {
            Wakes wakes;
            const bool granted = request(*segments_[device], job, now_, wakes);
            rank.waits = !granted;
            follow(device, wakes);
            if (!granted) {
                return;
            }
        }
        compute(device, job);
    }

    // After a transition: those it granted come after a hand-over, and the lease may have begun.
    void follow(std::uint32_t device, const Wakes& wakes) {
        for (std::uint32_t job = 0; job < jobs_.size(); ++job) {
            if (wakes.grants.contains(job) && jobs_[job].ranks[device].waits) {
                jobs_[job].ranks[device].waits = false;
                push(now_ + setting_.handover_ns, Kind::kBegin, device, job, 0);
            }
        }
        const std::uint64_t end_ns = lease_end_ns(*segments_[device]);
        if (end_ns != lease_ends_[device]) {
            lease_ends_[device] = end_ns;
            if (end_ns != kNever) {
                push(end_ns, Kind::kLease, device, 0, 0);
            }
        }
    }

    void lease_ended(std::uint32_t device) {
        Segment& segment = *segments_[device];
        const std::size_t holder = turn_holder(segment);
        Wakes wakes;
        if (!expire(segment, now_, wakes)) {
            return;  // the turn that it was for is over
        }
        const auto job = static_cast<std::uint32_t>(holder);
        Rank& rank = jobs_[job].ranks[device];
        if (devices_[device].uses(job)) {
            rank.left_ns = devices_[device].remove(now_, job);
            announce(devices_[device], Kind::kDevice, device);
            if (rank.left_ns < 1) {  // it ended at this very moment
                rank.left_ns = 0;
                piece_computed(device, job);
            } else {
                rank.waits = !request(segment, job, now_, wakes);
            }
        }
        follow(device, wakes);
    }

    // ---- compute and communication

    void compute(std::uint32_t device, std::uint32_t index) {
        Job& job = jobs_[index];
        Rank& rank = job.ranks[device];
        const double work = rank.left_ns > 0 ? rank.left_ns
                                             : of_rank(job.pieces[rank.piece].compute_ms, device) *
                                                   kNsPerMs * rank.speed;
        rank.left_ns = 0;
        devices_[device].add(now_, index, work);
        announce(devices_[device], Kind::kDevice, device);
    }

    void piece_computed(std::uint32_t device, std::uint32_t index) {
        Job& job = jobs_[index];
        Rank& rank = job.ranks[device];
        const PlannedStep& piece = job.pieces[rank.piece];
        const std::uint32_t needed = job.needed[rank.piece++];
        const bool last = rank.piece == job.pieces.size();
        rank.behind = piece.waits && job.ended < needed;
        if (rank.behind && turns_ &&
            of_rank(piece.window_ms, device) * kNsPerMs >=
                static_cast<double>(setting_.min_window_ns)) {
            Wakes wakes;
            release(*segments_[device], index, now_, wakes);
            follow(device, wakes);
        }
        if (!rank.behind && !last) {
            begin(device, index);
        }
        job.through += last ? 1 : 0;
        if (piece.communicate_ms > 0 && ++job.arrived[needed - 1] == setting_.devices) {
            communicate(index);
        }
        end_iteration_if_through(index);
    }

    // Collectives of a job run one after the other, each once all ranks have submitted it.
    void communicate(std::uint32_t index) {
        Job& job = jobs_[index];
        if (job.running || job.ended == job.arrived.size() ||
            job.arrived[job.ended] < setting_.devices) {
            return;
        }
        job.running = true;
        const std::uint32_t link = setting_.separate_links ? index : 0;
        links_[link].add(now_, index, job.collective_ns[job.ended]);
        announce(links_[link], Kind::kLink, link);
    }

    void collective_ended(std::uint32_t index) {
        Job& job = jobs_[index];
        job.running = false;
        ++job.ended;
        communicate(index);
        for (std::uint32_t device = 0; device < setting_.devices; ++device) {
            Rank& rank = job.ranks[device];
            if (rank.behind && rank.piece < job.pieces.size() &&
                job.ended >= job.needed[rank.piece - 1]) {
                rank.behind = false;
                push(now_, Kind::kBegin, device, index, 0);
            }
        }
        end_iteration_if_through(index);
    }

    // All ranks go on together once all have computed it and its collectives have ended.
    void end_iteration_if_through(std::uint32_t index) {
        Job& job = jobs_[index];
        if (job.through < setting_.devices || job.ended < job.collective_ns.size()) {
            return;
        }
        job.ends_ns.push_back(now_);
        job.ended = 0;
        job.through = 0;
        std::fill(job.arrived.begin(), job.arrived.end(), 0);
        draw_jitter(job);
        for (std::uint32_t device = 0; device < setting_.devices; ++device) {
            push(now_ + lateness_ns(), Kind::kBegin, device, index, 0);
        }
    }

    // Of a rank between two iterations. Alone it is part of what was taken for compute.
    std::uint64_t lateness_ns() {
        if (!turns_ || jobs_.size() == 1 || setting_.late_ns == 0) {
            return 0;
        }
        return static_cast<std::uint64_t>(random_.even() * static_cast<double>(setting_.late_ns));
    }

    const PlanSetting setting_;
    const bool turns_;
    Random random_;
    std::uint64_t now_ = 0;
    std::uint64_t number_ = 0;
    std::priority_queue<Event, std::vector<Event>, std::greater<>> events_;
    std::vector<OwnSegment> segments_;  // of each device
    std::vector<std::uint64_t> lease_ends_;
    std::vector<Shared> devices_;
    std::vector<Shared> links_;
    std::vector<Job> jobs_;
};

}  // namespace

PlanResult simulate(std::span<const PlannedJob> jobs, const PlanSetting& setting, PlanMode mode) {
    return Simulation(jobs, setting, mode).run();
}

double plan_bound_ms(std::span<const PlannedJob> jobs, bool separate_links) {
    std::vector<JobTotals> totals;
    for (const PlannedJob& job : jobs) {
        const auto ns = [](double ms) { return static_cast<std::uint64_t>(ms * kNsPerMs + 0.5); };
        totals.push_back({0, ns(job.compute_ms), ns(job.communicate_ms), ns(exposed_ms(job))});
    }
    return static_cast<double>(bound_ns(totals, separate_links)) / kNsPerMs;
}

double combined_speed(std::span<const double> alone_ms, std::span<const double> together_ms) {
    double sum = 0;
    for (std::size_t job = 0; job < alone_ms.size(); ++job) {
        sum += alone_ms[job] / together_ms[job];
    }
    return sum;
}

}  // namespace crossover::command
