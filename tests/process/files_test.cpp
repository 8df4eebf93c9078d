// SPDX-License-Identifier: Apache-2.0
// The file's life under many processes, and what is found under its name. Damage while clients use
// it is in moves_test.cpp.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <cstring>
#include <fstream>
#include <random>
#include <vector>

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
        segment.get()->header.end = SegmentEnd::kLeft;
        ASSERT_EQ(stat(file().c_str(), &before), 0);
        auto client = attach(10, 0, status);
        ASSERT_TRUE(client) << status_text(status);
        EXPECT_EQ(client->segment().header.end, SegmentEnd::kInUse);
        EXPECT_FALSE(segment.is_named());
    }
    EXPECT_FALSE(file_exists());
}

// A file of ours that is no segment any more, or never was.
TEST_F(FilesTest, ADamagedFileIsReplacedAndSaid) {
    std::mt19937 random(5);
    for (const std::size_t size : {std::size_t{0}, std::size_t{10}, sizeof(Segment) / 2,
                                   sizeof(Segment), sizeof(Segment) + 1}) {
        std::string bytes(size, '\0');
        if (size != sizeof(Segment)) {  // that one is all zeros
            for (char& byte : bytes) byte = static_cast<char>(random());
        }
        std::ofstream(file(), std::ios::binary) << bytes;
        ASSERT_EQ(chmod(file().c_str(), 0600), 0);
        Status status = Status::kOk;
        auto client = attach(10, 0, status);
        ASSERT_TRUE(client) << status_text(status) << ", size " << size;
        EXPECT_EQ(client->replaced(), Status::kCorrupt);
        EXPECT_EQ(client->acquire(0), Wait::kGranted);
        auto second = attach(20, 0, status);
        ASSERT_TRUE(second);
        EXPECT_EQ(second->replaced(), Status::kOk) << "that one is sound";
        EXPECT_TRUE(client->contended());
    }
    EXPECT_FALSE(file_exists());
}

TEST_F(FilesTest, AFileOfSomebodyElseIsNeverTouched) {
    Status status = Status::kOk;
    const std::string content = "not a segment";
    const auto expect_untouched = [&](Status expected) {
        EXPECT_EQ(attach(10, 0, status), nullptr);
        EXPECT_EQ(status, expected);
        std::ifstream in(file());
        EXPECT_EQ(std::string(std::istreambuf_iterator<char>(in), {}), content);
    };
    std::ofstream(file()) << content;
    ASSERT_EQ(chmod(file().c_str(), 0602), 0);
    expect_untouched(Status::kForeign);
    ASSERT_EQ(chmod(file().c_str(), 0620), 0);
    expect_untouched(Status::kForeign);
    std::filesystem::rename(file(), root_ + "/elsewhere");
    ASSERT_EQ(chmod((root_ + "/elsewhere").c_str(), 0600), 0);
    std::filesystem::create_symlink(root_ + "/elsewhere", file());
    expect_untouched(Status::kForeign);
    EXPECT_TRUE(std::filesystem::is_symlink(file()));
    if (geteuid() == 0) {
        std::filesystem::remove(file());
        std::filesystem::rename(root_ + "/elsewhere", file());
        ASSERT_EQ(chown(file().c_str(), 12345, 54321), 0);
        expect_untouched(Status::kForeign);
    }
}

TEST_F(FilesTest, ManyWhoReplaceAtOnceMeetInOneSegment) {
    constexpr int kProcesses = 8;
    struct Block {
        std::atomic<int> ready{0}, attached{0}, seen{0};
    };
    for (int round = 0; round < 30; ++round) {
        std::ofstream(file(), std::ios::binary) << std::string(sizeof(Segment), '\xA5');
        ASSERT_EQ(chmod(file().c_str(), 0600), 0);
        Shared<Block> block;
        std::vector<std::unique_ptr<Process>> children;
        for (int me = 0; me < kProcesses; ++me) {
            children.push_back(std::make_unique<Process>([&, me] {
                ++block->ready;
                while (block->ready < kProcesses) {
                }
                auto client = must_attach(static_cast<std::uint64_t>(1 + me));
                ++block->attached;
                CX_CHILD_CHECK(eventually([&] { return block->attached == kProcesses; }));
                CX_CHILD_CHECK(client->segment().arbitration.turn.active_jobs == kProcesses);
                ++block->seen;
                CX_CHILD_CHECK(eventually([&] { return block->seen == kProcesses; }));
            }));
        }
        for (auto& child : children) child->expect_success();
        EXPECT_FALSE(file_exists());
    }
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

}  // namespace
}  // namespace crossover
