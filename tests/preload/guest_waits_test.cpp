// SPDX-License-Identifier: Apache-2.0
// Waiting threads under the library: let through by NCCL calls that end things and by the end of
// the process; and gated jobs whose shared segment goes bad under them. Runs on a virtual machine.
#include <fcntl.h>
#include <gtest/gtest.h>
#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <memory>

#include "guest_machine.hpp"

namespace crossover::test {
namespace {

using Words = std::vector<std::string>;

// A job that computes all the time and keeps its turn for as long as a lease can be.
std::unique_ptr<Guest> stubborn_peer() {
    auto peer = std::make_unique<Guest>(Words{"loop", "2000"},
                                        Words{"CROSSOVER_JOB=peer", "CROSSOVER_LEASE_MS=10000"});
    EXPECT_TRUE(peer->wait_for_line("ready"));
    await([] {
        const DeviceSeen seen = look_at_device();
        return !seen.clients.empty() && seen.clients[0].second.claims;
    });
    return peer;
}

class GuestLetThrough : public testing::TestWithParam<const char*> {
  protected:
    static bool process_ends() {
        const std::string how = GetParam();
        return how == "exit" || how == "_exit";
    }
    // After its line: the wait is over, in the way the parameter says.
    static void expect_over(Guest& guest) {
        guest.send_line();
        EXPECT_TRUE(guest.wait_for_line("it waits"));
        if (!process_ends()) {
            EXPECT_TRUE(guest.wait_for_line("passed"));
            return;
        }
        const pid_t pid = guest.pid();
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_EQ(guest.err(), "");
        await([pid] {
            // Where nobody else is, nobody finds it until somebody comes.
            for (const auto& [uuid, device] : look()) {
                if (device.clients.size() > 1 && !device.of(pid).empty()) return false;
            }
            return true;
        });
    }
};

INSTANTIATE_TEST_SUITE_P(All, GuestLetThrough,
                         testing::Values("abort", "destroy", "finalize", "exit", "_exit"),
                         [](const auto& tested) {
                             const std::string how = tested.param;
                             return how == "_exit" ? std::string("quick_exit") : how;
                         });

TEST_P(GuestLetThrough, AThreadThatWaitsForTheTurn) {
    const auto peer = stubborn_peer();
    const std::uint64_t turns = look_at_device().jobs.at("peer").turns;
    Guest guest({"waits_for_turn", GetParam()}, {"CROSSOVER_JOB=guest"});
    await([&] {
        const auto seen = look_at_device().of(guest.pid());
        return !seen.empty() && seen[0].waits;
    });
    expect_over(guest);
    EXPECT_EQ(look_at_device().jobs.at("peer").turns, turns) << "its first turn is not over";
    if (!process_ends()) {
        EXPECT_EQ(look_at_device().jobs.at("guest").turns, 0U) << "it passed without one";
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_EQ(guest.err(), "");
    }
    if (std::string(GetParam()) == "exit") {
        EXPECT_NE(guest.out().find("joined at exit"), std::string::npos) << guest.out();
    }
    EXPECT_EQ(exit_status_of(peer->finish()), 0);
}

TEST_P(GuestLetThrough, AThreadThatWaitsAtACrossing) {
    // So that there is something to be gated for; it gives way at once.
    Guest peer({"loop", "500"}, {"CROSSOVER_JOB=peer", "CROSSOVER_LEASE_MS=20"});
    ASSERT_TRUE(peer.wait_for_line("ready"));
    Guest guest({"waits_at_crossing", GetParam()}, {"CROSSOVER_JOB=guest"});
    ASSERT_TRUE(guest.wait_for_line("alone"));
    // The crossing is counted when the wait begins; it was counted for earlier ones, too.
    const auto crossings = [&] {
        std::uint64_t most = 0;
        for (const auto& [uuid, device] : look()) {
            for (const ClientSeen& seen : device.of(guest.pid())) {
                most = std::max(most, seen.crossings);
            }
        }
        return most;
    };
    EXPECT_GT(crossings(), 0U) << "the windows were worth a wait";
    std::this_thread::sleep_for(std::chrono::milliseconds(300));
    expect_over(guest);
    EXPECT_EQ(guest.out().find("the collective has ended"), std::string::npos) << guest.out();
    if (!process_ends()) {
        EXPECT_EQ(exit_status_of(guest.finish()), 0);
        EXPECT_EQ(guest.err(), "");
    }
    EXPECT_EQ(exit_status_of(peer.finish()), 0);
}

TEST(GuestMoves, JobsWhoseSegmentIsOverwrittenAreGatedAgainInANewOne) {
    char pattern[] = "/tmp/crossover-folder-XXXXXX";
    ASSERT_NE(::mkdtemp(pattern), nullptr);
    const std::string folder = pattern;
    const auto job = [&](const char* name) {
        auto guest = std::make_unique<Guest>(
            Words{"loop", "2000"},
            Words{std::string("CROSSOVER_JOB=") + name, "CROSSOVER_LEASE_MS=20",
                  "CROSSOVER_MEMORY=file", "CROSSOVER_DIR=" + folder});
        EXPECT_TRUE(guest->wait_for_line("ready"));
        return guest;
    };
    const auto one = job("one");
    const auto two = job("two");
    const auto take_turns = [&] {
        const auto devices = look(folder.c_str());
        if (devices.size() != 1) return false;
        const auto& jobs = devices.begin()->second.jobs;
        return jobs.count("one") == 1 && jobs.count("two") == 1 && jobs.at("one").turns > 3 &&
               jobs.at("two").turns > 3;
    };
    await(take_turns);
    std::string name;
    for (const auto& entry : std::filesystem::directory_iterator(folder)) name = entry.path();
    struct stat before {};
    ASSERT_EQ(::stat(name.c_str(), &before), 0);
    const int file = ::open(name.c_str(), O_WRONLY | O_CLOEXEC);
    ASSERT_GE(file, 0);
    const std::string noise(256, '\x5A');  // the header and the lock
    ASSERT_EQ(::pwrite(file, noise.data(), noise.size(), 0), 256);
    ::close(file);
    await([&] {
        struct stat after {};
        return ::stat(name.c_str(), &after) == 0 && after.st_ino != before.st_ino && take_turns();
    });
    for (Guest* guest : {one.get(), two.get()}) {
        EXPECT_EQ(exit_status_of(guest->finish()), 0);
        EXPECT_NE(guest->err().find("goes on ungated until"), std::string::npos) << guest->err();
        EXPECT_NE(guest->err().find("gated again"), std::string::npos) << guest->err();
    }
    EXPECT_TRUE(std::filesystem::is_empty(folder));
    std::filesystem::remove_all(folder);
}

}  // namespace
}  // namespace crossover::test
