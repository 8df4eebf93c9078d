// SPDX-License-Identifier: Apache-2.0
// The timed model of the virtual GPU: streams, kernels, copies, collectives, links. Pure and
// deterministic: the same calls with the same times give the same notices. No clock, no I/O and no
// sockets here.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "protocol.hpp"

namespace simgpu {

// Names a connection; chosen by the caller, never reused.
using ClientId = std::uint64_t;

inline constexpr std::uint64_t kNever = UINT64_MAX;

// How contexts of different processes share the multiprocessors of a device.
enum class Sharing { kMps, kTimeslice };

// What a transfer does while a participant's context has no slice (Sharing::kTimeslice only).
enum class TimesliceComm { kContinue, kStall };

// All times are nanoseconds of virtual = real time. The caller keeps every field in range
// (config.hpp does).
struct EngineSettings {
    int devices = 2;    // instances count each, where GPUs are split
    int instances = 0;  // MIG instances of each GPU, 0: GPUs are not split
    Sharing sharing = Sharing::kMps;
    std::uint64_t slice_ns = 2'000'000;
    std::uint64_t context_switch_ns = 0;
    std::uint64_t launch_ns = 4'000;  // from submission to the earliest start, stream idle
    std::uint64_t gap_ns =
        1'000;             // from the end of an operation to the start of the next of its stream
    int copy_engines = 2;  // per device
    double link_gbps = 100.0;  // 10^9 bits per second
    std::uint64_t latency_ns = 20'000;
    bool shared_link = false;
    // The devices are those of so many machines, in equal ranges. What ranks of different machines
    // say to each other goes over the network between them: a link of its own for each
    // communicator, or with shared_link one.
    int nodes = 1;
    double node_link_gbps = 0;  // 0: as link_gbps
    std::uint64_t node_latency_ns = 20'000;
    TimesliceComm timeslice_comm = TimesliceComm::kContinue;
};

// One stretch of device work that ended, for the truth log.
struct TruthRecord {
    ClientId client = 0;
    int device = 0;
    std::uint64_t stream = 0;
    OpId op = 0;                  // the client's number of it
    OpKind kind{};                // kKernel, kCopy (fills, too) or kCollective
    std::uint64_t submit_ns = 0;  // when the program called
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = 0;
    std::uint64_t comm = 0;               // kCollective: its (first) communicator
    std::uint64_t transfer_start_ns = 0;  // kCollective: when its first transfer began; 0: never
};

// Not thread-safe. The callbacks run inside the calls below and must not call the engine.
class Engine {
  public:
    using NoticeSink = std::function<void(ClientId, const Notice&)>;
    using TruthSink = std::function<void(const TruthRecord&)>;

    Engine(const EngineSettings& settings, NoticeSink notices, TruthSink truth);
    ~Engine();
    Engine(const Engine&) = delete;
    Engine& operator=(const Engine&) = delete;

    void add_client(ClientId client);

    // The client's operations vanish; what its peers share with it never completes (as with real
    // NCCL).
    void remove_client(ClientId client, std::uint64_t at_ns);

    // Carries out one request (every kind but kHello) at `at_ns`, which is taken as the engine's
    // own time if that is later. A request that is not valid changes nothing and is answered by
    // kError. submit_ns counts for the launch latency and is trusted only up to `at_ns`.
    void handle(ClientId client, const Request& request, std::uint64_t at_ns);

    // Carries out, in order and at their nominal times, all events up to and including `now_ns`.
    void advance(std::uint64_t now_ns);

    // Time of the next event, kNever if there is none. May name an event that turns out to change
    // nothing.
    std::uint64_t next_event_ns() const;

    // Nominal time of the last thing that happened.
    std::uint64_t time_ns() const;

    // Operations submitted and not complete, over all clients.
    std::size_t live_operations() const;

  private:
    class Model;
    std::unique_ptr<Model> model_;
};

}  // namespace simgpu
