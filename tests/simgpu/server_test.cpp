// SPDX-License-Identifier: Apache-2.0
// The device server as a process: options, hostile and dying clients, the truth log, its end. What
// the model computes is tested in tests/unit/simgpu_engine_test.cpp.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <random>
#include <sstream>
#include <string>
#include <vector>

#include "device_list.hpp"
#include "wire_client.hpp"

namespace simgpu {
namespace {

constexpr std::uint64_t kMs = 1'000'000;
constexpr std::uint64_t kHour = 3'600'000 * kMs;

std::string contents(const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
}

// A server in a folder of its own, with its standard error in a file.
class ServerProcess {
  public:
    explicit ServerProcess(const std::vector<std::string>& options = {},
                           const std::string& folder = {}) {
        if (folder.empty()) {
            std::string name =
                (std::filesystem::temp_directory_path() / "simgpu-test.XXXXXX").string();
            if (mkdtemp(name.data()) == nullptr) throw std::runtime_error("mkdtemp");
            dir_ = name;
            own_folder_ = true;
        } else {
            dir_ = folder;
        }
        int ready[2];
        if (pipe2(ready, O_CLOEXEC) != 0) throw std::runtime_error("pipe2");
        std::vector<std::string> words = {SIMGPU_SERVER, "--dir", dir_, "--ready-fd", "3"};
        words.insert(words.end(), options.begin(), options.end());
        pid_ = fork();
        if (pid_ == 0) {
            const int errors = open(error_file().c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0600);
            dup2(errors, STDERR_FILENO);
            if (ready[1] == 3) {
                fcntl(3, F_SETFD, 0);
            } else {
                dup2(ready[1], 3);
            }
            std::vector<char*> argv;
            for (std::string& word : words) argv.push_back(word.data());
            argv.push_back(nullptr);
            execv(SIMGPU_SERVER, argv.data());
            _exit(127);
        }
        close(ready[1]);
        char byte = 0;
        started_ = read(ready[0], &byte, 1) == 1;
        close(ready[0]);
    }
    ~ServerProcess() {
        stop();
        std::error_code ignored;
        if (own_folder_) std::filesystem::remove_all(dir_, ignored);
        std::filesystem::remove(error_file(), ignored);
    }
    ServerProcess(const ServerProcess&) = delete;
    ServerProcess& operator=(const ServerProcess&) = delete;

    bool started() const { return started_; }
    const std::string& dir() const { return dir_; }
    std::string errors() const { return contents(error_file()); }

    // Ends it with `signal` and returns its exit status, -1 if it did not exit by itself.
    int stop(int signal = SIGTERM) {
        if (pid_ < 0) return -1;
        if (started_) kill(pid_, signal);
        int status = 0;
        waitpid(pid_, &status, 0);
        pid_ = -1;
        return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

  private:
    std::string error_file() const { return dir_ + ".stderr." + std::to_string(owner_); }

    static inline int next_owner_ = 0;
    int owner_ = next_owner_++;
    std::string dir_;
    bool own_folder_ = false;
    bool started_ = false;
    pid_t pid_ = -1;
};

// A well-behaved client gets a kernel of 2 ms in exactly its time.
void expect_works(const ServerProcess& server, int device = 0) {
    WireClient wire(server.dir());
    wire.hello();
    wire.create_stream(1, device);
    const Request first = wire.operation(OpKind::kKernel, 1, kMs);
    const Request second = wire.operation(OpKind::kKernel, 1, 2 * kMs);
    wire.send({first, second});
    const Notice begin = wire.expect(NoticeKind::kDone, first.op);
    const Notice end = wire.expect(NoticeKind::kDone, second.op);
    EXPECT_EQ(end.time_ns - begin.time_ns, 2 * kMs + 1'000);  // and the default gap
}

// Reads until the server hangs up; the last error text before.
std::string read_to_hang_up(WireClient& wire) {
    std::string error;
    try {
        while (const auto notice = wire.next()) {
            if (notice->kind == NoticeKind::kError) error = notice->text;
        }
    } catch (const std::runtime_error& gone) {
        EXPECT_TRUE(std::string(gone.what()).find("hung up") != std::string::npos ||
                    std::string(gone.what()).find("reset") != std::string::npos)
            << gone.what();
        return error;
    }
    ADD_FAILURE() << "the server did not hang up";
    return error;
}

// ---- greeting ----

TEST(SimgpuServer, WelcomesWithItsSettings) {
    const ServerProcess server({"--devices", "3", "--sharing", "timeslice", "--slice-us", "500"});
    ASSERT_TRUE(server.started());
    WireClient wire(server.dir());
    const Notice welcome = wire.hello();
    EXPECT_EQ(welcome.value, 3U);
    EXPECT_EQ(std::string(welcome.text).rfind("devices=3 sharing=timeslice slice_us=500 ", 0), 0U)
        << welcome.text;
    expect_works(server, 2);
}

TEST(SimgpuServer, CountsInstancesWhereGpusAreSplit) {
    const ServerProcess server({"--devices", "2", "--mig", "3"});
    ASSERT_TRUE(server.started());
    WireClient wire(server.dir());
    const Notice welcome = wire.hello();
    EXPECT_EQ(welcome.value, 6U);
    EXPECT_EQ(std::string(welcome.text).rfind("devices=2 sharing=mps mig=3 ", 0), 0U)
        << welcome.text;
    std::ifstream file(server.dir() + "/devices");
    const std::string list{std::istreambuf_iterator<char>(file), {}};
    EXPECT_EQ(parse_device_list(list).size(), 6U) << list;
}

TEST(SimgpuServer, HangsUpWithoutAHello) {
    const ServerProcess server;
    WireClient wire(server.dir());
    wire.create_stream(1, 0);
    EXPECT_EQ(read_to_hang_up(wire), "the first request of a connection must be a hello");
    expect_works(server);
}

TEST(SimgpuServer, HangsUpOnAnotherProtocolVersion) {
    const ServerProcess server;
    WireClient wire(server.dir());
    Request hello;
    hello.kind = RequestKind::kHello;
    hello.stream = 1;
    hello.participants = 999;
    wire.send(hello);
    EXPECT_EQ(read_to_hang_up(wire),
              "protocol version 999, this server speaks " + std::to_string(kProtocolVersion));
}

// ---- hostile clients ----

// Takes what has come, so that the client does not count as slow; the number of errors among it.
int drain(WireClient& wire) {
    int errors = 0;
    while (const auto notice = wire.next(std::chrono::milliseconds(0)))
        errors += notice->kind == NoticeKind::kError;
    return errors;
}

TEST(SimgpuServer, RandomBytesDoNoHarm) {
    const ServerProcess server;
    std::mt19937_64 random(20240607);
    WireClient wire(server.dir());
    wire.hello();
    int errors = 0;
    std::vector<unsigned char> packet;
    for (int i = 0; i < 3000; ++i) {
        // Every third is a whole number of records, so that their fields are looked at as well.
        const std::size_t size =
            i % 3 == 0 ? (random() % 8 + 1) * sizeof(Request) : random() % 2000 + 1;
        packet.resize(size);
        std::generate(packet.begin(), packet.end(),
                      [&random] { return static_cast<unsigned char>(random()); });
        wire.send_bytes(packet.data(), packet.size());
        errors += drain(wire);
    }
    packet.resize((kMaxRecords + 1) * sizeof(Request));
    wire.send_bytes(packet.data(), packet.size());
    wire.create_stream(1, 77);
    std::string last;
    while (last.rfind("device 77", 0) != 0) {
        const auto notice = wire.next();
        ASSERT_TRUE(notice.has_value());
        if (notice->kind != NoticeKind::kError) continue;
        last = notice->text;
        ++errors;
    }
    EXPECT_GT(errors, 3000);
    expect_works(server);
}

// Requests with fields that are plausible each but random together reach far into the model.
TEST(SimgpuServer, RandomRequestsDoNoHarm) {
    for (const char* sharing : {"mps", "timeslice"}) {
        ServerProcess server(
            {"--sharing", sharing, "--slice-us", "50", "--latency-us", "1", "--devices", "2"});
        std::mt19937_64 random(4711);
        std::vector<std::unique_ptr<WireClient>> wires;
        for (int i = 0; i < 3; ++i) {
            wires.push_back(std::make_unique<WireClient>(server.dir()));
            wires.back()->hello();
        }
        std::vector<OpId> next(wires.size(), 1);
        for (int i = 0; i < 20'000; ++i) {
            const std::size_t who = random() % wires.size();
            Request request;
            request.kind = static_cast<RequestKind>(random() % 8 + 2);
            if (random() % 2 == 0) request.kind = RequestKind::kSubmit;
            request.op_kind = static_cast<OpKind>(random() % 8);
            request.op = random() % 20 == 0 ? random() % 100 : next[who];
            if (request.kind == RequestKind::kSubmit) ++next[who];
            if (request.kind == RequestKind::kAck)
                request.op = next[who] - std::min(next[who], random() % 8);
            request.stream = random() % 4;
            request.wait_op = next[who] - std::min(next[who], random() % 20);
            request.cost_ns = random() % 20'000;
            request.comm_key = random() % 6;
            request.rendezvous = random() % 8;
            request.link_bytes = random() % 10'000;
            request.participants = static_cast<std::uint32_t>(random() % 4);
            request.rank = static_cast<std::uint32_t>(random() % 3);
            request.device = static_cast<std::int32_t>(random() % 4) - 1;
            request.priority = static_cast<std::int32_t>(random() % 3) - 1;
            request.sm_share = static_cast<float>(random() % 12) / 10.0F;
            request.flags = static_cast<std::uint32_t>(random() % 3);
            if (request.kind == RequestKind::kHello) continue;
            wires[who]->send(request);
            if (i % 16 == 0) drain(*wires[who]);
            if (i % 2000 == 1999) {
                // And it goes in the midst of its work.
                wires[who] = std::make_unique<WireClient>(server.dir());
                wires[who]->hello();
                next[who] = 1;
            }
        }
        wires.clear();
        expect_works(server);
        EXPECT_EQ(server.stop(), 0) << server.errors();
    }
}

TEST(SimgpuServer, DropsAClientThatDoesNotRead) {
    const ServerProcess server;
    WireClient wire(server.dir());
    wire.hello();
    wire.create_stream(1, 0);
    EXPECT_THROW(
        for (int packet = 0; packet < 4000; ++packet) {
            std::vector<Request> requests;
            for (std::size_t i = 0; i < kMaxRecords; ++i)
                requests.push_back(wire.operation(OpKind::kMarker, 1));
            wire.send(requests);
        },
        std::runtime_error);
    expect_works(server);
    EXPECT_NE(server.errors().find("does not read its notices"), std::string::npos)
        << server.errors();
}

// ---- clients that die ----

// A process that occupies device 0 for an hour and then waits to be killed; with `heir` it leaves a
// child behind that holds its connection.
pid_t occupy(const std::string& dir, bool heir, pid_t* heir_pid) {
    int channel[2];
    if (pipe(channel) != 0) return -1;
    const pid_t pid = fork();
    if (pid == 0) {
        WireClient wire(dir);
        wire.hello();
        wire.create_stream(1, 0);
        wire.create_stream(2, 0);
        const Request kernel = wire.operation(OpKind::kKernel, 1, kHour);
        const Request marker = wire.operation(OpKind::kMarker, 2);
        wire.send({kernel, marker});
        wire.expect(NoticeKind::kDone, marker.op);
        const pid_t child = heir ? fork() : 0;
        if (heir && child == 0) {
            for (;;) pause();
        }
        if (write(channel[1], &child, sizeof(child)) != sizeof(child)) _exit(1);
        for (;;) pause();
    }
    close(channel[1]);
    pid_t child = -1;
    const bool told = read(channel[0], &child, sizeof(child)) == sizeof(child);
    close(channel[0]);
    if (heir_pid != nullptr) *heir_pid = child;
    return told ? pid : -1;
}

TEST(SimgpuServer, AKilledProcessGivesTheDeviceBack) {
    const ServerProcess server;
    const pid_t pid = occupy(server.dir(), false, nullptr);
    ASSERT_GT(pid, 0);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    expect_works(server);  // at full rate
}

TEST(SimgpuServer, AKilledProcessIsGoneThoughAChildHoldsItsConnection) {
    const int self = static_cast<int>(syscall(SYS_pidfd_open, getpid(), 0));
    if (self < 0) GTEST_SKIP() << "no pidfd on this kernel";
    close(self);
    const ServerProcess server({"--devices", "1"});
    pid_t heir = -1;
    const pid_t pid = occupy(server.dir(), true, &heir);
    ASSERT_GT(pid, 0);
    kill(pid, SIGKILL);
    waitpid(pid, nullptr, 0);
    expect_works(server);
    kill(heir, SIGKILL);
}

// ---- truth log and end ----

TEST(SimgpuServer, WritesWhatReallyHappened) {
    ServerProcess server({"--link-gbps", "8", "--latency-us", "0"});
    const std::uint64_t before_ns = monotonic_ns();
    std::uint64_t end_ns = 0;
    std::uint64_t comm = 0;
    std::vector<OpId> operations;
    {
        WireClient wire(server.dir());
        wire.hello();
        wire.create_stream(5, 1);
        comm = wire.join(3, 1, 0, 1);
        const Request kernel = wire.operation(OpKind::kKernel, 5, 3 * kMs);
        const Request copy = wire.operation(OpKind::kCopy, 5, kMs);
        Request fill = wire.operation(OpKind::kKernel, 5, kMs / 2);
        fill.flags = kFill;
        Request all_reduce = wire.operation(OpKind::kCollective, 5);
        all_reduce.comm_key = comm;
        all_reduce.participants = 1;
        all_reduce.link_bytes = kMs;
        wire.send({kernel, copy, fill, all_reduce});
        operations = {kernel.op, copy.op, fill.op, all_reduce.op};
        end_ns = wire.expect(NoticeKind::kDone, all_reduce.op).time_ns;
    }
    EXPECT_EQ(server.stop(), 0);
    EXPECT_FALSE(std::filesystem::exists(server.dir() + "/server"));
    std::vector<nlohmann::json> lines;
    std::istringstream log(contents(server.dir() + "/truth.jsonl"));
    for (std::string line; std::getline(log, line);) lines.push_back(nlohmann::json::parse(line));
    ASSERT_EQ(lines.size(), 4U);
    const char* kinds[] = {"compute", "copy", "copy", "communicate"};
    const std::uint64_t lengths[] = {3 * kMs, kMs, kMs / 2, kMs};
    for (std::size_t i = 0; i < lines.size(); ++i) {
        EXPECT_EQ(lines[i]["kind"], kinds[i]);
        EXPECT_EQ(lines[i]["device"], 1);
        EXPECT_EQ(lines[i]["stream"], 5);
        EXPECT_EQ(lines[i]["op"], operations[i]);
        EXPECT_EQ(lines[i]["pid"], getpid());
        EXPECT_GE(lines[i]["submit_ns"].get<std::uint64_t>(), before_ns);
        EXPECT_LE(lines[i]["submit_ns"].get<std::uint64_t>(),
                  lines[i]["start_ns"].get<std::uint64_t>());
        EXPECT_EQ(
            lines[i]["end_ns"].get<std::uint64_t>() - lines[i]["start_ns"].get<std::uint64_t>(),
            lengths[i]);
    }
    EXPECT_EQ(lines[3]["comm"], comm);
    EXPECT_EQ(lines[3]["transfer_start_ns"], lines[3]["start_ns"]);
    EXPECT_EQ(lines[3]["end_ns"], end_ns);
}

TEST(SimgpuServer, EndsCleanlyOnEachSignalAndOwnsItsFolder) {
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) {
        ServerProcess server({"--no-truth-log"});
        ASSERT_TRUE(server.started());
        ServerProcess second({}, server.dir());
        EXPECT_FALSE(second.started());
        EXPECT_EQ(second.stop(), 2);
        EXPECT_EQ(second.errors(),
                  "simgpu-server: --dir " + server.dir() + ": a server runs there already\n");
        expect_works(server);
        EXPECT_EQ(server.stop(signal), 0);
        EXPECT_FALSE(std::filesystem::exists(server.dir() + "/server"));
        EXPECT_FALSE(std::filesystem::exists(server.dir() + "/truth.jsonl"));
        ServerProcess third({}, server.dir());
        EXPECT_TRUE(third.started()) << "the folder is free again";
        third.stop(SIGKILL);
        const ServerProcess fourth({}, server.dir());
        EXPECT_TRUE(fourth.started()) << "and after a kill";
        expect_works(fourth);
    }
}

// ---- options ----

struct BadOption {
    std::vector<std::string> options;
    const char* names;    // what the line must name
    const char* allowed;  // and what is allowed
};

class BadOptions : public testing::TestWithParam<BadOption> {};

TEST_P(BadOptions, OneLineThatNamesItAndExitStatus2) {
    ServerProcess server(GetParam().options);
    EXPECT_FALSE(server.started());
    EXPECT_EQ(server.stop(), 2);
    const std::string errors = server.errors();
    EXPECT_EQ(std::count(errors.begin(), errors.end(), '\n'), 1) << errors;
    EXPECT_NE(errors.find(GetParam().names), std::string::npos) << errors;
    EXPECT_NE(errors.find(GetParam().allowed), std::string::npos) << errors;
}

INSTANTIATE_TEST_SUITE_P(
    Table, BadOptions,
    testing::Values(BadOption{{"--devices", "0"}, "--devices", "1 to 64"},
                    BadOption{{"--devices", "65"}, "--devices", "1 to 64"},
                    BadOption{{"--devices", "2x"}, "--devices", "1 to 64"},
                    BadOption{{"--devices", "1.5"}, "--devices", "1.5"},
                    BadOption{{"--mig", "8"}, "--mig", "0 to 7"},
                    BadOption{{"--sharing", "fair"}, "--sharing", "mps, timeslice"},
                    BadOption{{"--slice-us", "0"}, "--slice-us", "1 to 1000000"},
                    BadOption{{"--link-gbps", "nan"}, "--link-gbps", "0.001 to 100000"},
                    BadOption{{"--link-gbps", "-1"}, "--link-gbps", "0.001 to 100000"},
                    BadOption{{"--latency-us", "inf"}, "--latency-us", "0 to 1000000"},
                    BadOption{{"--timeslice-comm", "stop"}, "--timeslice-comm", "continue, stall"},
                    BadOption{{"--parent", "1"}, "--parent", "not this process's parent"},
                    BadOption{{"--no-such-option"}, "--no-such-option", "not expected"},
                    BadOption{{"--dir", "/nonexistent"}, "/nonexistent", "does not exist"}));

}  // namespace
}  // namespace simgpu
