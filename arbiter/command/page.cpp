// SPDX-License-Identifier: Apache-2.0
// The timeline page: see page.hpp. Bars are drawn once, in ms, into nested drawings whose view box
// is the part shown; so the picture at first sight and the one after zooming are the same bars.
#include "page.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <ostream>

#include "page_style.hpp"

namespace crossover::command {
namespace {

constexpr int kLabelWidth = 236;
constexpr int kPlotWidth = 976;
constexpr int kRightRoom = 28;  // half of the last tick's label
constexpr int kWidth = kLabelWidth + kPlotWidth + kRightRoom;
constexpr int kAxisHeight = 24;
constexpr int kDeviceTitle = 26;
constexpr int kTurnHeight = 24;
constexpr int kComputeHeight = 30;
constexpr int kCommunicateHeight = 18;
constexpr int kWaitHeight = 8;
constexpr int kGap = 12;
constexpr std::size_t kMostTicks = 12;

// Told apart with any common colour blindness, on light and on dark ground.
constexpr std::array<const char*, 6> kColours{"#2f7fc1", "#d9661f", "#2a9d78",
                                              "#b860a0", "#b8901a", "#6f74d8"};

double ms(std::uint64_t ns) { return static_cast<double>(ns) / 1e6; }

Intervals within(const Intervals& intervals, const Interval& part) {
    return intersection(intervals, {part});
}

DeviceTimeline within(const DeviceTimeline& device, const Interval& part) {
    DeviceTimeline result;
    result.name = device.name;
    result.lost_events = device.lost_events;
    result.lost = within(device.lost, part);
    for (const JobLanes& job : device.jobs) {
        result.jobs.push_back({job.name, within(job.compute, part), within(job.in_flight, part),
                               within(job.window, part), within(job.waiting, part)});
    }
    for (TurnInterval turn : device.turns) {
        turn.time.begin_ns = std::max(turn.time.begin_ns, part.begin_ns);
        turn.time.end_ns = std::min(turn.time.end_ns, part.end_ns);
        if (turn.time.begin_ns < turn.time.end_ns) {
            result.turns.push_back(turn);
        }
    }
    return result;
}

std::size_t interval_count(const Timeline& timeline) {
    std::size_t count = 0;
    for (const DeviceTimeline& device : timeline.devices) {
        count += device.turns.size() + device.lost.size();
        for (const JobLanes& job : device.jobs) {
            count +=
                job.compute.size() + job.in_flight.size() + job.window.size() + job.waiting.size();
        }
    }
    return count;
}

Timeline limited(const Timeline& timeline, const PageLimits& limits) {
    std::uint64_t length_ns = std::min(limits.longest_ns, timeline.end_ns - timeline.begin_ns);
    for (;;) {
        Timeline result;
        result.source = timeline.source;
        result.begin_ns = timeline.end_ns - length_ns;
        result.end_ns = timeline.end_ns;
        for (const DeviceTimeline& device : timeline.devices) {
            result.devices.push_back(within(device, {result.begin_ns, result.end_ns}));
        }
        if (interval_count(result) <= limits.most_intervals || length_ns < 1'000'000) {
            return result;
        }
        length_ns /= 2;
    }
}

// Names that a wrapper makes differ at their end, names that people choose at their beginning: keep
// both.
std::string shortened(const std::string& name) {
    constexpr std::size_t kMost = 14;
    std::vector<std::size_t> starts;  // of characters, not bytes
    for (std::size_t place = 0; place < name.size(); ++place) {
        if ((static_cast<unsigned char>(name[place]) & 0xC0U) != 0x80U) {
            starts.push_back(place);
        }
    }
    if (starts.size() <= kMost) {
        return name;
    }
    return name.substr(0, starts[6]) + "…" + name.substr(starts[starts.size() - 7]);
}

class Page {
  public:
    Page(std::ostream& out, const Timeline& whole, const PageLimits& limits)
        : out_(out),
          whole_(whole),
          shown_(limited(whole, limits)),
          view_(telling_part(shown_, limits.turns_in_view)) {
        for (const DeviceTimeline& device : shown_.devices) {
            for (const JobLanes& job : device.jobs) {
                if (std::find(names_.begin(), names_.end(), job.name) == names_.end()) {
                    names_.push_back(job.name);
                }
            }
        }
        // Nothing happened, or all in one instant: a drawing needs some width all the same.
        if (view_.end_ns <= view_.begin_ns) {
            view_.end_ns = view_.begin_ns + 1'000'000;
        }
        shown_.end_ns = std::max(shown_.end_ns, view_.end_ns);
    }

    void write() {
        const std::string names = device_names();
        print(
            "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n"
            "<title>Crossover timeline: {0}</title>\n<style>{1}</style>\n</head>\n<body><main>\n"
            "<h1>Who uses {2}, and when</h1>\n",
            names, kPageStyle,
            shown_.devices.size() == 1 ? "the GPU" : fmt::format("{} GPUs", shown_.devices.size()));
        legend();
        controls();
        drawing();
        shares();
        print(
            "<p style=\"margin-top:12px\">{}. 0 ms is {:.6f} s on this machine's monotonic "
            "clock.{}</p>\n",
            escaped(whole_.source), ms(whole_.begin_ns) / 1e3, cut_note());
        print("</main>\n<script>{}</script>\n</body>\n</html>\n", kPageScript);
    }

  private:
    template <class... Values>
    void print(fmt::format_string<Values...> format, Values&&... values) {
        out_ << fmt::format(format, std::forward<Values>(values)...);
    }

    // A job has the same colour on all devices.
    const char* colour(const JobLanes& job) const {
        const auto place = std::find(names_.begin(), names_.end(), job.name);
        return kColours[static_cast<std::size_t>(place - names_.begin()) % kColours.size()];
    }

    // Time on the picture: ms since the trace's begin.
    double at(std::uint64_t ns) const { return ms(ns - whole_.begin_ns); }

    std::string device_names() const {
        std::string names;
        for (const DeviceTimeline& device : shown_.devices) {
            names += (names.empty() ? "" : ", ") + escaped(device.name);
        }
        return names.empty() ? "no device" : names;
    }

    bool any_turns() const {
        return std::any_of(shown_.devices.begin(), shown_.devices.end(),
                           [](const DeviceTimeline& device) { return !device.turns.empty(); });
    }

    std::string cut_note() const {
        return shown_.begin_ns == whole_.begin_ns
                   ? std::string{}
                   : fmt::format(" Only the last {:.1f} s of {:.1f} s are drawn.",
                                 ms(shown_.end_ns - shown_.begin_ns) / 1e3,
                                 ms(whole_.end_ns - whole_.begin_ns) / 1e3);
    }

    void sample(int y, int height, const char* attributes, const char* text) {
        print(
            "<span><svg width=\"34\" height=\"20\"><rect x=\"0\" y=\"{}\" width=\"34\" "
            "height=\"{}\" "
            "{}/></svg>{}</span>\n",
            y, height, attributes, text);
    }

    void legend() {
        print(
            "<p>Every job has its own colour. Crossover order is where one job's tall bars (it "
            "computes) "
            "stand above another job's low bars (it communicates).</p>\n<div class=\"legend\">\n");
        const std::string fill = fmt::format("fill=\"{}\"", kColours[0]);
        sample(1, 18, fill.c_str(), "the GPU computes for this job");
        sample(5, 10, fill.c_str(), "it communicates, and has nothing to compute meanwhile");
        sample(5, 10, (fill + " opacity=\"0.35\"").c_str(),
               "it communicates behind its own compute");
        if (any_turns()) {
            sample(7, 6, "style=\"fill:var(--wait)\"", "it waits for its turn");
        }
        print("</div>\n");
    }

    void controls() {
        print(
            "<div class=\"controls\" hidden><button data-do=\"left\">&#8592;</button>"
            "<button data-do=\"right\">&#8594;</button><button data-do=\"+\">+</button>"
            "<button data-do=\"-\">&#8722;</button><button data-do=\"all\">everything</button>"
            "<button data-do=\"first\">back</button><output>wheel: zoom; drag: "
            "move</output></div>\n");
    }

    static int job_height() { return kComputeHeight + kCommunicateHeight; }

    static int device_height(const DeviceTimeline& device) {
        const int turns = device.turns.empty() ? 0 : kTurnHeight + kGap;
        return turns + static_cast<int>(device.jobs.size()) * (job_height() + kGap);
    }

    void bars(const Intervals& intervals, const std::string& what, const std::string& attributes,
              int y, int height) {
        print("<g data-what=\"{}\" {}>", escaped(what), attributes);
        for (const Interval& interval : intervals) {
            bar(interval, y, height);
        }
        print("</g>\n");
    }

    void bar(const Interval& time, int y, int height) {
        print("<rect x=\"{:.4f}\" y=\"{}\" width=\"{:.4f}\" height=\"{}\"/>", at(time.begin_ns), y,
              ms(time.end_ns - time.begin_ns), height);
    }

    void turn_bars(const DeviceTimeline& device, std::size_t job, bool cut_by_lease, int y) {
        Intervals times;
        for (const TurnInterval& turn : device.turns) {
            if (turn.job == job && turn.cut_by_lease == cut_by_lease) {
                times.push_back(turn.time);
            }
        }
        if (!times.empty()) {
            bars(times,
                 device.jobs[job].name +
                     (cut_by_lease ? " has the turn until its lease runs out," : " has the turn"),
                 fmt::format("fill=\"{}\"{}", colour(device.jobs[job]),
                             cut_by_lease ? " class=\"cut\"" : ""),
                 y, kTurnHeight);
        }
    }

    void ticks(int height) {
        const std::uint64_t span_ns = view_.end_ns - view_.begin_ns;
        const std::uint64_t every_ns = tick_ns(span_ns, kMostTicks);
        print("<g id=\"ticks\">\n");
        const std::uint64_t first_ns = view_.begin_ns - whole_.begin_ns;
        int digits = 0;
        for (std::uint64_t unit = 1'000'000; unit > every_ns; unit /= 10) {
            ++digits;
        }
        // From the view's beginning, so that damaged times at the end of the range do not run over.
        const std::uint64_t over_ns = first_ns % every_ns;
        std::uint64_t at_ns = over_ns == 0 ? 0 : every_ns - over_ns;
        for (bool more = at_ns <= span_ns; more;
             more = span_ns - at_ns >= every_ns, at_ns += every_ns) {
            const double x = kLabelWidth +
                             static_cast<double>(at_ns) * kPlotWidth / static_cast<double>(span_ns);
            print(
                "<line class=\"tick\" x1=\"{0:.2f}\" x2=\"{0:.2f}\" y1=\"20\" y2=\"{1}\"/>"
                "<text class=\"soft\" x=\"{0:.2f}\" y=\"14\" text-anchor=\"middle\">{2:.{3}f} "
                "ms</text>\n",
                x, height, ms(first_ns + at_ns), digits);
        }
        print("</g>\n");
    }

    void labels(const DeviceTimeline& device, int y) {
        if (!device.turns.empty()) {
            print("<text x=\"0\" y=\"{}\">whose turn</text>\n", y + 17);
            y += kTurnHeight + kGap;
        }
        for (std::size_t job = 0; job < device.jobs.size(); ++job, y += job_height() + kGap) {
            const std::string& full = device.jobs[job].name;
            const std::string name = shortened(full);
            print("<rect class=\"row\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\"/>\n",
                  kLabelWidth, y, kPlotWidth, job_height());
            print("<rect x=\"0\" y=\"{}\" width=\"6\" height=\"{}\" fill=\"{}\"/>\n", y,
                  job_height(), colour(device.jobs[job]));
            print("<text class=\"job\" x=\"14\" y=\"{}\"><title>{}</title>{}</text>\n", y + 20,
                  escaped(full), escaped(name));
            print(
                "<text class=\"soft\" x=\"{0}\" y=\"{1}\" text-anchor=\"end\">computes</text>"
                "<text class=\"soft\" x=\"{0}\" y=\"{2}\" "
                "text-anchor=\"end\">communicates</text>\n",
                kLabelWidth - 10, y + 20, y + kComputeHeight + 13);
        }
    }

    void plot(const DeviceTimeline& device, int y) {
        const int height = device_height(device);
        print(
            "<svg class=\"plot\" x=\"{}\" y=\"{}\" width=\"{}\" height=\"{}\" viewBox=\"{:.4f} 0 "
            "{:.4f} "
            "{}\" preserveAspectRatio=\"none\">\n",
            kLabelWidth, y, kPlotWidth, height, at(view_.begin_ns),
            ms(view_.end_ns - view_.begin_ns), height);
        int top = 0;
        bars(device.lost, "unknown, events were overwritten,", "class=\"lost\"", 0, height);
        if (!device.turns.empty()) {
            for (std::size_t job = 0; job < device.jobs.size(); ++job) {
                turn_bars(device, job, false, 0);
                turn_bars(device, job, true, 0);
            }
            top += kTurnHeight + kGap;
        }
        for (std::size_t job = 0; job < device.jobs.size(); ++job, top += job_height() + kGap) {
            const JobLanes& lanes = device.jobs[job];
            const std::string fill = fmt::format("fill=\"{}\"", colour(lanes));
            const int low = top + kComputeHeight;
            bars(lanes.waiting, lanes.name + " waits for its turn", "class=\"wait\"",
                 top + (kComputeHeight - kWaitHeight) / 2, kWaitHeight);
            bars(lanes.compute, lanes.name + " computes", fill, top + 2, kComputeHeight - 4);
            bars(difference(lanes.in_flight, lanes.window),
                 lanes.name + " communicates behind compute", fill + " class=\"hidden\"", low + 2,
                 kCommunicateHeight - 4);
            bars(lanes.window, lanes.name + " only communicates", fill, low + 2,
                 kCommunicateHeight - 4);
        }
        print("</svg>\n");
    }

    void drawing() {
        int height = kAxisHeight;
        for (const DeviceTimeline& device : shown_.devices) {
            height += kDeviceTitle + device_height(device);
        }
        print(
            "<div id=\"plots\"><svg id=\"drawing\" width=\"{}\" height=\"{}\" "
            "data-whole=\"[{:.4f},{:.4f}]\" data-view=\"[{:.4f},{:.4f}]\">\n",
            kWidth, height, at(shown_.begin_ns), at(shown_.end_ns), at(view_.begin_ns),
            at(view_.end_ns));
        int y = kAxisHeight;  // rows below the grid lines, bars above them
        for (const DeviceTimeline& device : shown_.devices) {
            labels(device, y + kDeviceTitle);
            y += kDeviceTitle + device_height(device);
        }
        ticks(height);
        y = kAxisHeight;
        for (const DeviceTimeline& device : shown_.devices) {
            print("<text class=\"soft\" x=\"0\" y=\"{}\">{}</text>\n", y + 17,
                  escaped(device.name));
            plot(device, y + kDeviceTitle);
            y += kDeviceTitle + device_height(device);
        }
        print("</svg></div>\n");
    }

    void shares() {
        const double length = ms(whole_.end_ns - whole_.begin_ns);
        if (length <= 0) {
            return;
        }
        print(
            "<table><tr><th>of the {:.2f} s recorded</th><th>computes</th><th>communicates</th>"
            "<th>only communicates</th><th>… while another job computes</th>{}</tr>\n",
            length / 1e3, any_turns() ? "<th>waits for its turn</th>" : "");
        for (const DeviceTimeline& device : whole_.devices) {
            for (std::size_t job = 0; job < device.jobs.size(); ++job) {
                const JobShare share = share_of(device, job);
                const auto percent = [](std::uint64_t part, double of) {
                    return of <= 0 ? std::string("–")
                                   : fmt::format("{:.1f} %", ms(part) * 100 / of);
                };
                print("<tr><td>{} on {}</td><td>{}</td><td>{}</td><td>{}</td><td>{}</td>",
                      escaped(device.jobs[job].name), escaped(shortened(device.name)),
                      percent(share.compute_ns, length), percent(share.in_flight_ns, length),
                      percent(share.window_ns, length),
                      percent(share.covered_ns, ms(share.window_ns)));
                if (any_turns()) {
                    print("<td>{}</td>", percent(share.waiting_ns, length));
                }
                print("</tr>\n");
            }
            if (device.lost_events != 0) {
                print(
                    "<tr><td colspan=\"6\">{} events of {} were overwritten before they could be "
                    "read; "
                    "grey parts of the picture are unknown.</td></tr>\n",
                    device.lost_events, escaped(device.name));
            }
        }
        print("</table>\n");
    }

    std::ostream& out_;
    const Timeline& whole_;
    Timeline shown_;
    Interval view_;
    std::vector<std::string> names_;  // of all jobs
};

}  // namespace

std::string escaped(const std::string& text) {
    std::string result;
    for (const char character : text) {
        switch (character) {
            case '&':
                result += "&amp;";
                break;
            case '<':
                result += "&lt;";
                break;
            case '>':
                result += "&gt;";
                break;
            case '"':
                result += "&quot;";
                break;
            default:
                result += character;
        }
    }
    return result;
}

std::uint64_t tick_ns(std::uint64_t span_ns, std::size_t most) {
    for (std::uint64_t unit = 1;; unit *= 10) {
        for (const std::uint64_t factor : {1, 2, 5}) {
            if (span_ns / (unit * factor) <= most) {
                return unit * factor;
            }
        }
    }
}

void write_page(std::ostream& out, const Timeline& timeline, const PageLimits& limits) {
    Page(out, timeline, limits).write();
}

}  // namespace crossover::command
