// SPDX-License-Identifier: Apache-2.0
// Segments in System V shared memory and the locators that lead to them: found, lost, named again,
// replaced by a file where they cannot be reached. What is common to files stands in
// segment_test.cpp.
#include "arbiter/segment_memory.hpp"

#include <gtest/gtest.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <sys/shm.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>

#include "arbiter/futex.hpp"
#include "arbiter/state.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMs = 1'000'000;

class SegmentMemoryTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "crossover-memory-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        for (std::uint8_t i = 0; i < 16; ++i) device_.bytes[i] = i;
        ASSERT_EQ(choose_folder(root_.c_str(), true, folder_), Status::kOk);
    }
    void TearDown() override { fs::remove_all(root_); }

    Status open(MappedSegment& segment) const {
        return open_or_create(folder_, device_, monotonic_ns() + 50 * kMs, segment);
    }
    std::string file() const {
        return root_ + "/GPU-00010203-0405-0607-0809-0a0b0c0d0e0f.v" +
               std::to_string(kLayoutVersion);
    }
    Locator locator() const {
        Locator read{};
        std::ifstream(file(), std::ios::binary).read(reinterpret_cast<char*>(&read), sizeof read);
        return read;
    }
    void write_file(const void* content, std::size_t bytes) const {
        std::ofstream(file(), std::ios::binary)
            .write(static_cast<const char*>(content), static_cast<std::streamsize>(bytes));
        fs::permissions(file(), fs::perms::owner_read | fs::perms::owner_write);
    }
    static int exit_of(pid_t child) {
        int status = 0;
        return waitpid(child, &status, 0) == child && WIFEXITED(status) ? WEXITSTATUS(status) : -1;
    }

    std::string root_;
    Folder folder_;
    DeviceUuid device_;
};

TEST_F(SegmentMemoryTest, IsFoundByItsLocatorAndGoesWithItsLastProcess) {
    int memory = -1;
    {
        MappedSegment first;
        ASSERT_EQ(open(first), Status::kOk);
        EXPECT_FALSE(first.cuttable());
        EXPECT_EQ(fs::file_size(file()), sizeof(Locator));
        EXPECT_TRUE(consistent(*first.get(), device_.bytes));
        first.get()->arbitration.turn_count = 77;
        memory = locator().memory;
        MappedSegment second;
        ASSERT_EQ(open(second), Status::kOk);
        EXPECT_NE(second.get(), first.get());
        EXPECT_EQ(second.get()->arbitration.turn_count, 77U);
        MappedSegment reader;
        ASSERT_EQ(open_read_only(folder_, file().c_str(), reader), Status::kOk);
        EXPECT_EQ(reader.get(), nullptr) << "nothing to write through";
        EXPECT_EQ(reader.view()->arbitration.turn_count, 77U);
        shmid_ds info{};
        ASSERT_EQ(shmctl(memory, IPC_STAT, &info), 0);
        EXPECT_EQ(info.shm_nattch, 3U);
        EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1) << "no temporary file left";
    }
    shmid_ds info{};
    EXPECT_NE(shmctl(memory, IPC_STAT, &info), 0) << "nothing left behind";
    // The locator of killed processes leads nowhere, and is replaced.
    ASSERT_TRUE(fs::exists(file()));
    MappedSegment reader;
    EXPECT_EQ(open_read_only(folder_, file().c_str(), reader), Status::kNotFound);
    MappedSegment later;
    ASSERT_EQ(open(later), Status::kOk);
    EXPECT_FALSE(later.cuttable());
    EXPECT_EQ(later.get()->arbitration.turn_count, 0U);
}

TEST_F(SegmentMemoryTest, WhoComesAfterTheNameIsGoneOrSpoiltFindsTheSameMemory) {
    const std::function<void()> attacks[] = {
        [&] { fs::remove(file()); },
        [&] { fs::resize_file(file(), 0); },
        [&] { fs::resize_file(file(), 17); },
        [&] { fs::resize_file(file(), 2 * sizeof(Segment)); },
        [&] { write_file(std::string(sizeof(Locator), '\xA5').data(), sizeof(Locator)); },
        [&] {
            Locator changed = locator();
            ++changed.memory;  // without the right check
            write_file(&changed, sizeof changed);
        },
        [&] {
            Locator changed = locator();
            ++changed.version;  // which says nothing without the right check
            write_file(&changed, sizeof changed);
        },
    };
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    first.get()->arbitration.turn_count = 5;
    for (const auto& attack : attacks) {
        SCOPED_TRACE(&attack - attacks);
        for (const bool restored : {true, false}) {
            ASSERT_TRUE(first.is_named());
            ASSERT_FALSE(first.lost_name());
            attack();
            EXPECT_TRUE(first.whole());
            EXPECT_TRUE(first.lost_name());
            if (restored) {
                EXPECT_TRUE(first.restore_name(folder_));
                EXPECT_TRUE(first.is_named());
            }
            MappedSegment second;
            Status status = open(second);
            if (status ==
                Status::kCorrupt) {  // its caller says so, removes the file and tries anew
                EXPECT_FALSE(restored);
                ASSERT_EQ(remove_name(second), Status::kOk);
                status = open(second);
            }
            ASSERT_EQ(status, Status::kOk);
            EXPECT_EQ(second.get()->arbitration.turn_count, 5U);
        }
    }
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1);
}

TEST_F(SegmentMemoryTest, ANameThatLeadsElsewhereIsLeftAlone) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    give_up(*first.get());
    ASSERT_EQ(remove_name(first), Status::kOk);
    EXPECT_FALSE(first.restore_name(folder_)) << "nobody is to meet in that one any more";
    EXPECT_FALSE(fs::exists(file()));
    MappedSegment second;
    ASSERT_EQ(open(second), Status::kOk);
    EXPECT_NE(second.get()->header.identity, first.get()->header.identity);
    first.get()->header.end = SegmentEnd::kInUse;
    EXPECT_TRUE(first.lost_name());
    EXPECT_FALSE(first.restore_name(folder_));
    EXPECT_EQ(remove_name(first), Status::kOk);
    EXPECT_TRUE(second.is_named());
}

// Nobody can come in by such a name, so there is no other segment to go to.
TEST_F(SegmentMemoryTest, ANameThatNobodyCanUseIsPutBackWhenItIsFree) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    ASSERT_TRUE(fs::remove(file()));
    ASSERT_TRUE(fs::create_directory(file()));
    EXPECT_TRUE(first.lost_name());
    EXPECT_TRUE(first.restore_name(folder_));
    EXPECT_FALSE(first.is_named());
    ASSERT_TRUE(fs::remove(file()));
    EXPECT_TRUE(first.restore_name(folder_));
    EXPECT_TRUE(first.is_named());
}

TEST_F(SegmentMemoryTest, MemoryOfAnotherFolderOrDeviceIsNotTaken) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    fs::remove(file());
    Folder other;
    fs::create_directory(root_ + "/other");
    fs::permissions(root_ + "/other", fs::perms::owner_all);
    ASSERT_EQ(choose_folder((root_ + "/other").c_str(), false, other), Status::kOk);
    MappedSegment in_other;
    ASSERT_EQ(open_or_create(other, device_, monotonic_ns() + 50 * kMs, in_other), Status::kOk);
    EXPECT_NE(in_other.get()->header.identity, first.get()->header.identity);
    DeviceUuid second_device = device_;
    second_device.bytes[0] = 0xFF;
    MappedSegment of_other;
    ASSERT_EQ(open_or_create(folder_, second_device, monotonic_ns() + 50 * kMs, of_other),
              Status::kOk);
    EXPECT_NE(of_other.get()->header.identity, first.get()->header.identity);
}

TEST_F(SegmentMemoryTest, OneInAnotherNamespaceIsReplacedByAFileThatBothCanMap) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    Locator there = locator();
    ASSERT_NE(there.ipc_namespace, 0U);
    // As a process of another namespace sees it.
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (unshare(CLONE_NEWIPC) != 0 && unshare(CLONE_NEWUSER | CLONE_NEWIPC) != 0) _exit(77);
        MappedSegment reader;
        if (open_read_only(folder_, file().c_str(), reader) != Status::kElsewhere) _exit(1);
        MappedSegment segment;
        if (open(segment) != Status::kOk || !segment.cuttable()) _exit(2);
        _exit(0);
    }
    const int code = exit_of(child);
    if (code == 77) GTEST_SKIP() << "IPC namespaces are not permitted here";
    ASSERT_EQ(code, 0);
    EXPECT_EQ(fs::file_size(file()), sizeof(Segment));
    EXPECT_TRUE(first.lost_name());
    EXPECT_FALSE(first.restore_name(folder_)) << "they are to meet in the file";
    MappedSegment second;
    ASSERT_EQ(open(second), Status::kOk);
    EXPECT_TRUE(second.cuttable());
}

TEST_F(SegmentMemoryTest, WithoutSuchMemoryTheFileIsTheSegment) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        if (unshare(CLONE_NEWIPC | CLONE_NEWNS) != 0) _exit(77);
        std::ofstream limit("/proc/sys/kernel/shmmni");
        limit << 0 << std::flush;
        if (!limit || shmget(IPC_PRIVATE, 4096, 0600) >= 0) _exit(77);
        MappedSegment segment;
        _exit(open(segment) == Status::kOk && segment.cuttable() ? 0 : 1);
    }
    const int code = exit_of(child);
    if (code == 77) GTEST_SKIP() << "this system's limits are not to be set here";
    EXPECT_EQ(code, 0);
    EXPECT_EQ(fs::file_size(file()), sizeof(Segment));
}

TEST_F(SegmentMemoryTest, MemoryOpenToOthersIsNotTrusted) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    shmid_ds info{};
    ASSERT_EQ(shmctl(locator().memory, IPC_STAT, &info), 0);
    EXPECT_EQ(info.shm_perm.mode & 0777, 0600);
    info.shm_perm.mode |= 0006;
    ASSERT_EQ(shmctl(locator().memory, IPC_SET, &info), 0);
    MappedSegment second;
    EXPECT_EQ(open(second), Status::kForeign);
    EXPECT_TRUE(first.is_named()) << "left as it is";
}

TEST_F(SegmentMemoryTest, AGroupsMemoryIsItsMembers) {
    fs::permissions(root_, fs::perms::owner_all | fs::perms::group_all);
    ASSERT_EQ(choose_folder(root_.c_str(), false, folder_), Status::kOk);
    ASSERT_TRUE(folder_.group_shared);
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    shmid_ds info{};
    ASSERT_EQ(shmctl(locator().memory, IPC_STAT, &info), 0);
    EXPECT_EQ(info.shm_perm.mode & 0777, 0660);
    EXPECT_EQ(info.shm_perm.gid, folder_.group);
}

// Its maker was killed before it could map it: the system would keep it for ever.
TEST_F(SegmentMemoryTest, MemoryThatNobodyEverMappedIsRemoved) {
    int ends[2];
    ASSERT_EQ(pipe(ends), 0);
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const int made = shmget(IPC_PRIVATE, sizeof(Segment), 0600);
        _exit(write(ends[1], &made, sizeof made) == sizeof made ? 0 : 1);
    }
    ASSERT_EQ(exit_of(child), 0);
    int of_the_dead = -1;
    ASSERT_EQ(read(ends[0], &of_the_dead, sizeof of_the_dead), sizeof of_the_dead);
    close(ends[0]);
    close(ends[1]);
    const int under_way = shmget(IPC_PRIVATE, sizeof(Segment), 0600);
    ASSERT_GE(of_the_dead, 0);
    ASSERT_GE(under_way, 0);
    MappedSegment segment;
    ASSERT_EQ(open(segment), Status::kOk);
    shmid_ds info{};
    EXPECT_NE(shmctl(of_the_dead, IPC_STAT, &info), 0);
    EXPECT_EQ(shmctl(under_way, IPC_STAT, &info), 0);
    EXPECT_EQ(shmctl(under_way, IPC_RMID, nullptr), 0);
}

}  // namespace
}  // namespace crossover
