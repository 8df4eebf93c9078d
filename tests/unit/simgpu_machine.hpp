// SPDX-License-Identifier: Apache-2.0
// What the tests of the virtual GPU's timed model share: a machine without a clock that notes every
// notice. No test cases here.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "engine.hpp"

namespace simgpu {

inline constexpr std::uint64_t kMs = 1'000'000;
inline constexpr std::uint64_t kUs = 1'000;
inline constexpr std::uint64_t kStart = 1000 * kMs;  // the tests' zero of time
inline constexpr std::uint64_t kByteNs = 1;          // of plain(): 8 Gbit/s are one byte per ns

// No launch latency, gap or link latency, so that the figures of a test are those of its subject.
inline EngineSettings plain() {
    EngineSettings settings;
    settings.devices = 4;
    settings.launch_ns = 0;
    settings.gap_ns = 0;
    settings.latency_ns = 0;
    settings.link_gbps = 8;
    return settings;
}

inline EngineSettings sliced(std::uint64_t slice_ns = 2 * kMs) {
    EngineSettings settings = plain();
    settings.sharing = Sharing::kTimeslice;
    settings.slice_ns = slice_ns;
    return settings;
}

struct Seen {
    std::uint64_t at_ns = kNever;  // since kStart
    std::uint32_t status = 99;
};

class Machine {
  public:
    explicit Machine(const EngineSettings& settings)
        : engine(
              settings, [this](ClientId client, const Notice& notice) { note(client, notice); },
              [this](const TruthRecord& record) { truth.push_back(record); }) {}

    void client(ClientId id) { engine.add_client(id); }

    void stream(ClientId client, std::uint64_t id, int device = 0, int priority = 0) {
        Request request;
        request.kind = RequestKind::kStreamCreate;
        request.stream = id;
        request.device = device;
        request.priority = priority;
        send(client, request, 0);
    }

    static Request op(OpKind kind, OpId id, std::uint64_t stream, std::uint64_t cost_ns = 0,
                      float share = 1.0F, std::uint32_t flags = 0) {
        Request request;
        request.kind = RequestKind::kSubmit;
        request.op_kind = kind;
        request.op = id;
        request.stream = stream;
        request.cost_ns = cost_ns;
        request.sm_share = share;
        request.flags = flags;
        return request;
    }

    static Request wait(OpId id, std::uint64_t stream, OpId awaited) {
        Request request = op(OpKind::kWait, id, stream);
        request.wait_op = awaited;
        return request;
    }

    // A collective of `participants` ranks, `bytes` over the link.
    static Request collective(OpId id, std::uint64_t stream, std::uint64_t comm, std::uint32_t rank,
                              std::uint64_t number, std::uint64_t bytes,
                              std::uint32_t participants = 2, float share = 0.1F,
                              std::uint32_t flags = 0) {
        Request request = op(OpKind::kCollective, id, stream, 0, share, flags);
        request.comm_key = comm;
        request.rank = rank;
        request.rendezvous = number;
        request.link_bytes = bytes;
        request.participants = participants;
        return request;
    }

    void send(ClientId client, Request request, std::uint64_t at_ns) {
        if (request.submit_ns == 0) request.submit_ns = kStart + at_ns;
        engine.handle(client, request, kStart + at_ns);
    }

    void ack(ClientId client, OpId op_id, std::uint64_t at_ns) {
        Request request;
        request.kind = RequestKind::kAck;
        request.op = op_id;
        send(client, request, at_ns);
    }

    // Ranks 0, 1, … of a new communicator; its number, 0 if it was refused.
    // `own_hosts`: each rank says it is on a host of its own.
    std::uint64_t comm(const std::vector<std::pair<ClientId, int>>& ranks, std::uint64_t key = 77,
                       bool own_hosts = false) {
        ready.clear();
        for (std::uint32_t rank = 0; rank < ranks.size(); ++rank) {
            Request request;
            request.kind = RequestKind::kCommInit;
            request.comm_key = key;
            request.participants = static_cast<std::uint32_t>(ranks.size());
            request.rank = rank;
            request.device = ranks[rank].second;
            request.rendezvous = own_hosts ? rank + 1 : 0;
            send(ranks[rank].first, request, 0);
        }
        return ready.empty() ? 0 : ready.back().value;
    }

    void leave(ClientId client, RequestKind kind, std::uint64_t comm_number, std::uint32_t rank,
               std::uint64_t at_ns) {
        Request request;
        request.kind = kind;
        request.comm_key = comm_number;
        request.rank = rank;
        send(client, request, at_ns);
    }

    // Follows the engine's own events, as the server does.
    void run(std::uint64_t until_ns = 10'000 * kMs) {
        for (std::uint64_t next = engine.next_event_ns(); next <= kStart + until_ns;
             next = engine.next_event_ns()) {
            engine.advance(next);
        }
    }

    std::uint64_t started(ClientId client, OpId id) const { return at(starts, client, id).at_ns; }
    std::uint64_t done(ClientId client, OpId id) const { return at(dones, client, id).at_ns; }
    std::uint32_t status(ClientId client, OpId id) const { return at(dones, client, id).status; }

    const TruthRecord* truth_of(ClientId client, std::uint64_t stream_id) const {
        const auto found = std::find_if(truth.begin(), truth.end(), [&](const TruthRecord& record) {
            return record.client == client && record.stream == stream_id;
        });
        return found == truth.end() ? nullptr : &*found;
    }

    Engine engine;
    std::vector<TruthRecord> truth;
    std::vector<Notice> ready;
    std::vector<std::string> errors;
    std::vector<std::tuple<NoticeKind, ClientId, OpId>> order;

  private:
    using Table = std::map<std::pair<ClientId, OpId>, Seen>;

    static Seen at(const Table& table, ClientId client, OpId id) {
        const auto found = table.find({client, id});
        return found == table.end() ? Seen{} : found->second;
    }

    void note(ClientId client, const Notice& notice) {
        order.emplace_back(notice.kind, client, notice.op);
        const Seen seen{notice.time_ns - kStart, notice.status};
        if (notice.kind == NoticeKind::kStarted) starts[{client, notice.op}] = seen;
        if (notice.kind == NoticeKind::kDone) {
            EXPECT_EQ(dones.count({client, notice.op}), 0U)
                << "operation " << notice.op << " done twice";
            dones[{client, notice.op}] = seen;
        }
        if (notice.kind == NoticeKind::kCommReady) ready.push_back(notice);
        if (notice.kind == NoticeKind::kError) errors.emplace_back(notice.text);
    }

    Table starts;
    Table dones;
};

}  // namespace simgpu
