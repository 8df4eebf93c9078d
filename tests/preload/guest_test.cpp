// SPDX-License-Identifier: Apache-2.0
// The library as a guest: how the process lives, forks, becomes another, ends and dies with it, and
// what it finds changed. Runs on a virtual machine of its own; the guests are preloaded, this is
// not.
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <memory>
#include <stop_token>
#include <thread>
#include <vector>

#include "guest_machine.hpp"

namespace crossover::test {
namespace {

using Words = std::vector<std::string>;

std::size_t lines_of(const std::string& text) {
    return static_cast<std::size_t>(std::count(text.begin(), text.end(), '\n'));
}

// A job that computes all the time, so that whoever comes is gated.
std::unique_ptr<Guest> busy_peer(const char* job = "peer") {
    auto peer = std::make_unique<Guest>(
        Words{"loop", "2000"}, Words{std::string("CROSSOVER_JOB=") + job, "CROSSOVER_LEASE_MS=20"});
    EXPECT_TRUE(peer->wait_for_line("ready"));
    EXPECT_EQ(look_at_device().of(peer->pid()).size(), 1U);
    return peer;
}

void end_well(Guest& guest) {
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.err(), "");
}

void expect_no_other_client(const Guest& peer) {
    const DeviceSeen seen = look_at_device();
    EXPECT_EQ(seen.of(peer.pid()).size(), 1U);
    EXPECT_EQ(seen.clients.size(), 1U);
}

// ------------------------------------------------------------------------------------ K18

TEST(GuestContexts, ThreadsWithoutContextAndStreamsOfAnotherDeviceAnswerAsWithoutTheLibrary) {
    Guest bare({"contexts"}, {"LD_PRELOAD="});
    ASSERT_EQ(exit_status_of(bare.finish()), 0);
    Guest alone({"contexts"});
    end_well(alone);
    EXPECT_EQ(alone.out(), bare.out());
    const auto peer = busy_peer();
    Guest beside({"contexts"}, {"CROSSOVER_JOB=guest"});
    end_well(beside);
    EXPECT_EQ(beside.out(), bare.out());
    end_well(*peer);
}

// ------------------------------------------------------------------------------------ K21

TEST(GuestForks, FiveHundredChildrenOfALaunchingProcess) {
    const auto peer = busy_peer();
    Guest guest({"forks", "500"}, {"CROSSOVER_JOB=guest"});
    await([&] { return !look_at_device().of(guest.pid()).empty(); });
    end_well(guest);
    EXPECT_EQ(guest.out(), "bad 0, result right\n");
    expect_no_other_client(*peer);
    end_well(*peer);
}

// The children end while the parent is attached, alone, so nothing but its own calls may move it.
TEST(GuestForks, ChildrenLeaveTheParentsAttachmentAlone) {
    Guest guest({"forks", "50"}, {"CROSSOVER_JOB=guest", "CROSSOVER=observe"});
    std::size_t seen = 0;
    await([&] {
        const DeviceSeen now = look_at_device();
        seen = std::max(seen, now.clients.size());
        return now.clients.empty() && seen != 0;
    });
    EXPECT_EQ(seen, 1U);
    end_well(guest);
    EXPECT_EQ(guest.out(), "bad 0, result right\n");
}

// ------------------------------------------------------------------------------------ K22

TEST(GuestExec, AProcessThatBecomesAnotherRegistersAgain) {
    const auto peer = busy_peer();
    Guest guest({"exec"}, {"CROSSOVER_JOB=guest"});
    ASSERT_TRUE(guest.wait_for_line("first image"));
    EXPECT_EQ(look_at_device().of(guest.pid()).size(), 1U);
    guest.send_line();
    ASSERT_TRUE(guest.wait_for_line("ready"));
    // The first image's entry is found dead within a sweep.
    await([&] { return look_at_device().of(guest.pid()).size() == 1; });
    EXPECT_EQ(look_at_device().jobs.at("guest").clients, 1U);
    end_well(guest);
    expect_no_other_client(*peer);
    end_well(*peer);
}

// ------------------------------------------------------------------------------------ K23

TEST(GuestSnapshot, NothingOfTheProcessIsChanged) {
    Guest bare({"snapshot"}, {"LD_PRELOAD="});
    ASSERT_EQ(exit_status_of(bare.finish()), 0) << bare.out();
    Guest alone({"snapshot"});
    EXPECT_EQ(exit_status_of(alone.finish()), 0);
    EXPECT_EQ(alone.out(), bare.out());
    EXPECT_EQ(alone.err(), "");
}

TEST(GuestSnapshot, NothingOfTheProcessIsChangedBesideAnotherJob) {
    const auto peer = busy_peer();
    // The folder is that of the peer, where files are; this job looks at none of its own.
    Guest guest({"snapshot"}, {"CROSSOVER_JOB=guest", "CROSSOVER_LOG=none"});
    guest.finish();
    EXPECT_EQ(guest.out(), "files before the first call\nvalue 51\n");
    end_well(*peer);
}

// ------------------------------------------------------------------------------------ ends
// (K21-K23)

class GuestEnds : public testing::TestWithParam<std::pair<const char*, int>> {};

TEST_P(GuestEnds, StatusIsTheProgramsAndNothingStaysBehind) {
    const auto [how, status] = GetParam();
    const auto peer = busy_peer();
    Guest guest({"ends", how}, {"CROSSOVER_JOB=guest"});
    ASSERT_TRUE(guest.wait_for_line("leaving"));
    if (std::string(how) == "thread") {
        EXPECT_EQ(look_at_device().of(guest.pid()).size(), 1U);
        guest.send(SIGKILL);
    }
    const pid_t pid = guest.pid();
    EXPECT_EQ(exit_status_of(guest.finish()), status);
    if (std::string(how) == "exit") {
        EXPECT_EQ(guest.err(), "atexit: fine\nstatic object: fine\ndestructor: fine\n");
    } else {
        EXPECT_EQ(guest.err(), "");
    }
    // At once where the library's own end runs, else within a sweep.
    await([&] { return look_at_device().of(pid).empty(); });
    expect_no_other_client(*peer);
    end_well(*peer);
}

INSTANTIATE_TEST_SUITE_P(All, GuestEnds,
                         testing::Values(std::pair{"exit", 11}, std::pair{"_exit", 12},
                                         std::pair{"quick_exit", 13}, std::pair{"abort", -SIGABRT},
                                         std::pair{"terminate", -SIGTERM},
                                         std::pair{"thread", -SIGKILL}),
                         [](const auto& tested) { return std::string(tested.param.first); });

// ------------------------------------------------------------------------------------ K25, K27

// The job goes on as if the library was not there, and says so in one line.
void expect_ungated(const Words& with, const std::string& reason,
                    const Words& command = {"threads", "8"}) {
    Guest guest(command, with);
    EXPECT_EQ(exit_status_of(guest.finish()), 0);
    EXPECT_EQ(guest.out(), "value 160\n");
    EXPECT_EQ(lines_of(guest.err()), 1U) << guest.err();
    EXPECT_NE(guest.err().find("this process goes on ungated"), std::string::npos) << guest.err();
    EXPECT_NE(guest.err().find(reason), std::string::npos) << guest.err();
}

TEST(GuestRefused, HelperThreadByTheUsersLimit) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    expect_ungated({}, "cannot join the jobs of device 0", {"as_nobody", "1"});
}

TEST(GuestRefused, HelperThread) {
    expect_ungated({std::string("LD_PRELOAD=") + CX_TEST_LIBRARY + ":" + CX_TEST_NO_THREADS,
                    "GUEST_REFUSE=crossover"},
                   "cannot join the jobs of device 0");
}

class GuestFolder : public testing::Test {
  protected:
    void SetUp() override {
        char pattern[] = "/tmp/crossover-folder-XXXXXX";
        ASSERT_NE(::mkdtemp(pattern), nullptr);
        root_ = pattern;
        folder_ = root_ + "/segments";
        std::filesystem::create_directory(folder_);
        ::chmod(folder_.c_str(), 0700);
    }
    void TearDown() override { std::filesystem::remove_all(root_); }
    Words with() const { return {"CROSSOVER_DIR=" + folder_}; }
    // The name of the first device's segment there.
    std::string segment_name() {
        Guest guest({"loop", "1000"}, with());
        EXPECT_TRUE(guest.wait_for_line("ready"));
        std::string name;
        for (const auto& entry : std::filesystem::directory_iterator(folder_)) {
            if (entry.path().filename().string().starts_with("GPU-")) name = entry.path();
        }
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_NE(name, "");
        return name;
    }
    std::string root_;
    std::string folder_;
};

TEST_F(GuestFolder, Missing) {
    expect_ungated({"CROSSOVER_DIR=" + root_ + "/none/of/these"}, "cannot join");
}

TEST_F(GuestFolder, IsAFile) {
    std::ofstream(root_ + "/file") << "text";
    expect_ungated({"CROSSOVER_DIR=" + root_ + "/file"}, "belongs to somebody else or is open");
}

TEST_F(GuestFolder, OpenToEverybody) {
    ::chmod(folder_.c_str(), 0777);
    expect_ungated(with(), "belongs to somebody else or is open");
}

TEST_F(GuestFolder, OfAnotherUser) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    ::chmod(root_.c_str(), 0755);
    expect_ungated(with(), "no permission", {"as_nobody", "0"});
}

TEST_F(GuestFolder, ReadOnly) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root, to become another user";
    ::chmod(root_.c_str(), 0755);
    ::chmod(folder_.c_str(), 0755);
    expect_ungated(with(), "no permission", {"as_nobody", "0"});
}

TEST_F(GuestFolder, Full) {
    expect_ungated({"CROSSOVER_DIR=" + folder_,
                    std::string("LD_PRELOAD=") + CX_TEST_LIBRARY + ":" + CX_TEST_NO_THREADS,
                    "GUEST_REFUSE=space"},
                   "no space left");
    EXPECT_TRUE(std::filesystem::is_empty(folder_));
}

TEST_F(GuestFolder, SegmentIsASymbolicLink) {
    const std::string name = segment_name();
    std::filesystem::remove(name);
    std::ofstream(root_ + "/target") << "precious";
    std::filesystem::create_symlink(root_ + "/target", name);
    expect_ungated(with(), "cannot join");
    std::ifstream target(root_ + "/target");
    std::string text;
    std::getline(target, text);
    EXPECT_EQ(text, "precious");
}

TEST_F(GuestFolder, SegmentIsAFolder) {
    const std::string name = segment_name();
    std::filesystem::remove(name);
    std::filesystem::create_directory(name);
    expect_ungated(with(), "cannot join");
}

TEST_F(GuestFolder, SegmentOfAnotherUser) {
    if (::getuid() != 0) GTEST_SKIP() << "needs root, to be two users";
    const std::string name = segment_name();
    std::filesystem::remove(name);
    std::ofstream(name) << "theirs";
    ASSERT_EQ(::chown(name.c_str(), 12345, 12345), 0);
    ::chmod(name.c_str(), 0600);
    expect_ungated(with(), "cannot join");
}

// ------------------------------------------------------------------------------------ K28

TEST(GuestStart, ThirtyTwoThreadsLaunchFirst) {
    const auto peer = busy_peer();
    Guest guest({"threads", "32"}, {"CROSSOVER_JOB=guest"});
    end_well(guest);
    EXPECT_EQ(guest.out(), "value 640\n");
    end_well(*peer);
}

TEST(GuestStart, SixteenProcessesLaunchFirst) {
    std::vector<std::unique_ptr<Guest>> ranks;
    for (int i = 0; i < 16; ++i) {
        ranks.push_back(std::make_unique<Guest>(
            Words{"steps", "20"}, Words{"CROSSOVER_JOB=job" + std::to_string(i % 4)}));
    }
    for (const auto& rank : ranks) {
        end_well(*rank);
        EXPECT_EQ(rank->out(), "value 20\n");
    }
    EXPECT_TRUE(look_at_device().clients.empty());
}

// ------------------------------------------------------------------------------------ K29

std::vector<std::string> devices_seen(const std::string& out) {
    std::vector<std::string> found;
    for (std::size_t at = 0, end = 0; (end = out.find('\n', at)) != std::string::npos;
         at = end + 1) {
        if (end - at == 32) found.push_back(out.substr(at, 32));
    }
    return found;
}

std::string as_variable(const std::string& hex) {
    return "GPU-" + hex.substr(0, 8) + "-" + hex.substr(8, 4) + "-" + hex.substr(12, 4) + "-" +
           hex.substr(16, 4) + "-" + hex.substr(20);
}

TEST(GuestDevices, JobsMeetExactlyWhereTheyShareADevice) {
    Guest all({"devices"}, {"CROSSOVER_JOB=all"});
    ASSERT_TRUE(all.wait_for_line("ready"));
    const std::vector<std::string> devices = devices_seen(all.out());
    ASSERT_EQ(devices.size(), 4U);
    end_well(all);
    struct Case {
        std::string first;
        std::string second;
        std::vector<std::size_t> shared;
    };
    const std::string third = as_variable(devices[2]);
    const Case cases[] = {
        {"2,0", "0", {0}},
        {"2,0", "1,3", {}},
        {"3,1", "1,3", {1, 3}},
        {third, "2", {2}},
        {third.substr(0, 12), "0,2", {2}},
        {third + ",0", "0,1", {0}},
        {"0", "1", {}},  // the same ordinal to both
    };
    for (const Case& each : cases) {
        SCOPED_TRACE(each.first + " and " + each.second);
        Guest one({"devices"}, {"CROSSOVER_JOB=one", "CUDA_VISIBLE_DEVICES=" + each.first});
        Guest two({"devices"}, {"CROSSOVER_JOB=two", "CUDA_VISIBLE_DEVICES=" + each.second});
        ASSERT_TRUE(one.wait_for_line("ready"));
        ASSERT_TRUE(two.wait_for_line("ready"));
        const auto seen = look();
        std::vector<std::size_t> shared;
        for (std::size_t i = 0; i < devices.size(); ++i) {
            const auto found = seen.find(devices[i]);
            if (found != seen.end() && found->second.jobs.size() == 2) shared.push_back(i);
        }
        EXPECT_EQ(shared, each.shared);
        end_well(one);
        end_well(two);
    }
}

// ------------------------------------------------------------------------------------ K30

TEST(GuestBounds, AJobThatNeverPausesIsWaitedForNoLongerThanItsLease) {
    const auto peer = busy_peer();
    Guest guest({"steps", "200"}, {"CROSSOVER_JOB=guest"});
    end_well(guest);
    EXPECT_EQ(guest.out(), "value 200\n");
    end_well(*peer);
}

TEST(GuestBounds, AStoppedHolderLosesItsTurn) {
    const auto peer = busy_peer();
    await([&] { return look_at_device().of(peer->pid())[0].claims; });
    peer->send(SIGSTOP);
    Guest guest({"loop", "500"}, {"CROSSOVER_JOB=guest", "CROSSOVER_LEASE_MS=20"});
    ASSERT_TRUE(guest.wait_for_line("ready"));
    await([&] { return look_at_device().jobs.at("guest").turns != 0; });
    peer->send(SIGCONT);
    const std::uint64_t turns = look_at_device().jobs.at("peer").turns;
    await([&] { return look_at_device().jobs.at("peer").turns > turns + 2; });
    end_well(guest);
    end_well(*peer);
}

// ------------------------------------------------------------------------------------ threads end

void expect_ended_threads_leave_the_turn_behind() {
    const auto peer = busy_peer();
    Guest guest({"leaving_threads", "5"}, {"CROSSOVER_JOB=guest", "CROSSOVER_LEASE_MS=10000"});
    ASSERT_TRUE(guest.wait_for_line("ready"));
    guest.send_line();
    ASSERT_TRUE(guest.wait_for_line("left"));
    await([&] { return !look_at_device().of(guest.pid())[0].claims; });
    EXPECT_EQ(look_at_device().jobs.at("guest").expired, 0U) << "only its lease took the turn away";
    end_well(guest);
    EXPECT_EQ(guest.out(), "ready\nleft\nvalue 6\n");
    end_well(*peer);
}

TEST(GuestThreads, WhoseLastWorkIsOnTheirOwnDefaultStreamsLeaveTheTurnBehind) {
    expect_ended_threads_leave_the_turn_behind();
}

// A launching thread may lose its processor at any place, also between a turn's first launch and
// what tells the watcher of it.
TEST(GuestThreads, LeaveTheTurnBehindOnABusyMachine) {
    std::vector<std::jthread> others;
    for (unsigned i = 0; i < 2 * std::thread::hardware_concurrency(); ++i) {
        others.emplace_back([](const std::stop_token& over) {
            while (!over.stop_requested()) {
            }
        });
    }
    for (int round = 0; round < 20 && !HasFailure(); ++round) {
        expect_ended_threads_leave_the_turn_behind();
    }
}

// ------------------------------------------------------------------------------------ contexts end

class GuestVanish : public testing::TestWithParam<const char*> {};

TEST_P(GuestVanish, ContextsEndUnderLaunchingThreads) {
    Guest bare({"vanish", GetParam(), "later"}, {"LD_PRELOAD="});
    ASSERT_EQ(exit_status_of(bare.finish()), 0) << bare.out();
    const auto peer = busy_peer();
    Guest guest({"vanish", GetParam(), "later"}, {"CROSSOVER_JOB=guest"});
    end_well(guest);
    EXPECT_EQ(guest.out(), bare.out());
    end_well(*peer);
}

// So late that the library does not wait for it: the thread comes back to a gate that has ended.
TEST_P(GuestVanish, ContextsEndUnderThreadsThatAreLateInTheDriver) {
    const auto peer = busy_peer();
    Guest guest({"vanish", GetParam(), "first"}, {"CROSSOVER_JOB=guest", "SIMGPU_LAUNCH=late"});
    end_well(guest);
    EXPECT_EQ(guest.out(), "value 1\n");
    end_well(*peer);
}

INSTANTIATE_TEST_SUITE_P(All, GuestVanish, testing::Values("destroy", "reset", "release"),
                         [](const auto& tested) { return std::string(tested.param); });

}  // namespace
}  // namespace crossover::test
