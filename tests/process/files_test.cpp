// SPDX-License-Identifier: Apache-2.0
// The file's life under many processes, and damage to it while clients use it: every fault ends in
// kFault within a bound, never in a hang or a crash.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <random>
#include <vector>

#include "arbiter/transaction.hpp"
#include "tests/process/processes.hpp"

namespace crossover {
namespace {

using FilesTest = ProcessTest;

TEST_F(FilesTest, TheLastOneRemovesTheFile) {
    Status status = Status::kOk;
    auto a = attach(10, 0, status);
    auto b = attach(20, 0, status);
    ASSERT_TRUE(a && b);
    EXPECT_TRUE(file_exists());
    a.reset();
    EXPECT_TRUE(file_exists());
    b.reset();
    EXPECT_FALSE(file_exists());
    // Killed ones leave it; the next one cleans up after them.
    for (const std::uint64_t job : {10, 20}) {
        Shared<std::atomic<int>> attached;
        Process victim([&] {
            auto client = must_attach(job);
            *attached = 1;
            for (;;) pause();
        });
        ASSERT_TRUE(eventually([&] { return *attached == 1; }));
        victim.kill_now();
    }
    EXPECT_TRUE(file_exists());
    a = attach(30, 0, status);
    ASSERT_TRUE(a);
    EXPECT_FALSE(a->contended());
    a.reset();
    EXPECT_FALSE(file_exists());
}

TEST_F(FilesTest, ManyProcessesAttachAtOnce) {
    constexpr int kProcesses = 16;
    struct Block {
        std::atomic<int> ready{0}, attached{0}, seen{0};
    };
    for (int round = 0; round < 10; ++round) {
        Shared<Block> block;
        std::vector<std::unique_ptr<Process>> children;
        for (int me = 0; me < kProcesses; ++me) {
            children.push_back(std::make_unique<Process>([&, me] {
                ++block->ready;
                while (block->ready < kProcesses) {
                }
                auto client = must_attach(static_cast<std::uint64_t>(1 + me % 8));
                ++block->attached;
                CX_CHILD_CHECK(eventually([&] { return block->attached == kProcesses; }));
                int clients = 0;
                for (const ClientSlot& slot : client->segment().clients) {
                    clients += static_cast<int>(slot.attached.load());
                }
                CX_CHILD_CHECK(clients == kProcesses);
                CX_CHILD_CHECK(client->segment().arbitration.turn.active_jobs == 8);
                ++block->seen;
                CX_CHILD_CHECK(eventually([&] { return block->seen == kProcesses; }));
            }));
        }
        for (auto& child : children) child->expect_success();
        EXPECT_FALSE(file_exists());
    }
}

TEST_F(FilesTest, ComingAndGoingNeverMissesOrSplits) {
    // The file is made and removed all the time. Two jobs that both hold the turn on the same
    // device would have been on two files.
    struct Block {
        std::atomic<int> inside{0}, overlaps{0};
    };
    Shared<Block> block;
    std::vector<std::unique_ptr<Process>> children;
    for (std::uint64_t me = 0; me < 8; ++me) {
        children.push_back(std::make_unique<Process>([&, me] {
            for (int round = 0; round < 200; ++round) {
                auto client = must_attach(1 + me);
                CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
                if (block->inside.fetch_add(1) != 0) ++block->overlaps;
                if (round % 4 == 0) std::this_thread::sleep_for(std::chrono::microseconds(50));
                block->inside.fetch_sub(1);
            }
        }));
    }
    for (auto& child : children) child->expect_success();
    EXPECT_EQ(block->overlaps, 0);
    EXPECT_FALSE(file_exists());
}

TEST_F(FilesTest, AnUnfinishedRemovalIsFinishedByTheNext) {
    Status status = Status::kOk;
    Folder folder;
    ASSERT_EQ(choose_folder(root_.c_str(), true, folder), Status::kOk);
    struct stat before {};
    {
        // What a last client leaves that dies between the mark and the removal of the name.
        MappedSegment segment;
        ASSERT_EQ(open_or_create(folder, device_, in_long(), segment), Status::kOk);
        segment.get()->header.unlinked = 1;
        ASSERT_EQ(stat(file().c_str(), &before), 0);
        auto client = attach(10, 0, status);
        ASSERT_TRUE(client) << status_text(status);
        EXPECT_EQ(client->segment().header.unlinked, 0U);
        EXPECT_FALSE(segment.is_named());
    }
    EXPECT_FALSE(file_exists());
}

TEST_F(FilesTest, FullTablesAreAStatus) {
    Status status = Status::kOk;
    std::vector<std::unique_ptr<Client>> clients;
    for (std::uint64_t job = 1; job <= kMaxJobs; ++job) {
        clients.push_back(attach(job, 0, status));
        ASSERT_TRUE(clients.back());
    }
    EXPECT_EQ(attach(1000, 0, status), nullptr);
    EXPECT_EQ(status, Status::kFull) << "jobs";
    struct Block {
        std::atomic<int> full{0}, leave{0};
    };
    Shared<Block> block;
    std::vector<std::unique_ptr<Process>> others;
    for (int i = 0; i < 4; ++i) {
        others.push_back(std::make_unique<Process>([&] {
            std::vector<std::unique_ptr<Client>> own;
            for (std::size_t n = 0; n < (kMaxClients - kMaxJobs) / 4; ++n)
                own.push_back(must_attach(1));
            ++block->full;
            CX_CHILD_CHECK(eventually([&] { return block->leave == 1; }));
        }));
    }
    ASSERT_TRUE(eventually([&] { return block->full == 4; }));
    EXPECT_EQ(attach(1, 0, status), nullptr);
    EXPECT_EQ(status, Status::kFull) << "clients";
    clients.pop_back();
    clients.push_back(attach(1, 0, status));
    EXPECT_TRUE(clients.back()) << "a slot that was given back";
    block->leave = 1;
    for (auto& other : others) other->expect_success();
}

TEST_F(FilesTest, ProblemsOfTheFolderAreStatuses) {
    Status status = Status::kOk;
    const std::string good = root_;
    ASSERT_EQ(chmod(root_.c_str(), 0777), 0);
    EXPECT_EQ(attach(1, 0, status), nullptr);
    EXPECT_EQ(status, Status::kForeign);
    ASSERT_EQ(chmod(root_.c_str(), 0700), 0);
    root_ = good + "/missing/deeper";
    EXPECT_EQ(attach(1, 0, status), nullptr);
    EXPECT_EQ(status, Status::kNotFound);
    root_ = "/proc/self";
    EXPECT_EQ(attach(1, 0, status), nullptr);
    EXPECT_NE(status, Status::kOk);
    root_ = good;
}

// What is written over the file while its clients run.
struct Damage {
    const char* name;
    std::size_t offset, bytes;
    int fill;  // -1: random
};

class DamageTest : public FilesTest, public testing::WithParamInterface<Damage> {};

TEST_P(DamageTest, EndsInAFaultNotAHang) {
    const Damage& damage = GetParam();
    struct Block {
        std::atomic<int> holding{0}, waiting{0}, damaged{0};
    };
    for (unsigned trial = 0; trial < 3; ++trial) {
        Shared<Block> block;
        const auto use = [&](Client& client) {
            CX_CHILD_CHECK(eventually([&] { return block->damaged == 1; }));
            // However often it tries, it comes back; most damage it notices.
            for (int i = 0; i < 4; ++i) {
                client.acquire(monotonic_ns() + 20 * kMs);
                client.release();
                client.set_phase(ClientPhase::kIdle, 1);
                client.record(EventKind::kIdle, 1, 1);
                client.sleep(client.notice(), monotonic_ns() + kMs);
            }
            // Whole headers and locks are always noticed.
            if (GetParam().bytes >= sizeof(Header)) {
                CX_CHILD_CHECK(client.acquire(monotonic_ns()) == Wait::kFault);
                CX_CHILD_CHECK(!client.holding());
            }
        };
        Process holder([&] {
            auto client = must_attach(10);
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            block->holding = 1;
            use(*client);
        });
        ASSERT_TRUE(eventually([&] { return block->holding == 1; }));
        Process waiter([&] {
            auto client = must_attach(20);
            block->waiting = 1;
            // Asleep in its wait when the damage comes.
            CX_CHILD_CHECK(client->acquire(monotonic_ns() + 3'000 * kMs) != Wait::kAborted);
            use(*client);
        });
        ASSERT_TRUE(eventually([&] { return block->waiting == 1; }));
        std::this_thread::sleep_for(std::chrono::milliseconds(20));
        std::mt19937 random(trial);
        std::vector<char> bytes(damage.bytes, static_cast<char>(damage.fill));
        if (damage.fill < 0) {
            for (char& byte : bytes) byte = static_cast<char>(random());
        }
        const int descriptor = open(file().c_str(), O_WRONLY);
        ASSERT_GE(descriptor, 0);
        ASSERT_EQ(pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(damage.offset)),
                  static_cast<ssize_t>(bytes.size()));
        close(descriptor);
        block->damaged = 1;
        waiter.expect_success();
        holder.expect_success();
        std::filesystem::remove(file());
    }
}

INSTANTIATE_TEST_SUITE_P(Damages, DamageTest,
                         testing::Values(Damage{"everything_random", 0, sizeof(Segment), -1},
                                         Damage{"everything_zero", 0, sizeof(Segment), 0},
                                         Damage{"everything_ones", 0, sizeof(Segment), 0xFF},
                                         Damage{"header", 0, sizeof(Header), -1},
                                         Damage{"lock", offsetof(Segment, arbitration), 64, -1},
                                         Damage{"turn_word", offsetof(Segment, arbitration) + 64, 8,
                                                0x7E},
                                         Damage{"clients_zero", offsetof(Segment, clients),
                                                sizeof(ClientSlot) * kMaxClients, 0},
                                         Damage{"clients_random", offsetof(Segment, clients),
                                                sizeof(ClientSlot) * kMaxClients, -1}),
                         [](const testing::TestParamInfo<Damage>& row) { return row.param.name; });

TEST_F(FilesTest, AProcessStoppedInsideTheLockCostsABoundedWait) {
    Status status = Status::kOk;
    auto client = attach(10, 0, status);
    ASSERT_TRUE(client);
    Process stopped([&] {
        auto own = must_attach(20);
        // The lock is held by a stopped process: only a debugger or bad luck does this.
        Transaction transaction(const_cast<Segment&>(own->segment()));
        CX_CHILD_CHECK(transaction.status() == Status::kOk);
        raise(SIGSTOP);
    });
    int state = 0;
    ASSERT_EQ(waitpid(stopped.pid(), &state, WUNTRACED), stopped.pid());
    ASSERT_TRUE(WIFSTOPPED(state));
    const std::uint64_t begin = monotonic_ns();
    EXPECT_EQ(client->acquire(in_long()), Wait::kFault);
    EXPECT_GE(monotonic_ns() - begin, kLockBoundNs);
    EXPECT_EQ(client->acquire(in_long()), Wait::kFault) << "for ever, and at once";
    client.reset();
    stopped.send(SIGCONT);
    stopped.expect_success();
}

}  // namespace
}  // namespace crossover
