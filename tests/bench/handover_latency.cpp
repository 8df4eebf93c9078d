// SPDX-License-Identifier: Apache-2.0
// Two processes pass one thing to and fro: the turn in one block, a bare word in the next. Both
// kinds are timed alike and by turns, so that whatever else the machine does hits both alike.
//
// A step: the taker goes to sleep; the giver sees that it wants and sleeps, waits `asleep_ns`,
// takes the time and gives; the taker takes the time when its call returns, and lets the giver go
// on. The giver does nothing in between, so nothing competes with the wake-up.
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>

#include "arbiter/futex.hpp"
#include "handover_parts.hpp"
#include "handover_processes.hpp"

namespace crossover::bench {
namespace {

constexpr std::uint64_t kLookNs = 50'000;  // how often the giver asks whether the taker sleeps

struct Table {
    std::atomic<std::uint32_t> attached{0};
    std::atomic<std::uint32_t> pids[2] = {};
    alignas(64) std::atomic<std::uint32_t> floor_word{0};    // bare wakes given
    alignas(64) std::atomic<std::uint32_t> floor_wanted{0};  // bare wakes asked for
    alignas(64) std::atomic<std::uint32_t> taken{0};         // steps of both kinds
    std::atomic<std::uint64_t> want_since_ns{0};
    std::atomic<std::uint64_t> given_ns{0};
};

struct Sample {
    std::uint64_t latency_ns;
    std::uint64_t giving_ns;
    std::uint64_t slept_ns;
};

long futex(std::atomic<std::uint32_t>& word, int operation, std::uint32_t value) {
    return syscall(SYS_futex, reinterpret_cast<std::uint32_t*>(&word), operation, value, nullptr,
                   nullptr, 0);
}

// Both sides of a kind of step.
class TurnSteps {
  public:
    explicit TurnSteps(Client& client) : client_(client) {}
    void take(std::uint32_t) {
        if (client_.acquire(monotonic_ns() + kLongNs) != Wait::kGranted) fail("no turn");
    }
    bool wanted(std::uint32_t) const { return client_.wanted(); }
    void give(std::uint32_t) { client_.release(); }

  private:
    Client& client_;
};

class WordSteps {
  public:
    explicit WordSteps(Table& table) : table_(table) {}
    void take(std::uint32_t number) {
        table_.floor_wanted.store(number + 1, std::memory_order_release);
        while (table_.floor_word.load(std::memory_order_acquire) == number) {
            futex(table_.floor_word, FUTEX_WAIT, number);
        }
    }
    bool wanted(std::uint32_t number) const {
        return table_.floor_wanted.load(std::memory_order_acquire) == number + 1;
    }
    void give(std::uint32_t number) {
        table_.floor_word.store(number + 1, std::memory_order_release);
        futex(table_.floor_word, FUTEX_WAKE, 1);
    }

  private:
    Table& table_;
};

class Player {
  public:
    Player(std::uint32_t self, const LatencyPlan& plan, Table& table)
        : self_(self), plan_(plan), table_(table), other_(wait_for_other()) {}

    // One block of one kind. `first` is the number of its first step among its kind.
    template <class Steps>
    void block(Steps steps, std::uint32_t first, std::uint32_t count, Shared<Sample>& samples) {
        for (std::uint32_t number = first; number < first + count; ++number, ++step_) {
            if (number % 2 == self_) {
                give(steps, number, samples[number]);
            } else {
                take(steps, number, samples[number]);
            }
        }
    }

  private:
    pid_t wait_for_other() {
        table_.pids[self_].store(static_cast<std::uint32_t>(getpid()));
        table_.attached.fetch_add(1);
        while (table_.attached.load() != 2) sleep_ns(kMs);
        return static_cast<pid_t>(table_.pids[1 - self_].load());
    }

    template <class Steps>
    void give(Steps& steps, std::uint32_t number, Sample& sample) {
        while (!steps.wanted(number) || !other_.sleeps()) sleep_ns(kLookNs);
        sleep_ns(plan_.asleep_ns);
        while (!other_.sleeps()) sleep_ns(plan_.asleep_ns);
        const std::uint64_t now_ns = monotonic_ns();
        table_.given_ns.store(now_ns, std::memory_order_relaxed);
        steps.give(number);
        sample.giving_ns = monotonic_ns() - now_ns;
        futex_wait(table_.taken, step_, now_ns + kLongNs);
        if (table_.taken.load(std::memory_order_acquire) != step_ + 1) fail("a wake-up was lost");
    }

    template <class Steps>
    void take(Steps& steps, std::uint32_t number, Sample& sample) {
        const std::uint64_t began_ns = monotonic_ns();
        steps.take(number);
        const std::uint64_t now_ns = monotonic_ns();
        const std::uint64_t given_ns = table_.given_ns.load(std::memory_order_relaxed);
        sample.latency_ns = now_ns - given_ns;
        sample.slept_ns = given_ns - std::min(began_ns, given_ns);
        table_.taken.store(step_ + 1, std::memory_order_release);
        futex_wake_all(table_.taken);
    }

    std::uint32_t self_;
    const LatencyPlan& plan_;
    Table& table_;
    SleepLook other_;
    std::uint32_t step_ = 0;
};

}  // namespace

LatencyFigures measure_latency(const LatencyPlan& plan) {
    // Each block begins with the same giver, who has the turn then.
    const std::uint32_t block = plan.block + plan.block % 2;
    const std::uint32_t blocks = (plan.handovers + block - 1) / block;
    const std::uint32_t count = blocks * block;
    const SegmentDirectory segments;
    Shared<Table> table;
    Shared<Sample> turns(count);
    Shared<Sample> words(count);
    std::vector<Child> children;
    for (std::uint32_t self = 0; self < 2; ++self) {
        children.emplace_back([&, self] {
            const std::unique_ptr<Client> client = segments.attach(0, self);
            if (self == 0 && client->acquire(monotonic_ns() + kLongNs) != Wait::kGranted) {
                fail("no first turn");
            }
            Player player(self, plan, *table);
            for (std::uint32_t first = 0; first < count; first += block) {
                player.block(TurnSteps(*client), first, block, turns);
                player.block(WordSteps(*table), first, block, words);
            }
        });
    }
    wait_for_all(children, kLongNs + count * (4 * plan.asleep_ns + 20 * kMs));
    LatencyFigures figures;
    figures.shortest_sleep_ns = UINT64_MAX;
    for (std::uint32_t i = 0; i < count; ++i) {
        figures.handover_ns.push_back(turns[i].latency_ns);
        figures.release_ns.push_back(turns[i].giving_ns);
        figures.floor_ns.push_back(words[i].latency_ns);
        figures.wake_ns.push_back(words[i].giving_ns);
        figures.shortest_sleep_ns =
            std::min({figures.shortest_sleep_ns, turns[i].slept_ns, words[i].slept_ns});
    }
    return figures;
}

}  // namespace crossover::bench
