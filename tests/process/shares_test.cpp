// SPDX-License-Identifier: Apache-2.0
// Shares of device time by weight, with real processes: what the segment itself has counted as held
// against the weights. The rule stands in tests/unit/policy_weights_test.cpp.
#include <atomic>
#include <string>
#include <thread>
#include <vector>

#include "tests/process/processes.hpp"

namespace crossover {
namespace {

struct Taker {
    std::uint32_t weight;
    int turn_ms;
};

class SharesTest : public ProcessTest {
  protected:
    std::unique_ptr<Client> attach_with_weight(std::uint64_t key, std::uint32_t weight) const {
        Options options;
        root_.copy(options.dir, sizeof options.dir - 1);
        options.lease_ms = 10'000;
        options.weight = weight;
        JobIdentity job;
        job.key = key;
        Status status = Status::kOk;
        std::unique_ptr<Client> client = Client::attach(device_, job, 0, options, status);
        if (client == nullptr) {
            fprintf(stderr, "attach: %s\n", status_text(status));
            _exit(1);
        }
        return client;
    }

    // Two processes for each job: while one ends the job's turn, the other waits for the next, so
    // that the job always waits. Returns what each has held, in ns, of `for_ns` in all.
    std::vector<std::uint64_t> held_after(const std::vector<Taker>& takers, std::uint64_t for_ns) {
        struct Block {
            std::atomic<std::size_t> ready{0};
            std::atomic<bool> stop{false};
        };
        Shared<Block> block;
        const std::size_t ranks = 2 * takers.size();
        std::vector<std::unique_ptr<Process>> children;
        for (std::size_t rank = 0; rank < ranks; ++rank) {
            children.push_back(std::make_unique<Process>([&, rank] {
                const std::size_t job = rank / 2;
                const Taker& taker = takers[job];
                auto client = attach_with_weight(10 * (job + 1), taker.weight);
                ++block->ready;
                CX_CHILD_CHECK(eventually([&] { return block->ready == ranks; }));
                while (!block->stop) {
                    const Wait wait = client->acquire(monotonic_ns() + 50 * kMs);
                    if (wait == Wait::kTimedOut) continue;
                    CX_CHILD_CHECK(wait == Wait::kGranted);
                    std::this_thread::sleep_for(std::chrono::milliseconds(taker.turn_ms));
                    // The first rank of the job gives back at once; and asks for the next turn
                    // while the second one still holds this one.
                    if (rank % 2 == 1) {
                        std::this_thread::sleep_for(std::chrono::milliseconds(1));
                    }
                    client->release();
                }
            }));
        }
        EXPECT_TRUE(eventually([&] { return block->ready == ranks; }));
        const MappedSegment mapped = view();
        const auto held = [&] {
            std::vector<std::uint64_t> sums;
            for (std::size_t job = 0; job < takers.size(); ++job) {
                for (const JobSlot& slot : mapped.view()->jobs) {
                    if (slot.key == 10 * (job + 1)) sums.push_back(slot.held_ns);
                }
            }
            return sums;
        };
        const auto sum = [](const std::vector<std::uint64_t>& parts) {
            std::uint64_t all = 0;
            for (const std::uint64_t part : parts) all += part;
            return all;
        };
        // From here on all are there.
        const std::vector<std::uint64_t> before = held();
        EXPECT_TRUE(eventually([&] { return sum(held()) >= sum(before) + for_ns; }));
        std::vector<std::uint64_t> result = held();
        EXPECT_EQ(result.size(), before.size());
        for (std::size_t i = 0; i < before.size(); ++i) result[i] -= before[i];
        block->stop = true;
        for (auto& child : children) child->expect_success();
        return result;
    }

    void expect_shares(const std::vector<Taker>& takers, std::uint64_t for_ns) {
        const std::vector<std::uint64_t> held = held_after(takers, for_ns);
        ASSERT_EQ(held.size(), takers.size());
        double all = 0, weights = 0;
        for (std::size_t i = 0; i < takers.size(); ++i) {
            all += static_cast<double>(held[i]);
            weights += takers[i].weight != 0 ? takers[i].weight : 1;
        }
        for (std::size_t i = 0; i < takers.size(); ++i) {
            const double due = (takers[i].weight != 0 ? takers[i].weight : 1) / weights;
            EXPECT_NEAR(static_cast<double>(held[i]) / all, due, 0.05 * due) << "job " << i;
        }
    }
};

TEST_F(SharesTest, EqualWeightsShareEquallyWhateverTheTurns) {
    expect_shares({{1, 4}, {1, 16}}, 6'000 * kMs);
}

TEST_F(SharesTest, OneOfTwoHasThreeTimesTheWeight) { expect_shares({{3, 8}, {0, 8}}, 6'000 * kMs); }

TEST_F(SharesTest, FourJobsOfUnequalWeightAndLength) {
    expect_shares({{1, 12}, {4, 5}, {2, 20}, {3, 3}}, 10'000 * kMs);
}

TEST_F(SharesTest, WithoutWeightsEachGetsATurnARound) {
    const std::vector<std::uint64_t> held = held_after({{0, 4}, {0, 16}}, 4'000 * kMs);
    ASSERT_EQ(held.size(), 2U);
    EXPECT_GT(held[1], 2 * held[0]) << "time goes by the length of turns";
}

}  // namespace
}  // namespace crossover
