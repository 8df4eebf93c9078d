// SPDX-License-Identifier: Apache-2.0
// Clients of different users: whom a folder lets meet, and what is refused as what. Most of it
// needs root, to become two users; skips without.
#include <sys/stat.h>

#include <vector>

#include "tests/places/containers.hpp"

namespace crossover {
namespace {

constexpr uid_t kOne = 12345;
constexpr uid_t kTwo = 12346;
constexpr gid_t kShared = 22345;

class UsersTest : public ProcessTest {
  protected:
    struct Block {
        std::atomic<int> inside{0}, overlaps{0}, attached{0}, seen{0}, step{0};
        std::atomic<int> turns[2]{};
    };

    void SetUp() override {
        ProcessTest::SetUp();
        if (geteuid() != 0) GTEST_SKIP() << "needs root, to become two users";
        // Others must be able to reach what is in it.
        ASSERT_EQ(chmod(root_.c_str(), 0711), 0);
        top_ = root_;
    }
    void TearDown() override {
        if (!top_.empty()) root_ = top_;
        ProcessTest::TearDown();
    }

    // The folder of the segments: its owner, group and mode.
    void make_folder(uid_t owner, gid_t group, mode_t mode) {
        root_ = top_ + "/shared";
        ASSERT_EQ(mkdir(root_.c_str(), 0700), 0);
        ASSERT_EQ(chown(root_.c_str(), owner, group), 0);
        ASSERT_EQ(chmod(root_.c_str(), mode), 0);
    }

    // What attaching ends in, in a process of its own that `becomes` somebody.
    Status status_of(const std::function<void()>& becomes) const {
        const int status = Process([&] {
                               becomes();
                               Status found = Status::kOk;
                               const auto client = attach(10, 0, found);
                               _exit(static_cast<int>(found));
                           }).wait();
        EXPECT_TRUE(WIFEXITED(status)) << status;
        return static_cast<Status>(WEXITSTATUS(status));
    }

    // 100 turns beside the other one of two.
    void take_turns(std::uint64_t job, int place, Block& block) const {
        auto client = must_attach(job);
        ++block.attached;
        CX_CHILD_CHECK(eventually([&] { return block.attached == 2; }));
        while (block.turns[0] < 100 || block.turns[1] < 100) {
            CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
            if (block.inside.fetch_add(1) != 0) ++block.overlaps;
            ++block.turns[place];
            std::this_thread::sleep_for(std::chrono::microseconds(100));
            block.inside.fetch_sub(1);
            client->release();
        }
    }

    void expect_to_meet(const std::function<void()>& one, const std::function<void()>& two) const {
        Shared<Block> block;
        Process first([&] {
            one();
            take_turns(10, 0, *block);
        });
        Process second([&] {
            two();
            take_turns(20, 1, *block);
        });
        first.expect_success();
        second.expect_success();
        EXPECT_EQ(block->overlaps, 0);
        EXPECT_FALSE(file_exists());
    }

    std::string top_;
};

// In mounts of its own: an empty /dev/shm.
void with_fresh_shared_memory() {
    if (!enter_mount_namespace() ||
        mount("none", "/dev/shm", "tmpfs", MS_NOSUID | MS_NODEV, "mode=1777,size=16m") != 0) {
        _exit(kNotPermitted);
    }
}

TEST_F(UsersTest, InPrivateDefaultFoldersNeverMeet) {
    const int status =
        Process([&] {
            with_fresh_shared_memory();
            root_.clear();  // CROSSOVER_DIR is not set
            Shared<Block> block;
            std::vector<std::unique_ptr<Process>> users;
            for (const uid_t user : {kOne, kTwo}) {
                users.push_back(std::make_unique<Process>([&, user] {
                    become(user);
                    auto client = must_attach(user);
                    ++block->attached;
                    CX_CHILD_CHECK(eventually([&] { return block->attached == 2; }));
                    CX_CHILD_CHECK(!client->contended());
                    CX_CHILD_CHECK(client->acquire(0) == Wait::kGranted);
                    struct stat info {};
                    const std::string own = "/dev/shm/crossover-" + std::to_string(user);
                    CX_CHILD_CHECK(stat(own.c_str(), &info) == 0);
                    CX_CHILD_CHECK(info.st_uid == user && (info.st_mode & 0777) == 0700);
                    ++block->seen;
                    CX_CHILD_CHECK(eventually([&] { return block->seen == 2; }));
                }));
            }
            for (auto& user : users) CX_CHILD_CHECK(user->wait() == 0);
        }).wait();
    if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "mounts are not permitted here";
    EXPECT_EQ(status, 0);
}

TEST_F(UsersTest, ADefaultFolderThatSomebodyElseMadeIsRefused) {
    const int status =
        Process([&] {
            with_fresh_shared_memory();
            root_.clear();
            const std::string theirs = "/dev/shm/crossover-" + std::to_string(kTwo);
            CX_CHILD_CHECK(mkdir(theirs.c_str(), 0700) == 0);
            CX_CHILD_CHECK(chown(theirs.c_str(), kOne, kOne) == 0);
            // However open it is.
            for (const mode_t mode : {0700, 0755, 0777}) {
                CX_CHILD_CHECK(chmod(theirs.c_str(), mode) == 0);
                CX_CHILD_CHECK(status_of([] { become(kTwo); }) == Status::kForeign);
            }
            CX_CHILD_CHECK(std::filesystem::is_empty(theirs));
            // A link to the user's own folder is somebody else's word, too.
            const std::string own = "/dev/shm/own";
            CX_CHILD_CHECK(rmdir(theirs.c_str()) == 0 && mkdir(own.c_str(), 0700) == 0);
            CX_CHILD_CHECK(chown(own.c_str(), kTwo, kTwo) == 0);
            CX_CHILD_CHECK(symlink(own.c_str(), theirs.c_str()) == 0);
            CX_CHILD_CHECK(status_of([] { become(kTwo); }) == Status::kForeign);
            CX_CHILD_CHECK(std::filesystem::is_empty(own));
        }).wait();
    if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "mounts are not permitted here";
    EXPECT_EQ(status, 0);
}

// Of a group's folder: whether new files get its group by themselves.
class GroupFolderTest : public UsersTest, public testing::WithParamInterface<mode_t> {};

TEST_P(GroupFolderTest, LetsItsMembersMeet) {
    make_folder(0, kShared, GetParam());
    for (const mode_t mask : {0022, 0077}) {
        expect_to_meet(
            [&] {
                umask(mask);
                become(kOne, {kShared});
            },
            [&] {
                umask(mask);
                become(kTwo, {kShared});
            });
    }
}

TEST_P(GroupFolderTest, GivesItsFilesToTheGroupAndRefusesOthers) {
    make_folder(0, kShared, GetParam());
    Shared<Block> block;
    Process member([&] {
        umask(0077);
        become(kOne, {kShared});
        auto client = must_attach(10);
        block->attached = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    struct stat info {};
    ASSERT_EQ(stat(file().c_str(), &info), 0);
    EXPECT_EQ(info.st_uid, kOne);
    EXPECT_EQ(info.st_gid, kShared);
    EXPECT_EQ(info.st_mode & 07777, 0660U);
    EXPECT_EQ(status_of([] { become(kTwo, {}); }), Status::kAccess);
    member.kill_now();
    // A member's file of another group is nobody's business.
    ASSERT_EQ(chown(file().c_str(), kOne, kOne), 0);
    ASSERT_EQ(chmod(file().c_str(), 0664), 0);
    EXPECT_NE(status_of([] { become(kTwo, {kShared}); }), Status::kOk);
    // Neither is one that everybody may write.
    ASSERT_EQ(chown(file().c_str(), kOne, kShared), 0);
    ASSERT_EQ(chmod(file().c_str(), 0666), 0);
    EXPECT_EQ(status_of([] { become(kTwo, {kShared}); }), Status::kForeign);
}

INSTANTIATE_TEST_SUITE_P(All, GroupFolderTest, testing::Values(0770, 02770),
                         [](const auto& row) { return row.param == 0770 ? "plain" : "setgid"; });

TEST_F(UsersTest, InAFolderOfEverybodyOnlyTheOwnFileIsTrusted) {
    make_folder(0, 0, 01777);
    Shared<Block> block;
    Process first([&] {
        become(kOne);
        auto client = must_attach(10);
        block->attached = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    struct stat info {};
    ASSERT_EQ(stat(file().c_str(), &info), 0);
    EXPECT_EQ(info.st_mode & 07777, 0600U);
    EXPECT_EQ(status_of([] { become(kTwo); }), Status::kAccess);
    EXPECT_EQ(status_of([] {}), Status::kForeign) << "root, who could open it";
    // However much the other opens it.
    for (const mode_t mode : {0660, 0644, 0666}) {
        ASSERT_EQ(chmod(file().c_str(), mode), 0);
        const Status status = status_of([] { become(kTwo); });
        EXPECT_TRUE(status == Status::kForeign || status == Status::kAccess) << mode;
    }
    EXPECT_EQ(status_of([] { become(kTwo); }), Status::kForeign) << "0666";
    // Its own user meets it.
    ASSERT_EQ(chmod(file().c_str(), 0600), 0);
    EXPECT_EQ(status_of([] { become(kOne); }), Status::kOk);
}

TEST_F(UsersTest, InAFolderOpenToEverybodyNobodyIsTrusted) {
    make_folder(kOne, kOne, 0777);
    EXPECT_EQ(status_of([] { become(kOne); }), Status::kForeign);
    EXPECT_EQ(status_of([] { become(kTwo); }), Status::kForeign);
    EXPECT_TRUE(std::filesystem::is_empty(root_));
}

TEST_F(UsersTest, AFolderOfSomebodyElseIsRefused) {
    make_folder(kOne, kOne, 0700);
    EXPECT_EQ(status_of([] { become(kTwo); }), Status::kAccess);
    ASSERT_EQ(chmod(root_.c_str(), 0755), 0);
    EXPECT_EQ(status_of([] { become(kTwo); }), Status::kAccess);
    EXPECT_TRUE(std::filesystem::is_empty(root_));
}

// ------------------------------------------------------------------------------------------------
// user namespaces: root there is the user outside

class UserNamespaceTest : public UsersTest {
  protected:
    void SetUp() override {
        UsersTest::SetUp();
        if (IsSkipped()) return;
        const int status = status_of_child([] {
            become(kOne);
            _exit(enter_user_namespace() ? 0 : kNotPermitted);
        });
        if (status != 0) GTEST_SKIP() << "user namespaces are not permitted here";
    }
    static void become_root_of(uid_t user) {
        become(user);
        CX_CHILD_CHECK(enter_user_namespace() && geteuid() == 0);
    }
};

TEST_F(UserNamespaceTest, ItsRootMeetsTheUserOutside) {
    make_folder(kOne, kOne, 0700);
    expect_to_meet([] { become(kOne); }, [] { become_root_of(kOne); });
    expect_to_meet([] { become_root_of(kOne); }, [] { become_root_of(kOne); });
}

TEST_F(UserNamespaceTest, ItsRootTrustsNoForeignFile) {
    make_folder(0, 0, 01777);
    Shared<Block> block;
    Process other([&] {
        become(kTwo);
        auto client = must_attach(10);
        block->attached = 1;
        for (;;) pause();
    });
    ASSERT_TRUE(eventually([&] { return block->attached == 1; }));
    EXPECT_EQ(status_of([] { become_root_of(kOne); }), Status::kAccess);
    // Open to it, yet owned by a user that has no number there.
    ASSERT_EQ(chmod(file().c_str(), 0666), 0);
    EXPECT_EQ(status_of([] { become_root_of(kOne); }), Status::kForeign);
}

TEST_F(UserNamespaceTest, ItsRootIsNotRootOutside) {
    // In the default folder both would be user 0.
    const int status =
        Process([&] {
            with_fresh_shared_memory();
            root_.clear();
            Shared<Block> block;
            Process outside([&] {
                auto client = must_attach(10);
                block->attached = 1;
                for (;;) pause();
            });
            CX_CHILD_CHECK(eventually([&] { return block->attached == 1; }));
            CX_CHILD_CHECK(status_of([] { become_root_of(kOne); }) == Status::kForeign);
        }).wait();
    if (WEXITSTATUS(status) == kNotPermitted) GTEST_SKIP() << "mounts are not permitted here";
    EXPECT_EQ(status, 0);
}

}  // namespace
}  // namespace crossover
