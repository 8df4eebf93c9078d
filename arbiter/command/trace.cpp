// SPDX-License-Identifier: Apache-2.0
// `crossover trace`: follows the event rings of a folder's segments and writes them as a timeline.
#include <fmt/format.h>
#include <signal.h>

#include <cmath>
#include <cstdio>
#include <fstream>
#include <map>

#include "arguments.hpp"
#include "command.hpp"
#include "follower.hpp"
#include "page.hpp"
#include "perfetto.hpp"
#include "processes.hpp"
#include "segments.hpp"
#include "truth.hpp"

namespace crossover::command {
namespace {

constexpr std::uint64_t kSecond = 1'000'000'000;
constexpr std::uint64_t kPollNs = 200'000'000;
constexpr std::uint64_t kQuietNs = kSecond;  // without any job before --until-end calls it the end

volatile sig_atomic_t interrupted = 0;

// So that Ctrl-C ends the recording and still writes it. This process is no job's: handlers are its
// own.
void catch_interrupts() {
    struct sigaction action {};
    action.sa_handler = [](int) { interrupted = 1; };
    for (const int number : {SIGINT, SIGTERM, SIGHUP}) {
        ::sigaction(number, &action, nullptr);
    }
}

struct TraceOptions {
    std::string dir;
    std::uint64_t seconds = 0;
    bool until_end = false;
    std::uint64_t wait_seconds = 30;
    std::string output = "crossover-trace";
    std::string format = "both";
    std::string truth;
    std::vector<std::string> jobs;
};

void pause_ns(std::uint64_t ns) {
    const timespec span{static_cast<time_t>(ns / kSecond), static_cast<long>(ns % kSecond)};
    ::nanosleep(&span, nullptr);  // a signal may end it early
}

Timeline record(const TraceOptions& options) {
    catch_interrupts();
    SegmentFolder folder(options.dir);
    const std::uint64_t begin_ns = now_ns();
    // Everything that --until-end can still find in the rings belongs to the jobs it follows to
    // their end.
    Follower follower(begin_ns, options.until_end);
    std::uint64_t active_ns = 0;  // when a job was seen last
    std::map<std::string, Status> told;
    while (interrupted == 0) {
        folder.refresh();
        for (const SegmentFault& fault : folder.faults()) {
            if (told.emplace(fault.path, fault.status).second) {
                std::fprintf(stderr, "crossover trace: %s: %s\n", fault.path.c_str(),
                             status_text(fault.status));
            }
        }
        const std::uint64_t now = now_ns();
        if (follower.follow(folder.segments(), now)) {
            active_ns = now;
        }
        if (options.seconds != 0 && now - begin_ns >= options.seconds * kSecond) {
            break;
        }
        if (options.until_end && active_ns == 0 &&
            now - begin_ns >= options.wait_seconds * kSecond) {
            throw Failure(
                fmt::format("no job came within {} s (--wait-seconds)", options.wait_seconds));
        }
        if (options.until_end && active_ns != 0 && now - active_ns >= kQuietNs) {
            break;
        }
        pause_ns(kPollNs);
    }
    return follower.finish(now_ns());
}

Timeline from_truth(const TraceOptions& options) {
    JobOfPid jobs;
    for (const std::string& text : options.jobs) {
        add_job_pids(text, jobs);
    }
    std::ifstream in(options.truth);
    if (!in) {
        throw UsageError(fmt::format("--from-truth '{}' cannot be read", options.truth));
    }
    Timeline timeline;
    try {
        timeline = read_truth(in, jobs);
    } catch (const Failure& failure) {
        throw Failure(fmt::format("{}: {}", options.truth, failure.what()));
    }
    timeline.source = "What really ran, from the truth log of the virtual GPU";
    return timeline;
}

template <class Write>
void write_file(const std::string& path, Write write) {
    std::ofstream out(path, std::ios::trunc);
    if (out) {
        write(out);
        out.flush();
    }
    if (!out) {
        throw Failure(fmt::format("{} cannot be written", path));
    }
    fmt::print("{}\n", path);
}

}  // namespace

int trace_command(Arguments arguments) {
    CLI::App app(
        "Records what the jobs of a folder do and whose turn it is, and writes PREFIX.json (open "
        "it in\n"
        "ui.perfetto.dev) and PREFIX.html (a picture for any browser). Ctrl-C ends the recording "
        "early.",
        "crossover trace");
    set_usage(app, "crossover trace [options]");
    TraceOptions options;
    auto* dir =
        app.add_option(
               "--dir", options.dir,
               "folder of the segments; default: CROSSOVER_DIR, else this user's private one")
            ->type_name("DIR");
    auto* seconds =
        add_number(app, "--seconds", options.seconds, 1, 86400, "how long to record; default 5");
    auto* until_end =
        app.add_flag("--until-end", options.until_end,
                     "record until the last job has gone; with what the rings still hold");
    add_number(app, "--wait-seconds", options.wait_seconds, 1, 86400,
               "with --until-end: how long to wait for the first job; default 30")
        ->needs(until_end);
    app.add_option("--output", options.output,
                   "beginning of the files' names; default crossover-trace")
        ->type_name("PREFIX");
    app.add_option("--format", options.format, "what to write; default both")
        ->type_name("perfetto|html|both")
        ->check(CLI::Validator(
            [](std::string& value) {
                return value == "perfetto" || value == "html" || value == "both"
                           ? std::string{}
                           : fmt::format("'{}' is not one of perfetto|html|both", value);
            },
            ""));
    auto* truth =
        app.add_option("--from-truth", options.truth,
                       "records nothing: reads what really ran from a virtual GPU's truth.jsonl")
            ->type_name("FILE")
            ->excludes(dir)
            ->excludes(seconds)
            ->excludes(until_end);
    app.add_option("--job", options.jobs,
                   "with --from-truth: the processes of a job; may be repeated")
        ->type_name("NAME=PID,...")
        ->needs(truth)
        ->allow_extra_args(false);
    if (!parse(app, {arguments.begin(), arguments.end()})) {
        return 0;
    }
    if (options.seconds == 0 && !options.until_end) {
        options.seconds = 5;
    }
    if (options.output.empty()) {
        throw UsageError("--output is empty; allowed: the beginning of a file's name");
    }
    const Timeline timeline = options.truth.empty() ? record(options) : from_truth(options);
    for (const DeviceTimeline& device : timeline.devices) {
        if (device.lost_events != 0) {
            std::fprintf(
                stderr, "crossover trace: %s: %llu events were overwritten before they were read\n",
                device.name.c_str(), static_cast<unsigned long long>(device.lost_events));
        }
    }
    if (timeline.devices.empty()) {
        throw Failure("nothing to show: no job was there");
    }
    if (options.format != "html") {
        write_file(options.output + ".json",
                   [&timeline](std::ostream& out) { write_perfetto(out, timeline); });
    }
    if (options.format != "perfetto") {
        write_file(options.output + ".html",
                   [&timeline](std::ostream& out) { write_page(out, timeline); });
    }
    return 0;
}

}  // namespace crossover::command
