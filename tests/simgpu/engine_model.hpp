// SPDX-License-Identifier: Apache-2.0
// State of the timed model, private to the engine_*.cpp files: engine.cpp checks and files
// requests, engine_device.cpp runs streams, multiprocessors and copy engines, engine_comm.cpp
// communicators and links.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <queue>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "engine.hpp"

namespace simgpu {

struct Op;
struct Context;

struct Stream {
    std::uint64_t id = 0;
    ClientId client = 0;
    Context* context = nullptr;
    int priority = 0;
    std::deque<Op*> queue;       // not complete
    std::deque<Op*> unreported;  // complete, in order; kDone waits for an acknowledgement
    std::uint64_t last_end_ns = 0;
    bool destroyed = false;
    bool listed = false;  // waits in Model::worklist_
};

// One process on one device.
struct Context {
    ClientId client = 0;
    int device = 0;
    int runnable = 0;   // operations that want multiprocessors now
    int launching = 0;  // operations that will within the launch latency or gap
};

struct Comm;

// One meeting of ranks. Operations of its parties share it; a party whose operation ended early
// breaks it.
struct Rendezvous {
    struct Party {
        std::uint32_t rank = 0;
        Op* op = nullptr;
    };
    std::shared_ptr<Comm> comm;
    std::uint64_t number = 0;
    std::uint32_t participants = 0;
    std::uint32_t resident = 0;
    std::vector<Party> parties;
    double latency_left_ns = 0;
    double bytes_left = 0;
    double rate = 0;  // of the current phase: ns per ns, then bytes per ns
    std::uint64_t end_ns = kNever;
    bool between_nodes = false;  // known once all are resident
    bool broken = false;
    bool transferring = false;
    bool transferred = false;
    bool over = false;
};

struct Member {
    ClientId client = 0;
    int device = 0;
    std::deque<Op*> queue;  // in issue order; only the first may run
    bool left = false;
};

struct Comm {
    std::uint64_t number = 0;
    std::uint32_t size = 0;
    std::map<std::uint32_t, Member> members;
    std::map<std::uint64_t, std::shared_ptr<Rendezvous>> rendezvous;
    bool aborted = false;
};

struct Op {
    enum class State {
        kQueued,     // not at the head of its stream, or held there
        kLaunching,  // a timer runs
        kReady,      // wants multiprocessors or a copy engine
        kRunning,
        kWithClient,  // client work that runs
        kComplete
    };
    struct Meeting {
        std::shared_ptr<Rendezvous> rendezvous;
        std::uint32_t rank = 0;
    };
    OpId id = 0;
    OpKind kind{};
    Stream* stream = nullptr;
    std::uint64_t submit_ns = 0;
    std::uint64_t arrival_ns = 0;
    OpId wait_op = 0;
    double share = 1.0;
    double remaining_ns = 0;  // kernels: device time left
    double rate = 0;
    std::uint64_t cost_ns = 0;
    std::uint64_t start_ns = 0;
    std::uint64_t end_ns = kNever;
    std::uint64_t transfer_start_ns = 0;
    State state = State::kQueued;
    bool notify = false;
    bool fill = false;
    bool started = false;
    bool acked = false;
    bool staged = false;  // kStaged was sent
    std::uint32_t status = 0;
    std::vector<Meeting> meetings;
    std::vector<Stream*> waiters;
};

struct Device {
    std::vector<Context*> contexts;  // round-robin order
    std::vector<Op*> sm_ops;         // kernels and collectives, kReady or kRunning
    std::deque<Op*> copies_waiting;
    int copies_running = 0;
    std::uint64_t settled_ns = 0;
    std::uint64_t next_ns = kNever;
    bool dirty = false;
    // kTimeslice only.
    Context* current = nullptr;
    std::uint64_t switch_until_ns = 0;
    std::uint64_t slice_end_ns = 0;
    bool contended = false;
};

struct Link {
    std::vector<std::shared_ptr<Rendezvous>> transfers;
    std::uint64_t settled_ns = 0;
    std::uint64_t next_ns = kNever;
    bool dirty = false;
};

struct Client {
    std::map<std::uint64_t, std::unique_ptr<Stream>> streams;
    std::unordered_map<OpId, std::unique_ptr<Op>> ops;  // live ones
    std::map<int, std::unique_ptr<Context>> contexts;   // by device
    OpId last_op = 0;
    OpId meetings_of = 0;  // the operation that `meetings` was sent ahead for
    std::vector<Request> meetings;
};

struct CommSetup {
    struct Joined {
        ClientId client = 0;
        int device = 0;
        std::uint64_t host = 0;  // as the rank says
    };
    std::uint32_t size = 0;
    std::map<std::uint32_t, Joined> ranks;
};

class Engine::Model {
  public:
    Model(const EngineSettings& settings, NoticeSink notices, TruthSink truth);
    ~Model();
    Model(const Model&) = delete;
    Model& operator=(const Model&) = delete;

    void add_client(ClientId id);
    void remove_client(ClientId id, std::uint64_t at_ns);
    void handle(ClientId id, const Request& request, std::uint64_t at_ns);
    void advance(std::uint64_t now_ns);
    std::uint64_t next_event_ns() const;
    std::uint64_t time_ns() const { return time_ns_; }
    std::size_t live_operations() const;

  private:
    struct Timer {
        std::uint64_t at_ns;
        std::uint64_t sequence;
        ClientId client;
        OpId op;
        bool operator>(const Timer& other) const {
            return at_ns != other.at_ns ? at_ns > other.at_ns : sequence > other.sequence;
        }
    };

    // engine.cpp: requests. Each returns an empty text or says what is wrong.
    std::string stream_create(Client& client, ClientId id, const Request& request);
    std::string stream_destroy(Client& client, const Request& request);
    std::string submit(Client& client, ClientId id, const Request& request);
    std::string add_meeting(Client& client, const Request& request);
    std::string ack(Client& client, const Request& request);
    void move_to(std::uint64_t at_ns);

    // engine_device.cpp
    void step(std::uint64_t at_ns);
    void drain();
    void list(Stream& stream);
    void visit(Stream& stream);
    void begin(Op& op);
    void launch(Op& op);
    void launched(Op& op);
    void start(Op& op);
    void start_copy(Op& op);
    void complete(Op& op, std::uint32_t status);
    void report(Stream& stream);
    void withdraw(Op& op);
    void record_truth(const Op& op);
    Op* find(ClientId id, OpId op);
    Device& device_of(const Op& op);
    void set_timer(const Op& op, std::uint64_t at_ns);
    void touch(Device& device);
    void reschedule(Device& device);
    bool finish_kernels(Device& device);
    bool run_collectives(Device& device);
    void choose_context(Device& device);
    void switch_to(Device& device, Context* context);
    void allocate(Device& device);
    bool scheduled(const Context& context) const;

    // engine_comm.cpp
    void comm_init(ClientId id, const Request& request);
    std::string comm_leave(ClientId id, const Request& request, bool abort);
    void comm_ready(ClientId id, std::uint64_t key, std::uint32_t rank, std::uint64_t number,
                    std::uint32_t status);
    std::string check_meeting(ClientId id, const Stream& stream, const Request& request) const;
    void join_meeting(Op& op, const Request& request);
    bool first_in_comms(const Op& op) const;
    bool aborted(const Op& op) const;
    bool meetings_over(const Op& op) const;
    void arrive(Op& op);
    static bool staged(const Rendezvous& meeting);
    void tell_staged(const Rendezvous& meeting);
    void check_over(Rendezvous& meeting);
    void leave_meetings(Op& op);
    void leave_comms(ClientId id);
    void reap(std::uint64_t comm_number);
    std::uint64_t link_key(const Rendezvous& meeting) const;
    void touch(Link& link);
    void touch_links();
    void reschedule(Link& link);

    EngineSettings settings_;
    NoticeSink notices_;
    TruthSink truth_;
    std::uint64_t time_ns_ = 0;
    std::uint64_t next_timer_ = 0;
    std::uint64_t next_comm_ = 1;
    std::map<ClientId, Client> clients_;
    std::vector<Device> devices_;
    std::map<std::uint64_t, CommSetup> setups_;  // by comm_key
    std::map<std::uint64_t, std::shared_ptr<Comm>> comms_;
    std::map<std::uint64_t, Link> links_;  // those with transfers in flight
    std::deque<Stream*> worklist_;
    std::priority_queue<Timer, std::vector<Timer>, std::greater<>> timers_;
};

// `from_ns` plus the time `amount` takes at `rate` (per ns), rounded up to a whole ns; kNever if
// out of range.
std::uint64_t end_of(std::uint64_t from_ns, double amount, double rate);

}  // namespace simgpu
