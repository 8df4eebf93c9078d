// SPDX-License-Identifier: Apache-2.0
// Stands in for a training process in tests of the commands: attaches to a device as the library
// does, and plays iterations of compute and communication by sleeping, telling events and sums as
// the library would. Arguments: iterations, compute us, communicate us, exit status. No CUDA here.
#include <fcntl.h>
#include <time.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <memory>

#include "arbiter/client.hpp"
#include "arbiter/job_identity.hpp"
#include "arbiter/options.hpp"

namespace {

using crossover::EventKind;

constexpr std::uint64_t kLongestWaitNs = 60'000'000'000;

std::uint64_t now_ns() {
    timespec time{};
    clock_gettime(CLOCK_MONOTONIC, &time);
    return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(time.tv_nsec);
}

void sleep_us(long us) {
    const timespec span{us / 1'000'000, us % 1'000'000 * 1000};
    nanosleep(&span, nullptr);
}

int play(crossover::Client* client, bool gated, long iterations, long compute_us,
         long communicate_us) {
    for (long iteration = 1; iteration <= iterations; ++iteration) {
        if (client != nullptr) {
            if (gated && client->acquire(now_ns() + kLongestWaitNs) != crossover::Wait::kGranted) {
                std::fprintf(stderr, "player: no turn\n");
                return 1;
            }
            client->record(EventKind::kCompute, 0, now_ns());
            client->set_phase(crossover::ClientPhase::kComputing, now_ns());
        }
        sleep_us(compute_us);
        const std::uint64_t begin_ns = now_ns();
        const auto number = static_cast<std::uint64_t>(iteration);
        if (client != nullptr) {
            client->record(EventKind::kCollectiveBegin, number, begin_ns);
            client->record(EventKind::kWindowOpen, number, begin_ns);
            client->set_phase(crossover::ClientPhase::kCommunicating, begin_ns);
            client->count_window();
            if (gated) {
                client->release();
                client->count_crossing();
            }
        }
        sleep_us(communicate_us);
        if (client != nullptr) {
            const std::uint64_t end_ns = now_ns();
            client->record(EventKind::kCollectiveEnd, end_ns - begin_ns, end_ns);
            client->record(EventKind::kWindowClose, end_ns - begin_ns, end_ns);
            client->add_exposed(end_ns - begin_ns);
            client->add_communicated(end_ns - begin_ns);
        }
    }
    std::printf("player: %ld iterations\n", iterations);
    return 0;
}

}  // namespace

int main(int argc, char** argv) {
    if (argc != 5) {
        std::fprintf(stderr, "player: iterations, compute us, communicate us, exit status\n");
        return 2;
    }
    crossover::Options options;
    char error[512];
    if (!crossover::parse_environment([](const char* name) { return std::getenv(name); }, options,
                                      error, sizeof(error))) {
        std::fprintf(stderr, "player: %s\n", error);
        return 2;
    }
    std::unique_ptr<crossover::Client> client;
    if (options.mode != static_cast<std::uint32_t>(crossover::Mode::kOff)) {
        crossover::JobIdentity identity;
        crossover::identity_from_environment([](const char* name) { return std::getenv(name); },
                                             identity);
        crossover::DeviceUuid device;
        device.bytes[15] = 1;
        crossover::Status status{};
        client = crossover::Client::attach(device, identity, 0, options, status);
        if (client == nullptr) {
            std::fprintf(stderr, "player: %s\n", crossover::status_text(status));
            return 1;
        }
        client->set_mode(static_cast<crossover::Mode>(options.mode));
    }
    const bool gated = options.mode == static_cast<std::uint32_t>(crossover::Mode::kOn);
    const int played =
        play(client.get(), gated, std::atol(argv[1]), std::atol(argv[2]), std::atol(argv[3]));
    client.reset();
    return played != 0 ? played : std::atoi(argv[4]);
}
