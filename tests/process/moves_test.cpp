// SPDX-License-Identifier: Apache-2.0
// A segment goes bad under its running clients: overwritten, cut short, or its lock with a stopped
// process. Nobody dies, hangs or holds beside another; all meet again in a new segment.
#include <fcntl.h>
#include <sys/stat.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <functional>
#include <random>
#include <vector>

#include "arbiter/transaction.hpp"
#include "tests/process/processes.hpp"

namespace crossover {
namespace {

constexpr int kRunners = 3;

struct Block {
    struct Runner {
        std::atomic<std::uint64_t> turns{0}, joined{0}, active{0}, inode{0};
        std::atomic<bool> ready{false};
    };
    Runner runners[kRunners];
    std::atomic<std::uint32_t> holder{0};
    std::atomic<int> overlaps{0}, stop{0};
    std::atomic<int> rest{0}, resting{0};  // who has the turn is to keep it; and does, in this call
};

class MovesTest : public ProcessTest {
  protected:
    // Takes turns until told to stop, with a watcher as the library has one.
    void run(Block& block, int me, std::uint64_t rejoin_ns) const {
        Block::Runner& own = block.runners[me];
        std::atomic<Client*> shared{nullptr};
        std::atomic<bool> ended{false};
        std::thread watcher([&] {
            std::unique_ptr<Client> client = must_attach(static_cast<std::uint64_t>(10 + me));
            client->set_periods(0, rejoin_ns, rejoin_ns);
            shared = client.get();
            std::uint32_t seen = client->notice();
            while (!ended) {
                seen = client->sleep(seen, monotonic_ns() + 10'000 * kMs);
                own.joined = client->joined();
            }
        });
        CX_CHILD_CHECK(eventually([&] { return shared != nullptr; }));
        Client& client = *shared;
        own.joined = client.joined();
        own.ready = true;
        const std::uint32_t name = static_cast<std::uint32_t>(me) + 1;
        while (block.stop == 0) {
            const Wait result = client.acquire(in_long());
            CX_CHILD_CHECK(result == Wait::kGranted || result == Wait::kFault);
            if (result == Wait::kFault) {
                std::this_thread::sleep_for(std::chrono::milliseconds(1));
                continue;
            }
            if (client.holding()) {
                std::uint32_t nobody = 0;
                if (!block.holder.compare_exchange_strong(nobody, name)) ++block.overlaps;
                for (int i = 0; i < 200; ++i) {
                    if (client.holding() && block.holder != name) ++block.overlaps;
                }
                while (block.rest == 1) {
                    block.resting = getpid();
                    client.holding();  // what a launch looks at
                    std::this_thread::yield();
                }
                std::uint32_t mine = name;
                block.holder.compare_exchange_strong(mine, 0);
                ++own.turns;
                own.active = client.turn().active_jobs;
            }
            client.release();
            client.set_phase(ClientPhase::kIdle, 1);
            client.record(EventKind::kIdle, 1, 1);
        }
        ended = true;
        client.wake();
        watcher.join();
    }

    void start(Block& block, std::uint64_t rejoin_ns) {
        for (int me = 0; me < kRunners; ++me) {
            runners_.push_back(std::make_unique<Process>(
                [&block, this, me, rejoin_ns] { run(block, me, rejoin_ns); }));
        }
        ASSERT_TRUE(eventually([&] { return all_take_turns(block); }));
    }

    // Each runner has had turns since this call began, with all of them attached to one segment.
    static bool all_take_turns(Block& block) {
        std::uint64_t before[kRunners];
        for (int me = 0; me < kRunners; ++me) before[me] = block.runners[me].turns;
        const std::uint64_t until = monotonic_ns() + 2'000 * kMs;
        while (monotonic_ns() < until) {
            bool all = true;
            for (int me = 0; me < kRunners; ++me) {
                const Block::Runner& runner = block.runners[me];
                all = all && runner.turns > before[me] + 3 && runner.active == kRunners;
            }
            if (all) return true;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        }
        return false;
    }

    void finish(Block& block) {
        block.stop = 1;
        for (auto& runner : runners_) runner->expect_success();
        EXPECT_EQ(block.overlaps, 0);
        EXPECT_FALSE(file_exists()) << "the last one removed it";
        runners_.clear();
    }

    std::vector<std::unique_ptr<Process>> runners_;
};

// Where the segment is the file itself.
class FileMovesTest : public MovesTest {
  protected:
    FileMovesTest() { in_files_ = true; }
};

// What is written over the file while its clients run.
struct Damage {
    const char* name;
    std::size_t offset, bytes;
    int fill;  // -1: random
};

class DamageTest : public FileMovesTest, public testing::WithParamInterface<Damage> {};

TEST_P(DamageTest, AllMoveToANewSegment) {
    const Damage& damage = GetParam();
    Shared<Block> block;
    start(*block, 50 * kMs);
    std::mt19937 random(1);
    for (int round = 0; round < 3; ++round) {
        std::vector<char> bytes(damage.bytes, static_cast<char>(damage.fill));
        if (damage.fill < 0) {
            for (char& byte : bytes) byte = static_cast<char>(random());
        }
        const int descriptor = open(file().c_str(), O_WRONLY | O_CLOEXEC);
        ASSERT_GE(descriptor, 0);
        struct stat before {};
        ASSERT_EQ(fstat(descriptor, &before), 0);
        ASSERT_EQ(pwrite(descriptor, bytes.data(), bytes.size(), static_cast<off_t>(damage.offset)),
                  static_cast<ssize_t>(bytes.size()));
        close(descriptor);
        ASSERT_TRUE(eventually([&] { return all_take_turns(*block); })) << "round " << round;
        struct stat after {};
        ASSERT_EQ(stat(file().c_str(), &after), 0);
        EXPECT_NE(before.st_ino, after.st_ino) << "round " << round << ": not noticed";
    }
    for (const Block::Runner& runner : block->runners) EXPECT_GE(runner.joined, 4U);
    finish(*block);
}

INSTANTIATE_TEST_SUITE_P(Damages, DamageTest,
                         testing::Values(Damage{"everything_random", 0, sizeof(Segment), -1},
                                         Damage{"everything_zero", 0, sizeof(Segment), 0},
                                         Damage{"everything_ones", 0, sizeof(Segment), 0xFF},
                                         Damage{"header", 0, sizeof(Header), -1},
                                         Damage{"lock", offsetof(Segment, arbitration), 64, -1},
                                         Damage{"clients_zero", offsetof(Segment, clients),
                                                sizeof(ClientSlot) * kMaxClients, 0},
                                         Damage{"clients_random", offsetof(Segment, clients),
                                                sizeof(ClientSlot) * kMaxClients, -1}),
                         [](const testing::TestParamInfo<Damage>& row) { return row.param.name; });

// Cut while nobody is inside a transition (README, limits): one has the turn and launches, the
// others sleep in acquire(), all watchers sleep.
class CutTest : public FileMovesTest, public testing::WithParamInterface<std::size_t> {
  protected:
    static bool sleeps(const std::string& task) {
        std::ifstream in(task + "/stat");
        const std::string text(std::istreambuf_iterator<char>(in), {});
        const std::size_t name_end = text.rfind(')');
        return name_end != std::string::npos && text.size() > name_end + 2 &&
               text[name_end + 2] == 'S';
    }
    bool all_rest(Block& block) const {
        const int holder = block.resting;
        if (holder == 0) return false;
        for (const auto& runner : runners_) {
            const std::string tasks = "/proc/" + std::to_string(runner->pid()) + "/task/";
            for (const auto& task : std::filesystem::directory_iterator(tasks)) {
                const bool worker = task.path().filename() == std::to_string(holder);
                if (!worker && !sleeps(task.path())) return false;
            }
        }
        const MappedSegment segment = view();
        return segment && segment.view()->arbitration.turn.waiting_jobs == kRunners - 1;
    }
};

TEST_P(CutTest, NobodyIsKilledAndAllMove) {
    Shared<Block> block;
    start(*block, 20 * kMs);
    constexpr int kRounds = 15;
    for (int round = 0; round < kRounds; ++round) {
        block->resting = 0;
        block->rest = 1;
        ASSERT_TRUE(eventually([&] { return all_rest(*block); }));
        // Nobody wakes up between these two looks and the cut but by its clock, once in 500 ms.
        ASSERT_TRUE(eventually([&] { return all_rest(*block); }));
        ASSERT_EQ(truncate(file().c_str(), static_cast<off_t>(GetParam())), 0);
        block->rest = 0;
        ASSERT_TRUE(eventually([&] { return all_take_turns(*block); })) << "round " << round;
    }
    for (const Block::Runner& runner : block->runners) EXPECT_GT(runner.joined, 1U * kRounds);
    finish(*block);
}

INSTANTIATE_TEST_SUITE_P(Lengths, CutTest,
                         testing::Values(0, sizeof(Segment) / 2, sizeof(Segment) - 4096));

TEST_F(FileMovesTest, ARemovedFileIsMissedAndNobodyStaysApartFromWhoComesLater) {
    Shared<Block> block;
    start(*block, 50 * kMs);
    for (const bool replaced : {false, true}) {
        ASSERT_EQ(unlink(file().c_str()), 0);
        if (replaced) {
            // Somebody comes before it is missed, and makes a new one.
            const std::unique_ptr<Client> newcomer = must_attach(60);
            ASSERT_TRUE(file_exists());
        }
        ASSERT_TRUE(eventually([&] { return all_take_turns(*block) && file_exists(); }));
    }
    for (const Block::Runner& runner : block->runners) EXPECT_GE(runner.joined, 3U);
    finish(*block);
}

// Where the file only leads to the segment, nothing that is done to it can touch who runs.
TEST_F(MovesTest, NothingDoneToTheNameTouchesWhoRunsAndItIsPutBack) {
    Shared<Block> block;
    start(*block, 50 * kMs);
    std::mt19937 random(3);
    const auto overwrite = [&](std::size_t bytes) {
        const int descriptor = open(file().c_str(), O_WRONLY | O_CLOEXEC);
        ASSERT_GE(descriptor, 0);
        std::vector<char> content(bytes);
        for (char& byte : content) byte = static_cast<char>(random());
        EXPECT_EQ(write(descriptor, content.data(), bytes), static_cast<ssize_t>(bytes));
        close(descriptor);
    };
    const std::function<void()> attacks[] = {
        [&] { EXPECT_EQ(unlink(file().c_str()), 0); },
        [&] { EXPECT_EQ(truncate(file().c_str(), 0), 0); },
        [&] { EXPECT_EQ(truncate(file().c_str(), sizeof(Locator) / 2), 0); },
        [&] { EXPECT_EQ(truncate(file().c_str(), sizeof(Segment)), 0); },
        [&] { overwrite(sizeof(Locator)); },
        [&] { overwrite(sizeof(Segment)); },
    };
    for (std::size_t i = 0; i < 2 * std::size(attacks); ++i) {
        SCOPED_TRACE(i);
        ASSERT_TRUE(file_exists());
        attacks[i / 2]();
        if (i % 2 != 0) {
            // Somebody comes before it is missed, and meets them all the same.
            Process newcomer([&] {
                const std::unique_ptr<Client> client = must_attach(60);
                CX_CHILD_CHECK(client->turn().active_jobs == kRunners + 1);
            });
            newcomer.expect_success();
        }
        const auto named = [&] {
            Folder folder;
            MappedSegment segment;
            return choose_folder(root_.c_str(), false, folder) == Status::kOk &&
                   open_read_only(folder, file().c_str(), segment) == Status::kOk;
        };
        ASSERT_TRUE(eventually(named));
        ASSERT_TRUE(eventually([&] { return all_take_turns(*block); }));
    }
    for (const Block::Runner& runner : block->runners) EXPECT_EQ(runner.joined, 1U);
    finish(*block);
}

TEST_F(MovesTest, AProcessStoppedInsideTheLockIsLeftBehindAndJoinsLater) {
    Shared<Block> block;
    start(*block, 50 * kMs);
    struct Stopped {
        std::atomic<int> joined{0}, release{0};
    };
    Shared<Stopped> shared;
    Process stopped([&] {
        auto own = must_attach(50);
        own->set_periods(0, 50 * kMs, 50 * kMs);
        {
            // The lock is held by a stopped process: only a debugger or bad luck does this.
            Transaction transaction(const_cast<Segment&>(own->segment()));
            CX_CHILD_CHECK(transaction.status() == Status::kOk);
            raise(SIGSTOP);
            // It grants itself the turn of the old segment, and must not believe it.
            request(transaction.segment(), own->slot(), monotonic_ns(), transaction.wakes());
            CX_CHILD_CHECK(transaction.finish() == Status::kGivenUp);
        }
        CX_CHILD_CHECK(own->acquire(in_long()) == Wait::kFault);
        CX_CHILD_CHECK(!own->holding());
        CX_CHILD_CHECK(eventually([&] {
            own->sleep(own->notice(), monotonic_ns() + 10 * kMs);
            return own->usable();
        }));
        CX_CHILD_CHECK(own->joined() == 2);
        CX_CHILD_CHECK(own->acquire(in_long()) == Wait::kGranted);
        CX_CHILD_CHECK(own->turn().active_jobs == kRunners + 1);
        own->release();
        shared->joined = 1;
        CX_CHILD_CHECK(eventually([&] {
            own->sleep(own->notice(), monotonic_ns() + 10 * kMs);
            return shared->release == 1;
        }));
    });
    int state = 0;
    ASSERT_EQ(waitpid(stopped.pid(), &state, WUNTRACED), stopped.pid());
    ASSERT_TRUE(WIFSTOPPED(state));
    ASSERT_TRUE(eventually([&] { return all_take_turns(*block); }));
    for (const Block::Runner& runner : block->runners) EXPECT_EQ(runner.joined, 2U);
    stopped.send(SIGCONT);
    ASSERT_TRUE(eventually([&] { return shared->joined == 1; }));
    shared->release = 1;
    stopped.expect_success();
    finish(*block);
}

// Stopped wherever it stands, many times; now and then inside a transition.
TEST_F(MovesTest, StopsAnywhereNeverMakeTwoHolders) {
    Shared<Block> block;
    start(*block, 200 * kMs);
    std::mt19937 random(4);
    for (int round = 0; round < 12; ++round) {
        Process& victim = *runners_[random() % kRunners];
        std::this_thread::sleep_for(std::chrono::microseconds(random() % 5'000));
        victim.send(SIGSTOP);
        std::this_thread::sleep_for(std::chrono::milliseconds(1'100 + random() % 200));
        victim.send(SIGCONT);
    }
    ASSERT_TRUE(eventually([&] { return all_take_turns(*block); }));
    std::uint64_t joined = 0;
    for (const Block::Runner& runner : block->runners) joined += runner.joined;
    RecordProperty("joined", static_cast<int>(joined));
    finish(*block);
}

TEST_F(FileMovesTest, AForgottenClientIsNotGatedForGoodButNotAtOnceEither) {
    Status status = Status::kOk;
    auto client = attach(10, 0, status);
    ASSERT_TRUE(client);
    ASSERT_EQ(truncate(file().c_str(), 0), 0);
    const std::uint64_t begin = monotonic_ns();
    EXPECT_EQ(client->acquire(in_long()), Wait::kFault);
    EXPECT_EQ(client->fault_status(), Status::kCut);
    EXPECT_EQ(client->acquire(in_long()), Wait::kFault) << "at once";
    EXPECT_FALSE(client->contended());
    EXPECT_FALSE(client->usable());
    ASSERT_TRUE(eventually([&] {
        client->sleep(client->notice(), monotonic_ns() + 100 * kMs);
        return client->usable();
    }));
    EXPECT_GE(monotonic_ns() - begin, 1'000 * kMs);
    EXPECT_EQ(client->joined(), 2U);
    EXPECT_EQ(client->acquire(0), Wait::kGranted);
    client.reset();
    EXPECT_FALSE(file_exists());
}

// The pause before joining anew doubles up to its bound, and begins anew after a quiet time.
TEST_F(FileMovesTest, ManyFaultsAreFollowedByEverLongerPauses) {
    Status status = Status::kOk;
    auto client = attach(10, 0, status);
    ASSERT_TRUE(client);
    client->set_periods(0, 10 * kMs, 40 * kMs);
    for (const std::uint64_t pause_ms : {10, 20, 40, 40}) {
        ASSERT_EQ(truncate(file().c_str(), 0), 0);
        const std::uint64_t begin = monotonic_ns();
        ASSERT_EQ(client->acquire(0), Wait::kFault);
        const std::uint32_t seen = client->notice();
        while (!client->usable()) {
            ASSERT_LT(monotonic_ns() - begin, kLongNs);
            client->sleep(seen, in_long());
        }
        EXPECT_GE(monotonic_ns() - begin, pause_ms * kMs);
    }
    // No more than so many times.
    while (client->joined() < 24) {
        ASSERT_EQ(truncate(file().c_str(), 0), 0);
        ASSERT_EQ(client->acquire(0), Wait::kFault);
        ASSERT_TRUE(eventually([&] {
            client->sleep(client->notice(), monotonic_ns() + 10 * kMs);
            return client->usable();
        }));
    }
    ASSERT_EQ(truncate(file().c_str(), 0), 0);
    ASSERT_EQ(client->acquire(0), Wait::kFault);
    const std::uint64_t until = monotonic_ns() + 200 * kMs;
    client->sleep(client->notice(), until);
    EXPECT_GE(monotonic_ns(), until) << "it sleeps, it does not spin";
    EXPECT_FALSE(client->usable());
}

TEST_F(FileMovesTest, ARekeyWhileLostCountsInTheNextSegment) {
    Status status = Status::kOk;
    auto client = attach(10, 0, status);
    ASSERT_TRUE(client);
    client->set_periods(0, kMs, kMs);
    ASSERT_EQ(truncate(file().c_str(), 0), 0);
    EXPECT_EQ(client->acquire(0), Wait::kFault);
    JobIdentity job;
    job.key = 77;
    snprintf(job.name, sizeof job.name, "renamed");
    EXPECT_EQ(client->rekey(job), Status::kOk);
    ASSERT_TRUE(eventually([&] {
        client->sleep(client->notice(), monotonic_ns() + 10 * kMs);
        return client->usable();
    }));
    const Segment& segment = client->segment();
    const JobSlot& slot = segment.jobs[segment.clients[client->slot()].job];
    EXPECT_EQ(slot.key, 77U);
    EXPECT_STREQ(slot.name, "renamed");
}

}  // namespace
}  // namespace crossover
