// SPDX-License-Identifier: Apache-2.0
// How well the virtual GPU keeps time: asks for kernels, collectives and iterations of known length
// from four client processes and compares what they get, by the device's own times and by the clock
// of the waiting program. It measures the stand-in, never a GPU.
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "wire_client.hpp"

namespace {

using simgpu::monotonic_ns;
using simgpu::Notice;
using simgpu::NoticeKind;
using simgpu::OpKind;
using simgpu::Request;
using simgpu::WireClient;

constexpr int kClients = 4;
constexpr double kLimit = 0.02;  // of the time asked for, kernels of 1 ms and more
constexpr std::uint64_t kMs = 1'000'000;

// What the server is told, so that the figures asked for are known exactly.
constexpr std::uint64_t kLaunchNs = 4'000;
constexpr std::uint64_t kGapNs = 1'000;
constexpr std::uint64_t kLatencyNs = 20'000;
constexpr std::uint64_t kBytesPerNs = 1;  // 8 Gbit/s

// One timed stretch as its client saw it; times are CLOCK_MONOTONIC ns.
struct Sample {
    std::uint64_t begin_ns;   // the first call
    std::uint64_t device_ns;  // end by the device's time
    std::uint64_t seen_ns;    // end as the program learnt it
};

[[noreturn]] void fail(const std::string& why) { throw std::runtime_error(why); }

// ---- processes ----

class ServerProcess {
  public:
    ServerProcess(const std::string& program, std::vector<std::string> options) {
        std::string folder =
            (std::filesystem::temp_directory_path() / "simgpu-timing.XXXXXX").string();
        if (mkdtemp(folder.data()) == nullptr) fail("cannot create " + folder);
        dir_ = folder;
        int ready[2];
        if (pipe(ready) != 0) fail("pipe");
        options.insert(
            options.begin(),
            {program, "--dir", dir_, "--ready-fd", std::to_string(ready[1]), "--parent",
             std::to_string(getpid()), "--launch-us", "4", "--gap-us", "1", "--latency-us", "20",
             "--link-gbps", "8", "--devices", std::to_string(kClients), "--no-truth-log"});
        pid_ = fork();
        if (pid_ < 0) fail("fork");
        if (pid_ == 0) {
            close(ready[0]);
            std::vector<char*> argv;
            for (std::string& option : options) argv.push_back(option.data());
            argv.push_back(nullptr);
            execv(program.c_str(), argv.data());
            std::fprintf(stderr, "simgpu_timing: --server %s: cannot be run\n", program.c_str());
            _exit(127);
        }
        close(ready[1]);
        char byte = 0;
        const bool started = read(ready[0], &byte, 1) == 1;
        close(ready[0]);
        if (!started) fail("the server did not start");
    }
    ~ServerProcess() {
        kill(pid_, SIGTERM);
        waitpid(pid_, nullptr, 0);
        std::error_code ignored;
        std::filesystem::remove_all(dir_, ignored);
    }
    ServerProcess(const ServerProcess&) = delete;
    ServerProcess& operator=(const ServerProcess&) = delete;
    const std::string& dir() const { return dir_; }

  private:
    std::string dir_;
    pid_t pid_ = -1;
};

using ClientBody = std::function<std::vector<Sample>(int client, const std::string& dir)>;

// Runs `body` in kClients processes at once; their samples in the order of the clients.
std::vector<std::vector<Sample>> run_clients(const std::string& dir, const ClientBody& body) {
    struct Child {
        pid_t pid;
        int fd;
    };
    std::vector<Child> children;
    for (int client = 0; client < kClients; ++client) {
        int channel[2];
        if (pipe(channel) != 0) fail("pipe");
        const pid_t pid = fork();
        if (pid < 0) fail("fork");
        if (pid == 0) {
            close(channel[0]);
            int status = 1;
            try {
                const std::vector<Sample> samples = body(client, dir);
                const auto size = static_cast<ssize_t>(samples.size() * sizeof(Sample));
                status = write(channel[1], samples.data(), samples.size() * sizeof(Sample)) == size
                             ? 0
                             : 1;
            } catch (const std::exception& error) {
                std::fprintf(stderr, "simgpu_timing: client %d: %s\n", client, error.what());
            }
            _exit(status);
        }
        close(channel[1]);
        children.push_back(Child{pid, channel[0]});
    }
    std::vector<std::vector<Sample>> all;
    bool good = true;
    for (const Child& child : children) {
        std::vector<Sample>& samples = all.emplace_back();
        Sample sample;
        // A pipe gives at most what was written at once; samples are far smaller than its buffer.
        while (read(child.fd, &sample, sizeof(sample)) == static_cast<ssize_t>(sizeof(sample))) {
            samples.push_back(sample);
        }
        close(child.fd);
        int status = 0;
        waitpid(child.pid, &status, 0);
        good = good && status == 0;
    }
    if (!good) fail("a client failed");
    return all;
}

// ---- scenarios ----

struct Errors {
    std::string what;
    double asked_ms = 0;
    std::vector<double> device;  // relative to what was asked for
    std::vector<double> seen;
};

double relative(std::uint64_t delivered_ns, double asked_ns) {
    return (static_cast<double>(delivered_ns) - asked_ns) / asked_ns;
}

Errors of_samples(const std::string& what, double asked_ns,
                  const std::vector<std::vector<Sample>>& all) {
    Errors errors{what, asked_ns / static_cast<double>(kMs), {}, {}};
    for (const auto& samples : all) {
        for (const Sample& sample : samples) {
            errors.device.push_back(relative(sample.device_ns - sample.begin_ns, asked_ns));
            errors.seen.push_back(relative(sample.seen_ns - sample.begin_ns, asked_ns));
        }
    }
    return errors;
}

// `count` kernels in a row, then a wait for the last; `repeats` times.
Errors kernels(const std::string& dir, const std::string& what, std::uint64_t cost_ns,
               std::size_t count, int repeats, bool own_device) {
    const auto all = run_clients(dir, [=](int client, const std::string& machine) {
        WireClient wire(machine);
        wire.hello();
        const int device = own_device ? client : 0;
        const std::uint64_t stream = 1;
        wire.create_stream(stream, device);
        // Everybody begins together; a communicator of its own needs a device each, a file does
        // not.
        const std::string mark = machine + "/data/" + std::to_string(client);
        std::ofstream(mark).put('1');
        for (int other = 0; other < kClients; ++other) {
            while (!std::filesystem::exists(machine + "/data/" + std::to_string(other)))
                usleep(500);
        }
        std::vector<Sample> samples;
        for (int repeat = 0; repeat < repeats; ++repeat) {
            std::vector<Request> requests;
            for (std::size_t i = 0; i < count; ++i) {
                requests.push_back(wire.operation(OpKind::kKernel, stream, cost_ns));
                requests.back().flags = simgpu::kNotifyStart;
            }
            wire.send(requests);
            const Notice done = wire.expect(NoticeKind::kDone, requests.back().op);
            samples.push_back(Sample{requests.front().submit_ns, done.time_ns, monotonic_ns()});
        }
        return samples;
    });
    for (int client = 0; client < kClients; ++client)
        std::filesystem::remove(dir + "/data/" + std::to_string(client));
    // On a shared device the gaps of one are filled by the others.
    const std::uint64_t asked_ns = kLaunchNs + (own_device ? count * cost_ns + (count - 1) * kGapNs
                                                           : count * cost_ns * kClients);
    return of_samples(what, static_cast<double>(asked_ns), all);
}

Request all_reduce(WireClient& wire, std::uint64_t comm, int client, std::uint64_t number,
                   std::uint64_t length_ns) {
    Request request = wire.operation(OpKind::kCollective, 1);
    request.comm_key = comm;
    request.rank = static_cast<std::uint32_t>(client);
    request.participants = kClients;
    request.rendezvous = number;
    request.link_bytes = length_ns * kBytesPerNs;
    request.sm_share = 0.1F;
    request.flags = simgpu::kNotifyStart;
    return request;
}

// All-reduces of all four, each waited for. Asked: from the last rank's call.
Errors collectives(const std::string& dir, const std::string& what, std::uint64_t length_ns,
                   int repeats) {
    auto all = run_clients(dir, [=](int client, const std::string& machine) {
        WireClient wire(machine);
        wire.hello();
        wire.create_stream(1, client);
        const std::uint64_t comm =
            wire.join(length_ns, kClients, static_cast<std::uint32_t>(client), client);
        std::vector<Sample> samples;
        for (int repeat = 0; repeat < repeats; ++repeat) {
            const Request request =
                all_reduce(wire, comm, client, static_cast<std::uint64_t>(repeat), length_ns);
            wire.send(request);
            const Notice done = wire.expect(NoticeKind::kDone, request.op);
            samples.push_back(Sample{request.submit_ns, done.time_ns, monotonic_ns()});
        }
        return samples;
    });
    for (std::size_t i = 0; i < static_cast<std::size_t>(repeats); ++i) {
        std::uint64_t last_ns = 0;
        for (const auto& samples : all) last_ns = std::max(last_ns, samples[i].begin_ns);
        for (auto& samples : all) samples[i].begin_ns = last_ns;
    }
    return of_samples(what, static_cast<double>(kLaunchNs + kLatencyNs + length_ns), all);
}

// Iterations of ten kernels of 1 ms and an all-reduce of 5 ms, waited for at the end of each; a
// sample is the time from one end to the next.
Errors iterations(const std::string& dir, int repeats) {
    constexpr std::size_t kKernels = 10;
    constexpr std::uint64_t kLengthNs = 5 * kMs;
    auto all = run_clients(dir, [=](int client, const std::string& machine) {
        WireClient wire(machine);
        wire.hello();
        wire.create_stream(1, client);
        const std::uint64_t comm =
            wire.join(1234, kClients, static_cast<std::uint32_t>(client), client);
        std::vector<Sample> samples;
        std::uint64_t device_ns = 0;
        std::uint64_t seen_ns = 0;
        for (int repeat = 0; repeat <= repeats; ++repeat) {
            std::vector<Request> requests;
            for (std::size_t i = 0; i < kKernels; ++i) {
                requests.push_back(wire.operation(OpKind::kKernel, 1, kMs));
                requests.back().flags = simgpu::kNotifyStart;
            }
            requests.push_back(
                all_reduce(wire, comm, client, static_cast<std::uint64_t>(repeat), kLengthNs));
            wire.send(requests);
            const Notice done = wire.expect(NoticeKind::kDone, requests.back().op);
            const std::uint64_t now_ns = monotonic_ns();
            // Relative to the iteration before; begin_ns is 0, so the ends are durations.
            if (repeat > 0)
                samples.push_back(Sample{0, done.time_ns - device_ns, now_ns - seen_ns});
            device_ns = done.time_ns;
            seen_ns = now_ns;
        }
        return samples;
    });
    const double asked_ns =
        static_cast<double>(kLaunchNs + kKernels * (kMs + kGapNs) + kLatencyNs + kLengthNs);
    return of_samples("iteration, 10 x 1 ms + all-reduce 5 ms", asked_ns, all);
}

// ---- report ----

double mean(const std::vector<double>& values) {
    double sum = 0;
    for (const double value : values) sum += value;
    return sum / static_cast<double>(values.size());
}

double quantile(std::vector<double> values, double part) {
    std::sort(values.begin(), values.end());
    return values[static_cast<std::size_t>(part * static_cast<double>(values.size() - 1))];
}

nlohmann::json summary(const std::vector<double>& values) {
    return {{"mean", mean(values)},
            {"median", quantile(values, 0.5)},
            {"p95", quantile(values, 0.95)},
            {"max", quantile(values, 1.0)},
            {"min", quantile(values, 0.0)}};
}

int report(const std::vector<Errors>& rows, const std::string& json_file) {
    double load = -1;
    getloadavg(&load, 1);
    fmt::print(
        "Load of this machine over the last minute: {:.2f}; a busy one wakes programs late\n",
        load);
    fmt::print(
        "Error of the virtual GPU's times, {} client processes, {} cores; limit {:g} % (medians)\n",
        kClients, sysconf(_SC_NPROCESSORS_ONLN), kLimit * 100);
    fmt::print("{:40} {:>9} {:>5} | {:>8} {:>8} | {:>8} {:>8} {:>8} {:>8}\n", "", "asked ms", "n",
               "device", "max", "seen", "mean", "p95", "max");
    nlohmann::json json = {{"clients", kClients},
                           {"load", load},
                           {"limit", kLimit},
                           {"rows", nlohmann::json::array()}};
    bool good = true;
    for (const Errors& row : rows) {
        const double device = quantile(row.device, 0.5);
        const double seen = quantile(row.seen, 0.5);
        const bool within = std::abs(device) < kLimit && std::abs(seen) < kLimit;
        const bool counts = row.asked_ms >= 1.0;
        good = good && (within || !counts);
        fmt::print(
            "{:40} {:9.3f} {:5} | {:7.3f}% {:7.3f}% | {:7.3f}% {:7.3f}% {:7.3f}% {:7.3f}% {}\n",
            row.what, row.asked_ms, row.device.size(), device * 100,
            quantile(row.device, 1.0) * 100, seen * 100, mean(row.seen) * 100,
            quantile(row.seen, 0.95) * 100, quantile(row.seen, 1.0) * 100,
            within ? "" : (counts ? "ABOVE" : "(under 1 ms: not judged)"));
        json["rows"].push_back({{"what", row.what},
                                {"asked_ms", row.asked_ms},
                                {"samples", row.device.size()},
                                {"device_error", summary(row.device)},
                                {"seen_error", summary(row.seen)},
                                {"judged", counts},
                                {"within_limit", within}});
    }
    json["within_limit"] = good;
    fmt::print(
        "device: by the device's own times; seen: by the waiting program's clock, with its "
        "wake-up\n");
    if (!json_file.empty()) {
        std::ofstream file(json_file);
        file << json.dump(2) << '\n';
        if (!file.flush()) fail("--json " + json_file + ": cannot be written");
    }
    return good ? 0 : 1;
}

int run(int argc, char** argv) {
    CLI::App app{"Timing error of the virtual GPU", "simgpu_timing"};
    std::string json_file;
    std::string server =
        (std::filesystem::read_symlink("/proc/self/exe").parent_path() / "../simgpu/simgpu-server")
            .lexically_normal()
            .string();
    int repeats = 40;
    app.add_option("--json", json_file, "write the figures to this file");
    app.add_option("--server", server, "device server to measure")
        ->capture_default_str()
        ->check(CLI::ExistingFile);
    app.add_option("--repeats", repeats, "samples of each client and row")
        ->capture_default_str()
        ->check(CLI::Range(2, 1000));
    try {
        app.parse(argc, argv);
    } catch (const CLI::CallForHelp&) {
        std::fputs(app.help().c_str(), stdout);
        return 0;
    } catch (const CLI::ParseError& error) {
        std::fprintf(stderr, "simgpu_timing: %s\n", error.what());
        return 2;
    }
    std::vector<Errors> rows;
    {
        const ServerProcess mps(server, {"--sharing", "mps"});
        const std::string& dir = mps.dir();
        rows.push_back(kernels(dir, "kernel 0.1 ms, waited for", kMs / 10, 1, repeats, true));
        rows.push_back(kernels(dir, "kernel 1 ms, waited for", kMs, 1, repeats, true));
        rows.push_back(kernels(dir, "kernel 5 ms, waited for", 5 * kMs, 1, repeats, true));
        rows.push_back(kernels(dir, "kernel 20 ms, waited for", 20 * kMs, 1, repeats, true));
        rows.push_back(kernels(dir, "20 kernels of 1 ms in a row", kMs, 20, repeats, true));
        rows.push_back(
            kernels(dir, "200 kernels of 0.1 ms in a row", kMs / 10, 200, repeats, true));
        rows.push_back(kernels(dir, "50 of 1 ms, 4 processes on a device", kMs, 50, 1, false));
        rows.push_back(collectives(dir, "all-reduce 2 ms, 4 ranks", 2 * kMs, repeats));
        rows.push_back(collectives(dir, "all-reduce 10 ms, 4 ranks", 10 * kMs, repeats));
        rows.push_back(iterations(dir, repeats));
    }
    return report(rows, json_file);
}

}  // namespace

int main(int argc, char** argv) {
    try {
        return run(argc, argv);
    } catch (const std::exception& error) {
        std::fprintf(stderr, "simgpu_timing: %s\n", error.what());
        return 1;
    }
}
