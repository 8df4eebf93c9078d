// SPDX-License-Identifier: Apache-2.0
// Folders and files: every way in which a segment's file can be missing, half made, foreign or
// wrong has its status, and what is made has the right mode whatever the umask.
#include "arbiter/segment.hpp"

#include <fcntl.h>
#include <gtest/gtest.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mount.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>
#include <thread>

#include "arbiter/futex.hpp"
#include "arbiter/state.hpp"
#include "arbiter/transaction.hpp"

namespace crossover {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kMs = 1'000'000;

mode_t mode_of(const std::string& path) {
    struct stat info {};
    return stat(path.c_str(), &info) == 0 ? info.st_mode & 07777 : 0;
}

class SegmentTest : public testing::Test {
  protected:
    void SetUp() override {
        std::string pattern = testing::TempDir() + "crossover-segment-XXXXXX";
        ASSERT_NE(mkdtemp(pattern.data()), nullptr);
        root_ = pattern;
        for (std::uint8_t i = 0; i < 16; ++i) device_.bytes[i] = i;
    }
    void TearDown() override { fs::remove_all(root_); }

    Status open(MappedSegment& segment, std::uint64_t wait_ns = 50 * kMs) {
        Folder folder;
        const Status status = choose_folder(root_.c_str(), true, folder);
        if (status != Status::kOk) return status;
        folder.in_files = true;  // segment_memory_test.cpp has the others
        return open_or_create(folder, device_, monotonic_ns() + wait_ns, segment);
    }
    std::string file() const {
        return root_ + "/GPU-00010203-0405-0607-0809-0a0b0c0d0e0f.v" +
               std::to_string(kLayoutVersion);
    }
    void write_file(const std::string& content) {
        std::ofstream(file(), std::ios::binary) << content;
        chmod(file().c_str(), 0600);
    }
    // A good file's bytes, with `damage` done to them.
    template <class Damage>
    void write_damaged(Damage&& damage) {
        {
            MappedSegment segment;
            ASSERT_EQ(open(segment), Status::kOk);
        }
        std::ifstream in(file(), std::ios::binary);
        std::string bytes((std::istreambuf_iterator<char>(in)), {});
        damage(bytes);
        fs::remove(file());
        write_file(bytes);
    }

    std::string root_;
    DeviceUuid device_;
};

TEST_F(SegmentTest, IsMadeWholeAndFoundAgain) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    EXPECT_EQ(std::string(first.path()), file());
    EXPECT_TRUE(consistent(*first.get(), device_.bytes));
    EXPECT_TRUE(first.is_named());
    EXPECT_EQ(fs::file_size(file()), sizeof(Segment));
    struct stat info {};
    ASSERT_EQ(stat(file().c_str(), &info), 0);
    EXPECT_GE(static_cast<std::uint64_t>(info.st_blocks) * 512, sizeof(Segment))
        << "space is taken now, not at the first touch";
    EXPECT_EQ(info.st_nlink, 1U);

    first.get()->arbitration.turn_count = 77;
    MappedSegment second;
    ASSERT_EQ(open(second), Status::kOk);
    EXPECT_NE(second.get(), first.get());
    EXPECT_EQ(second.get()->arbitration.turn_count, 77U);
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 1) << "no temporary file left";
}

TEST_F(SegmentTest, ModesFollowTheFolderAndNotTheUmask) {
    struct Row {
        mode_t folder, file;
    };
    for (const Row row : {Row{0700, 0600}, Row{0750, 0640}, Row{0770, 0660}, Row{02770, 0660},
                          Row{03770, 0660}, Row{0755, 0640}, Row{01777, 0600}}) {
        for (const mode_t mask : {mode_t{0}, mode_t{0777}}) {
            SCOPED_TRACE(testing::Message() << std::oct << row.folder << " umask " << mask);
            ASSERT_EQ(chmod(root_.c_str(), row.folder), 0);
            const mode_t before = umask(mask);
            MappedSegment segment;
            EXPECT_EQ(open(segment), Status::kOk);
            EXPECT_EQ(umask(before), mask) << "the process's umask is its own";
            EXPECT_EQ(mode_of(file()), row.file);
            EXPECT_EQ(remove_name(segment), Status::kOk);
        }
    }
}

TEST_F(SegmentTest, MakesAMissingFolderForThisUserOnly) {
    const std::string folder_path = root_ + "/new";
    Folder folder;
    EXPECT_EQ(choose_folder(folder_path.c_str(), false, folder), Status::kNotFound);
    const mode_t before = umask(0777);
    EXPECT_EQ(choose_folder(folder_path.c_str(), true, folder), Status::kOk);
    umask(before);
    EXPECT_EQ(mode_of(folder_path), 0700U);
    EXPECT_FALSE(folder.group_shared);
    EXPECT_EQ(choose_folder((root_ + "/no/such").c_str(), true, folder), Status::kNotFound);
    EXPECT_STREQ(folder.path, (root_ + "/no/such").c_str()) << "for the message";
}

TEST_F(SegmentTest, PrivateFolderIsNamedAfterTheUser) {
    Folder folder;
    const Status status = choose_folder("", false, folder);
    EXPECT_TRUE(status == Status::kOk || status == Status::kNotFound) << status_text(status);
    const std::string name = "/crossover-" + std::to_string(geteuid());
    EXPECT_EQ(
        std::string(folder.path),
        (fs::is_directory("/dev/shm") ? "/dev/shm" : fs::path(folder.path).parent_path().string()) +
            name);
}

TEST_F(SegmentTest, RefusesFoldersThatOthersCanChange) {
    Folder folder;
    ASSERT_EQ(chmod(root_.c_str(), 0777), 0);
    EXPECT_EQ(choose_folder(root_.c_str(), true, folder), Status::kForeign);
    ASSERT_EQ(chmod(root_.c_str(), 0700), 0);
    const std::string link = root_ + "/link";
    fs::create_directory(root_ + "/real");
    fs::create_symlink(root_ + "/real", link);
    EXPECT_EQ(choose_folder(link.c_str(), true, folder), Status::kForeign);
    const std::string plain = root_ + "/plain";
    std::ofstream(plain) << "x";
    EXPECT_EQ(choose_folder(plain.c_str(), true, folder), Status::kForeign);
    EXPECT_EQ(choose_folder("relative", true, folder), Status::kSystem);
    EXPECT_EQ(choose_folder(("/" + std::string(400, 'x')).c_str(), true, folder), Status::kSystem);
}

TEST_F(SegmentTest, RefusesFilesThatAreNotAUsersOwn) {
    MappedSegment segment;
    fs::create_symlink(root_ + "/elsewhere", file());
    EXPECT_EQ(open(segment), Status::kForeign);
    fs::remove(file());
    fs::create_directory(file());
    EXPECT_EQ(open(segment), Status::kForeign);
    fs::remove(file());
    ASSERT_EQ(mkfifo(file().c_str(), 0600), 0);
    EXPECT_EQ(open(segment), Status::kForeign) << "and does not wait for a writer";
    fs::remove(file());
    ASSERT_EQ(open(segment), Status::kOk);
    ASSERT_EQ(chmod(file().c_str(), 0602), 0);
    EXPECT_EQ(open(segment), Status::kForeign);
    ASSERT_EQ(chmod(file().c_str(), 0620), 0);
    EXPECT_EQ(open(segment), Status::kForeign) << "group-writable in a private folder";
    ASSERT_EQ(chmod(root_.c_str(), 0770), 0);
    EXPECT_EQ(open(segment), Status::kOk) << "the group's in the group's";
}

TEST_F(SegmentTest, RefusesAnotherUsersFileUnlessTheFolderIsTheirGroups) {
    if (geteuid() != 0) GTEST_SKIP() << "giving files away needs root";
    MappedSegment segment;
    ASSERT_EQ(open(segment), Status::kOk);
    constexpr uid_t kSomebody = 12345;
    ASSERT_EQ(chown(file().c_str(), kSomebody, 54321), 0);
    EXPECT_EQ(open(segment), Status::kForeign);
    ASSERT_EQ(chmod(root_.c_str(), 0770), 0);
    EXPECT_EQ(open(segment), Status::kForeign) << "of another group";
    struct stat info {};
    ASSERT_EQ(stat(root_.c_str(), &info), 0);
    ASSERT_EQ(chown(file().c_str(), kSomebody, info.st_gid), 0);
    EXPECT_EQ(open(segment), Status::kOk);
    // A segment made in a group's folder is the group's even without setgid.
    fs::remove(file());
    ASSERT_EQ(chown(root_.c_str(), 0, 54321), 0);
    ASSERT_EQ(open(segment), Status::kOk);
    ASSERT_EQ(stat(file().c_str(), &info), 0);
    EXPECT_EQ(info.st_gid, 54321U);
}

TEST_F(SegmentTest, ToldApartByContent) {
    MappedSegment segment;
    write_file("");
    EXPECT_EQ(open(segment), Status::kCorrupt);
    write_file("short");
    EXPECT_EQ(open(segment), Status::kCorrupt);
    write_file(std::string(sizeof(Segment), '\xA5'));
    EXPECT_EQ(open(segment), Status::kCorrupt);
    fs::remove(file());
    write_damaged([](std::string& bytes) { bytes.resize(bytes.size() - 1); });
    EXPECT_EQ(open(segment), Status::kCorrupt) << "truncated";
    fs::remove(file());
    write_damaged([](std::string& bytes) { bytes.resize(bytes.size() + 4096); });
    EXPECT_EQ(open(segment), Status::kCorrupt) << "too long";
    fs::remove(file());
    write_damaged([](std::string& bytes) { bytes[offsetof(Header, version)] = 99; });
    EXPECT_EQ(open(segment), Status::kWrongVersion);
    EXPECT_FALSE(segment);
}

TEST_F(SegmentTest, RandomContentIsCorruptOrAtLeastHarmless) {
    std::mt19937 random(3);
    for (int trial = 0; trial < 50; ++trial) {
        std::string bytes(random() % (2 * sizeof(Segment)), '\0');
        for (char& byte : bytes) byte = static_cast<char>(random());
        fs::remove(file());
        write_file(bytes);
        MappedSegment segment;
        EXPECT_EQ(open(segment, kMs), Status::kCorrupt);
    }
}

// A file gets its name when it is complete: one that looks half made is damaged.
TEST_F(SegmentTest, HalfMadeIsDamaged) {
    MappedSegment segment;
    write_file(std::string(sizeof(Segment), '\0'));
    EXPECT_EQ(open(segment), Status::kCorrupt);
    fs::remove(file());
    write_damaged([](std::string& bytes) { bytes[offsetof(Header, version)] = 0; });
    EXPECT_EQ(open(segment), Status::kCorrupt);
}

TEST_F(SegmentTest, ADamagedFileCanBeRemovedByWhoFoundIt) {
    MappedSegment segment;
    for (const std::size_t size : {std::size_t{3}, sizeof(Segment) + 7}) {
        write_file(std::string(size, 'x'));
        ASSERT_EQ(open(segment), Status::kCorrupt);
        EXPECT_EQ(segment.get() != nullptr, size > sizeof(Segment)) << "mapped if long enough";
        EXPECT_TRUE(segment.is_named());
        EXPECT_EQ(remove_name(segment), Status::kOk);
        EXPECT_FALSE(fs::exists(file()));
    }
}

// Whoever is removing the name holds the file's lock; nobody else removes it meanwhile.
TEST_F(SegmentTest, ARemovalUnderWayIsNotDoubled) {
    MappedSegment segment;
    ASSERT_EQ(open(segment), Status::kOk);
    const int held = ::open(file().c_str(), O_RDONLY | O_CLOEXEC);
    ASSERT_GE(held, 0);
    ASSERT_EQ(flock(held, LOCK_EX), 0);
    EXPECT_EQ(remove_name(segment), Status::kNotReady);
    EXPECT_TRUE(segment.is_named());
    close(held);
    EXPECT_EQ(remove_name(segment), Status::kOk);
    EXPECT_FALSE(segment.is_named());
}

TEST_F(SegmentTest, TurnsOfALaterSegmentHaveLaterNumbers) {
    std::uint64_t last = 0;
    for (int i = 0; i < 3; ++i) {
        MappedSegment segment;
        ASSERT_EQ(open(segment), Status::kOk);
        const std::uint64_t word = segment.get()->arbitration.turn.word;
        EXPECT_EQ(word & kTurnJobMask, 0U);
        EXPECT_GT(word, last);
        last = word;
        EXPECT_EQ(remove_name(segment), Status::kOk);
    }
}

// What the file's memory becomes once it is gone.
TEST_F(SegmentTest, ACutFileIsNoticedWithoutTouchingItAndCanBeBlanked) {
    MappedSegment segment;
    ASSERT_EQ(open(segment), Status::kOk);
    EXPECT_TRUE(whole(*segment.get()));
    for (const std::size_t size : {sizeof(Segment) - 4096, sizeof(Segment) / 2, std::size_t{0}}) {
        ASSERT_EQ(truncate(file().c_str(), static_cast<off_t>(size)), 0);
        EXPECT_FALSE(whole(*segment.get())) << size;
    }
    MappedSegment reader;
    EXPECT_EQ(open(reader), Status::kCorrupt);
    segment.blank();
    EXPECT_TRUE(whole(*segment.get()));
    EXPECT_EQ(segment.get()->header.magic, 0U);
    segment.get()->header.magic = 1;
    EXPECT_EQ(fs::file_size(file()), 0U) << "no longer the file's";
}

TEST_F(SegmentTest, AFileOfAnEarlierRunOfTheMachineIsReplaced) {
    MappedSegment before;
    ASSERT_EQ(open(before), Status::kOk);
    if (before.get()->header.boot == 0) GTEST_SKIP() << "this system has no boot identity";
    before.get()->arbitration.turn_count = 5;
    before.get()->header.boot ^= 1;
    MappedSegment after;
    ASSERT_EQ(open(after), Status::kOk);
    EXPECT_EQ(after.get()->arbitration.turn_count, 0U);
    EXPECT_FALSE(before.is_named());
    EXPECT_TRUE(after.is_named());
}

TEST_F(SegmentTest, OnlyItsOwnNameIsRemoved) {
    MappedSegment first;
    ASSERT_EQ(open(first), Status::kOk);
    fs::remove(file());
    MappedSegment second;
    ASSERT_EQ(open(second), Status::kOk);
    EXPECT_EQ(remove_name(first), Status::kOk);
    EXPECT_TRUE(second.is_named()) << "somebody else's by now";
    EXPECT_EQ(remove_name(second), Status::kOk);
    EXPECT_FALSE(fs::exists(file()));
}

TEST_F(SegmentTest, ToolsReadOnly) {
    MappedSegment writer;
    ASSERT_EQ(open(writer), Status::kOk);
    Folder folder;
    ASSERT_EQ(choose_folder(root_.c_str(), false, folder), Status::kOk);
    std::ofstream(root_ + "/notes.txt") << "not a segment";
    std::ofstream(root_ + "/GPU-00010203-0405-0607-0809-0a0b0c0d0e0f.v1") << "another layout";
    std::ofstream(root_ + "/GPU-00010203.v3") << "no uuid";
    const std::vector<SegmentFile> files = list_segments(folder);
    ASSERT_EQ(files.size(), 1U);
    EXPECT_EQ(files[0].path, file());
    EXPECT_EQ(std::memcmp(files[0].device.bytes, device_.bytes, 16), 0);
    MappedSegment reader;
    ASSERT_EQ(open_read_only(folder, files[0].path.c_str(), reader), Status::kOk);
    EXPECT_EQ(reader.get(), nullptr) << "nothing to write through";
    writer.get()->arbitration.turn_count = 9;
    EXPECT_EQ(reader.view()->arbitration.turn_count, 9U);
    EXPECT_EQ(open_read_only(folder, (root_ + "/none.v3").c_str(), reader), Status::kNotFound);
    EXPECT_EQ(reader.view(), nullptr);
}

TEST_F(SegmentTest, LeftOversOfKilledMakersGoAway) {
    // By the time in the name, of a clock that nobody can set.
    const std::uint64_t now_ns = monotonic_ns();
    ASSERT_GT(now_ns, 120'000 * kMs) << "the machine has just started";
    const auto named = [&](std::uint64_t ns) {
        std::string name = file() + ".1." + std::to_string(ns) + ".3.tmp";
        std::ofstream(name) << "x";
        return name;
    };
    const std::string old_one = named(now_ns - 61'000 * kMs);
    const std::string of_an_earlier_boot = named(now_ns + 3'600'000 * kMs);
    const std::string fresh_one = named(now_ns - 1'000 * kMs);
    fs::last_write_time(fresh_one, fs::file_time_type::clock::now() - std::chrono::hours(1));
    MappedSegment segment;
    ASSERT_EQ(open(segment), Status::kOk);
    EXPECT_FALSE(fs::exists(old_one));
    EXPECT_FALSE(fs::exists(of_an_earlier_boot));
    EXPECT_TRUE(fs::exists(fresh_one))
        << "may still be in the making, whatever the clock on the wall";
}

TEST_F(SegmentTest, AFileSizeLimitIsAnErrorNotASignal) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) {
        const rlimit limit{4096, 4096};
        setrlimit(RLIMIT_FSIZE, &limit);
        MappedSegment segment;
        _exit(open(segment) == Status::kNoSpace ? 0 : 1);
    }
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    EXPECT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << status;
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 0) << "nothing left behind";
}

TEST_F(SegmentTest, AFullFileSystemIsAnErrorNotASignal) {
    if (mount("none", root_.c_str(), "tmpfs", 0, "size=64k,mode=0700") != 0) {
        GTEST_SKIP() << "mounting a small file system is not permitted here: " << strerror(errno);
    }
    MappedSegment segment;
    EXPECT_EQ(open(segment), Status::kNoSpace);
    EXPECT_EQ(std::distance(fs::directory_iterator(root_), {}), 0) << "nothing left behind";
    if (mount("none", root_.c_str(), "tmpfs", MS_REMOUNT | MS_RDONLY, "size=64k") == 0) {
        EXPECT_EQ(open(segment), Status::kAccess) << "read-only";
    }
    EXPECT_EQ(umount(root_.c_str()), 0);
}

TEST(UuidText, GoesBothWays) {
    DeviceUuid device;
    for (std::uint8_t i = 0; i < 16; ++i) device.bytes[i] = static_cast<std::uint8_t>(0xF0 + i);
    char text[kUuidTextBytes];
    format_uuid(device, text);
    EXPECT_STREQ(text, "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff");
    DeviceUuid parsed;
    EXPECT_TRUE(parse_uuid(text, parsed));
    EXPECT_EQ(std::memcmp(parsed.bytes, device.bytes, 16), 0);
    EXPECT_TRUE(parse_uuid("F0F1F2F3-F4F5-F6F7-F8F9-FAFBFCFDFEFF", parsed));
    for (const char* bad :
         {"", "GPU-", "GPU-f0", "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfef",
          "GPU-f0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff0", "GPU-f0f1f2f3xf4f5-f6f7-f8f9-fafbfcfdfeff",
          "GPU-g0f1f2f3-f4f5-f6f7-f8f9-fafbfcfdfeff"}) {
        EXPECT_FALSE(parse_uuid(bad, parsed)) << bad;
    }
}

}  // namespace
}  // namespace crossover
