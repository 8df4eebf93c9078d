// SPDX-License-Identifier: Apache-2.0
// Coming and going a thousand times leaves nothing behind: files, their size, descriptors, mapped
// memory, slots. No test here of what a single client does.
#include <dirent.h>
#include <sys/stat.h>

#include <fstream>
#include <map>

#include "tests/process/processes.hpp"

namespace crossover {
namespace {

constexpr int kRestarts = 1000;

// What a process has open and mapped, counted.
struct Footprint {
    std::size_t descriptors = 0;
    std::size_t segments_mapped = 0;
    std::uint64_t resident_bytes = 0;
};

class RestartsTest : public ProcessTest {
  protected:
    Footprint footprint() const {
        Footprint found;
        for ([[maybe_unused]] const auto& each :
             std::filesystem::directory_iterator("/proc/self/fd")) {
            ++found.descriptors;
        }
        std::ifstream maps("/proc/self/maps");
        for (std::string line; std::getline(maps, line);) {
            const bool segment = line.find(root_) != std::string::npos ||
                                 line.find("/SYSV") != std::string::npos;
            found.segments_mapped += segment ? 1 : 0;
        }
        std::ifstream pages("/proc/self/statm");
        std::uint64_t all = 0;
        pages >> all >> found.resident_bytes;
        found.resident_bytes *= static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
        return found;
    }
    // Names and the blocks they take.
    std::map<std::string, blkcnt_t> folder() const {
        std::map<std::string, blkcnt_t> files;
        for (const auto& entry : std::filesystem::directory_iterator(root_)) {
            struct stat info {};
            EXPECT_EQ(lstat(entry.path().c_str(), &info), 0);
            files[entry.path().filename()] = info.st_blocks;
        }
        return files;
    }
    void come_and_go(std::uint64_t job) const {
        auto client = must_attach(job);
        CX_CHILD_CHECK(client->acquire(in_long()) == Wait::kGranted);
        client->release();
    }
};

TEST_F(RestartsTest, OfProcessesAlone) {
    for (int i = 1; i <= kRestarts; ++i) {
        Process([&] { come_and_go(static_cast<std::uint64_t>(i)); }).expect_success();
        ASSERT_TRUE(folder().empty()) << i;
    }
}

TEST_F(RestartsTest, OfProcessesBesideOneThatStays) {
    auto stays = must_attach(1);
    const auto before = folder();
    const Footprint mine = footprint();
    ASSERT_EQ(before.size(), 1U);
    for (int i = 2; i <= kRestarts; ++i) {
        // Every fourth is killed.
        Shared<std::atomic<int>> attached;
        Process other([&] {
            if (i % 4 != 0) return come_and_go(static_cast<std::uint64_t>(i));
            auto client = must_attach(static_cast<std::uint64_t>(i));
            *attached = 1;
            for (;;) pause();
        });
        if (i % 4 == 0) {
            ASSERT_TRUE(eventually([&] { return *attached == 1; }));
            other.kill_now();
        } else {
            other.expect_success();
        }
        ASSERT_EQ(folder(), before) << i;
    }
    EXPECT_EQ(footprint().descriptors, mine.descriptors);
    EXPECT_EQ(footprint().segments_mapped, 1U);
    // The last of them was killed; the next to come clears it away.
    Process([&] { come_and_go(2); }).expect_success();
    const Segment& segment = stays->segment();
    EXPECT_FALSE(stays->contended());
    std::size_t jobs = 0;
    std::size_t clients = 0;
    for (const JobSlot& job : segment.jobs) jobs += job.clients != 0 ? 1 : 0;
    for (const ClientSlot& client : segment.clients) clients += client.attached.load();
    EXPECT_EQ(jobs, 1U);
    EXPECT_EQ(clients, 1U);
    EXPECT_EQ(segment.arbitration.reaped_count, static_cast<std::uint64_t>(kRestarts) / 4);
    stays.reset();
    EXPECT_TRUE(folder().empty());
}

TEST_F(RestartsTest, OfClientsInOneProcess) {
    for (int i = 1; i <= 50; ++i) come_and_go(static_cast<std::uint64_t>(i));
    const Footprint before = footprint();
    for (int i = 1; i <= kRestarts; ++i) come_and_go(static_cast<std::uint64_t>(i));
    const Footprint after = footprint();
    EXPECT_EQ(after.descriptors, before.descriptors);
    EXPECT_EQ(after.segments_mapped, 0U);
    EXPECT_EQ(before.segments_mapped, 0U);
    // A segment kept each time would be some 300 MiB.
    EXPECT_LT(after.resident_bytes, before.resident_bytes + (std::uint64_t{64} << 20));
    EXPECT_TRUE(folder().empty());
}

}  // namespace
}  // namespace crossover
