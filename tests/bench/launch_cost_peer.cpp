// SPDX-License-Identifier: Apache-2.0
// The other job of the one-of-two measurement: attaches to the stub driver's device and never waits
// for a turn. Says "ready", looks now and then who has the turn, and at the end of its input prints
// what it saw, so that the measurement can tell that the measured job was gated and had the turn.
#include <poll.h>
#include <unistd.h>

#include <cstdio>
#include <cstring>

#include "arbiter/client.hpp"
#include "arbiter/futex.hpp"
#include "arbiter/policy.hpp"

int main() {
    crossover::DeviceUuid device;
    std::memset(device.bytes, 0x5A, sizeof device.bytes);  // stub_driver.cpp's
    crossover::JobIdentity job{0xBEEF, "peer"};
    crossover::Options options;
    const char* folder = std::getenv("CROSSOVER_DIR");
    if (folder == nullptr || std::strlen(folder) >= sizeof options.dir) {
        std::fputs("launch_cost_peer: CROSSOVER_DIR must name a folder\n", stderr);
        return 2;
    }
    std::strcpy(options.dir, folder);
    crossover::Status status = crossover::Status::kOk;
    const auto client = crossover::Client::attach(device, job, 0, options, status);
    if (client == nullptr) {
        std::fprintf(stderr, "launch_cost_peer: %s\n", crossover::status_text(status));
        return 2;
    }
    std::puts("ready");
    std::fflush(stdout);
    const std::uint32_t own_job = client->segment().clients[client->slot()].job;
    long looks = 0;
    long held_by_other = 0;
    pollfd input{STDIN_FILENO, POLLIN, 0};
    while (::poll(&input, 1, 1) == 0) {
        if (!client->contended()) continue;
        const std::uint64_t holder =
            client->segment().arbitration.turn.word.load() & crossover::kTurnJobMask;
        ++looks;
        held_by_other += holder != 0 && holder - 1 != own_job ? 1 : 0;
    }
    std::printf("{\"looks\": %ld, \"held_by_other\": %ld}\n", looks, held_by_other);
    return 0;
}
