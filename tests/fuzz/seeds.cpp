// SPDX-License-Identifier: Apache-2.0
// Writes the seed corpora: `fuzz_seeds FOLDER` makes FOLDER/transitions, FOLDER/reading and
// FOLDER/environment. Always the same files. Inputs as the targets read them, nothing else.
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <random>
#include <string>

#include "tests/fuzz/damage.hpp"
#include "tests/fuzz/operations.hpp"
#include "tests/fuzz/variables.hpp"

namespace crossover::fuzz {
namespace {

using Random = std::mt19937;

std::uint8_t below(Random& random, unsigned limit) {
    return static_cast<std::uint8_t>(random() % limit);
}

void save(const std::filesystem::path& folder, int number, const Seed& seed) {
    std::filesystem::create_directories(folder);
    std::ofstream file(folder / std::to_string(number), std::ios::binary);
    file.write(seed.bytes().data(), static_cast<std::streamsize>(seed.bytes().size()));
    file.close();
    if (!file) {
        std::fprintf(stderr, "fuzz_seeds: cannot write %s\n", folder.c_str());
        std::exit(2);
    }
}

Seed& operation(Seed& seed, Operation operation, unsigned slot, unsigned argument) {
    return seed.byte(operation)
        .byte(static_cast<std::uint8_t>(slot))
        .byte(static_cast<std::uint8_t>(argument));
}

// A history of clients that come, take turns and go; sometimes with damage before or half way.
Seed history(Random& random, bool damaged) {
    Seed seed;
    seed.byte(kFresh);
    if (damaged) {
        seed.byte(3);
        seed.number(place_of(offsetof(Segment, arbitration.turn)))
            .number(std::uint64_t{3} << 16 | 2);
        seed.number(place_of(offsetof(Segment, jobs) + 2 * sizeof(JobSlot)))
            .number(std::uint64_t{7});
        seed.number(place_of(offsetof(Segment, clients) + offsetof(ClientSlot, attached)))
            .number(std::uint64_t{2} << 32 | 1);
    } else {
        seed.byte(0);
    }
    const unsigned clients = 2 + random() % 6;
    for (unsigned slot = 0; slot < clients; ++slot) {
        operation(seed, kAttach, slot, below(random, 4));
        operation(seed, kPass, 0, below(random, 100));
    }
    for (int step = 0; step < 60; ++step) {
        const Operation kinds[] = {kRequest, kRequest, kRequest, kRelease,  kRelease, kExpire,
                                   kRekey,   kReap,    kDetach,  kWithdraw, kRepair,  kLook};
        operation(seed, kinds[random() % std::size(kinds)], below(random, clients),
                  below(random, 256));
        operation(seed, kPass, 0, below(random, 120));
        if (random() % 8 == 0) operation(seed, kAttach, below(random, clients), below(random, 4));
    }
    return seed;
}

// Jobs, clients and events as eight bytes each, then a trace of events.
Seed reading(Random& random) {
    Seed seed;
    seed.byte(kFresh).byte(40);
    for (int i = 0; i < 4; ++i) {
        const std::size_t job = offsetof(Segment, jobs) + below(random, 4) * sizeof(JobSlot);
        seed.number(place_of(job)).number(std::uint64_t{1} + random() % 9);
        seed.number(place_of(job + offsetof(JobSlot, name))).number(std::uint64_t{random()});
        const std::size_t client =
            offsetof(Segment, clients) + below(random, 8) * sizeof(ClientSlot);
        seed.number(place_of(client + offsetof(ClientSlot, attached)))
            .number(std::uint64_t{1} | std::uint64_t{random() % 4} << 32);
        for (std::uint64_t place = 0; place < 3; ++place) {
            const std::size_t event = offsetof(Segment, ring.events) + place * sizeof(Event);
            seed.number(place_of(event)).number(place + 1);
            seed.number(place_of(event + 8)).number(1'000 * place + random() % 1'000);
        }
        seed.number(place_of(offsetof(Segment, ring.next))).number(std::uint64_t{random() % 9});
    }
    seed.number(std::uint64_t{5'000}).number(std::uint64_t{0}).number(std::uint64_t{9'000});
    seed.byte(30);
    std::uint32_t now = 0;
    for (int event = 0; event < 30; ++event) {
        now += below(random, 200);
        seed.number(now).byte(below(random, 15)).number(std::uint32_t{below(random, 250)});
        seed.byte(below(random, 5)).byte(below(random, 4));
    }
    return seed;
}

Seed environment(Random& random) {
    const char* const values[] = {"on",   "observe", "0",          "300", "10000",     "10001",
                                  "none", "fault",   "/dev/shm/x", "a:1", "localhost", "-1"};
    Seed seed;
    for (std::size_t i = 0; i < kVariables; ++i) {
        const std::uint8_t how = below(random, 3);
        seed.byte(how);
        if (how != 0) seed.text(values[random() % std::size(values)]);
    }
    return seed.byte(below(random, 2));
}

}  // namespace
}  // namespace crossover::fuzz

int main(int argc, char** argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: fuzz_seeds FOLDER\n");
        return 2;
    }
    const std::filesystem::path folder = argv[1];
    crossover::fuzz::Random random(1);
    for (int i = 0; i < 24; ++i) {
        crossover::fuzz::save(folder / "transitions", i,
                              crossover::fuzz::history(random, i % 3 == 2));
        crossover::fuzz::save(folder / "reading", i, crossover::fuzz::reading(random));
        crossover::fuzz::save(folder / "environment", i, crossover::fuzz::environment(random));
    }
    return 0;
}
