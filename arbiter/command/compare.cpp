// SPDX-License-Identifier: Apache-2.0
// `crossover compare`: runs the given programs alone, side by side and in crossover order, and sets
// the times beside the bound that their own measured compute and communication allow.
#include <errno.h>
#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

#include "arguments.hpp"
#include "command.hpp"
#include "compare_report.hpp"
#include "launch.hpp"
#include "library.hpp"
#include "mps_daemon.hpp"
#include "processes.hpp"
#include "segments.hpp"

namespace crossover::command {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kPollNs = 5'000'000;
constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::size_t kMostJobs = 8;

constexpr const char* kDescription =
    "Runs every COMMAND alone, then all of them side by side without the library, then in "
    "crossover order,\n"
    "and prints the times. Alone, the library only observes, and measures of each process, over "
    "the whole\n"
    "run: S until it first uses the GPU, M with a collective in flight, E the part of M in which "
    "it has\n"
    "nothing to compute, C the rest. Totals stand for one cycle of an iteration of each job, for "
    "jobs that\n"
    "iterate at a steady pace. Bound: T* = max(sum of C, sum of M, max(S + C + E)); speed-up: "
    "serial time\n"
    "over time; efficiency: T* over time. The commands' outputs go to files. A command that itself "
    "contains\n"
    "-- is given as sh -c '...'.";

// A folder of our own that is removed in the end.
class TemporaryFolder {
  public:
    explicit TemporaryFolder(const std::string& pattern) : path_(pattern) {
        if (::mkdtemp(path_.data()) == nullptr) {
            throw Failure(
                fmt::format("cannot make a folder like {}: {}", pattern, std::strerror(errno)));
        }
    }
    ~TemporaryFolder() {
        std::error_code error;
        if (!kept_) {
            fs::remove_all(path_, error);
        }
    }
    TemporaryFolder(const TemporaryFolder&) = delete;
    TemporaryFolder& operator=(const TemporaryFolder&) = delete;

    const std::string& path() const noexcept { return path_; }
    void keep() noexcept { kept_ = true; }

  private:
    std::string path_;
    bool kept_ = false;
};

struct CompareOptions {
    std::uint64_t rounds = 1;
    std::uint64_t limit_s = 86400;
    std::string json;
    std::string output_dir;
    std::string library;
    std::string dir;
    bool separate_links = false;
    MpsChoice mps = MpsChoice::kAuto;
    Settings settings;
};

class Compare {
  public:
    Compare(CompareOptions options, std::vector<std::vector<std::string>> commands)
        : options_(std::move(options)),
          library_(find_library(options_.library)),
          suffix_(random_suffix()) {
        comparison_.separate_links = options_.separate_links;
        for (std::vector<std::string>& command : commands) {
            ComparedJob job;
            job.name = static_cast<char>('A' + comparison_.jobs.size());
            job.command = std::move(command);
            comparison_.jobs.push_back(std::move(job));
        }
        make_folders();
    }

    Comparison run() {
        fmt::print(stderr, "crossover compare: outputs in {}\n", output_dir_);
        join_mps_for_all();
        for (std::uint64_t round = 1; round <= options_.rounds; ++round) {
            for (ComparedJob& job : comparison_.jobs) {
                alone(job, round);
            }
            uncoordinated(round);
            crossover(round);
        }
        return comparison_;
    }

    const std::string& output_dir() const noexcept { return output_dir_; }

  private:
    // One for all runs, those without the library too: it is the crossover order that is compared.
    void join_mps_for_all() {
        Environment environment = Environment::of_process();
        environment.set("CROSSOVER", "on");
        std::string line;
        mps_use_ = join_mps(environment, options_.mps, line);
        if (!line.empty()) {
            fmt::print(stderr, "crossover compare: {}\n", line);
        }
        if (mps_use_.active()) {
            for (const char* name : {"CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"}) {
                ::setenv(name, environment.get(name).value_or("").c_str(), 1);
            }
        }
    }

    void make_folders() {
        std::error_code error;
        if (options_.output_dir.empty()) {
            std::string pattern =
                fs::temp_directory_path(error).string() + "/crossover-compare-XXXXXX";
            TemporaryFolder folder(error ? "/tmp/crossover-compare-XXXXXX" : pattern);
            folder.keep();
            output_dir_ = folder.path();
        } else {
            fs::create_directories(options_.output_dir, error);
            if (!fs::is_directory(options_.output_dir)) {
                throw UsageError(fmt::format("--output-dir '{}' is no folder and cannot be made",
                                             options_.output_dir));
            }
            output_dir_ = options_.output_dir;
        }
        // Segments of our own, so that other jobs of this user are neither disturbed nor measured.
        if (options_.dir.empty()) {
            const bool shm = fs::is_directory("/dev/shm", error);
            segments_.emplace((shm ? std::string("/dev/shm") : fs::absolute(output_dir_).string()) +
                              "/crossover-compare-XXXXXX");
            options_.dir = segments_->path();
        }
    }

    std::string job_label(const ComparedJob& job) const { return job.name + "-" + suffix_; }

    Program program(const ComparedJob& job, const char* phase, std::uint64_t round,
                    const char* mode) const {
        Program program;
        program.name = fmt::format("job {} ({})", job.name, phase);
        program.command = job.command;
        program.output_file = fmt::format("{}/{}-{}-{}.txt", output_dir_, round, phase, job.name);
        if (std::strcmp(mode, "off") == 0) {
            // Without the library; and where the caller's environment preloads it, it stays out.
            program.environment = Environment::of_process();
            program.environment.set("CROSSOVER", "off");
            return program;
        }
        Settings settings = options_.settings;
        settings.emplace_back("CROSSOVER", mode);
        settings.emplace_back("CROSSOVER_JOB", job_label(job));
        settings.emplace_back("CROSSOVER_DIR", options_.dir);
        program.environment = launch_environment(Environment::of_process(), settings, library_,
                                                 job.command.front(), suffix_);
        return program;
    }

    std::vector<Outcome> measured(std::vector<Program>& programs, Sampler& sampler) {
        SegmentFolder folder(options_.dir);
        std::vector<std::shared_ptr<OpenSegment>>
            opened;  // kept: last figures stand behind a lost name
        const auto poll = [&] {
            folder.refresh();
            for (const auto& open : folder.segments()) {
                if (std::find(opened.begin(), opened.end(), open) == opened.end()) {
                    opened.push_back(open);
                }
            }
            for (const auto& open : opened) {
                sampler.add(open->instance, snapshot_of(open->segment(), now_ns()));
            }
        };
        auto outcomes = run_together(programs, options_.limit_s * kSecond, kPollNs, poll);
        poll();
        return outcomes;
    }

    void alone(ComparedJob& job, std::uint64_t round) {
        std::vector<Program> programs{program(job, "alone", round, "observe")};
        Sampler sampler;
        const Outcome outcome = measured(programs, sampler).front();
        job.alone_ns.push_back(outcome.end_ns - outcome.begin_ns);
        job.alone.push_back(sampler.job(job_label(job), outcome.begin_ns, outcome.end_ns));
        tell(fmt::format("{} alone", job.name), round, job.alone_ns.back());
    }

    void uncoordinated(std::uint64_t round) {
        std::vector<Program> programs;
        for (const ComparedJob& job : comparison_.jobs) {
            programs.push_back(program(job, "uncoordinated", round, "off"));
        }
        const auto outcomes = run_together(programs, options_.limit_s * kSecond, kPollNs, [] {});
        comparison_.uncoordinated_ns.push_back(span_ns(outcomes));
        tell("uncoordinated", round, comparison_.uncoordinated_ns.back());
    }

    void crossover(std::uint64_t round) {
        std::vector<Program> programs;
        for (const ComparedJob& job : comparison_.jobs) {
            programs.push_back(program(job, "crossover", round, "on"));
        }
        Sampler sampler;
        const auto outcomes = measured(programs, sampler);
        for (std::size_t index = 0; index < outcomes.size(); ++index) {
            ComparedJob& job = comparison_.jobs[index];
            const Outcome& outcome = outcomes[index];
            job.crossover_ns.push_back(outcome.end_ns - outcome.begin_ns);
            job.crossover.push_back(sampler.job(job_label(job), outcome.begin_ns, outcome.end_ns));
        }
        comparison_.crossover_ns.push_back(span_ns(outcomes));
        tell("crossover", round, comparison_.crossover_ns.back());
    }

    static std::uint64_t span_ns(const std::vector<Outcome>& outcomes) {
        std::uint64_t begin_ns = outcomes.front().begin_ns;
        std::uint64_t end_ns = 0;
        for (const Outcome& outcome : outcomes) {
            begin_ns = std::min(begin_ns, outcome.begin_ns);
            end_ns = std::max(end_ns, outcome.end_ns);
        }
        return end_ns - begin_ns;
    }

    void tell(const std::string& what, std::uint64_t round, std::uint64_t ns) const {
        fmt::print(stderr, "crossover compare: round {}/{}: {}: {:.3f} s\n", round, options_.rounds,
                   what, static_cast<double>(ns) / 1e9);
    }

    CompareOptions options_;
    std::string library_;
    std::string suffix_;
    std::string output_dir_;
    std::optional<TemporaryFolder> segments_;
    MpsUse mps_use_;
    Comparison comparison_;
};

}  // namespace

int compare_command(Arguments arguments) {
    auto groups = split_at_dashes(arguments);
    CLI::App app(kDescription, "crossover compare");
    set_usage(app,
              "crossover-run compare [options] -- command A... -- command B... [-- command C...]");
    CompareOptions options;
    add_number(app, "--rounds", options.rounds, 1, 1000,
               "how often everything is run; the table shows medians; default 1");
    app.add_option("--json", options.json, "file for all figures as JSON")->type_name("FILE");
    app.add_option("--output-dir", options.output_dir,
                   "folder for the commands' outputs; default: a new one for temporary files")
        ->type_name("DIR");
    app.add_flag("--separate-links", options.separate_links,
                 "the jobs communicate over different links: the bound has no sum of M");
    add_number(app, "--limit-s", options.limit_s, 1, 31536000,
               "seconds after which a run is ended as failed; default 86400");
    app.add_option("--library", options.library,
                   "the libcrossover.so to preload; default: the one beside this program")
        ->type_name("FILE");
    app.add_option("--dir", options.dir,
                   "folder of the segments; default: a new one in shared memory")
        ->type_name("DIR");
    add_table_options(app, options.settings, {"CROSSOVER", "CROSSOVER_JOB", "CROSSOVER_DIR"});
    std::string mps;
    add_mps_option(app, mps);
    if (!parse(app, groups.front())) {
        return 0;
    }
    options.mps = *parse_mps_choice(mps);
    groups.erase(groups.begin());
    if (groups.size() < 2 || groups.size() > kMostJobs) {
        throw UsageError(fmt::format(
            "{} commands; allowed: 2 to {}; usage: crossover-run compare [options] -- A... -- B...",
            groups.size(), kMostJobs));
    }
    for (const std::vector<std::string>& command : groups) {
        if (command.empty() || command.front().empty()) {
            throw UsageError(
                "an empty command; usage: crossover-run compare [options] -- A... -- B...");
        }
    }
    std::ofstream json;
    if (!options.json.empty()) {
        json.open(options.json, std::ios::trunc);  // before hours of running
        if (!json) {
            throw UsageError(fmt::format("--json '{}' cannot be written", options.json));
        }
    }
    const std::string json_path = options.json;
    Compare compare(std::move(options), std::move(groups));
    const Comparison comparison = compare.run();
    for (const std::string& doubt : compare_doubts(comparison)) {
        fmt::print(stderr, "crossover compare: {}\n", doubt);
    }
    fmt::print("{}", compare_text(comparison));
    if (json.is_open()) {
        json << compare_json(comparison)
                    .dump(2, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
             << "\n";
        json.flush();
        if (!json) {
            throw Failure(fmt::format("{} cannot be written", json_path));
        }
    }
    return 0;
}

}  // namespace crossover::command
