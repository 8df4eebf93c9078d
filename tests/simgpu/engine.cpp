// SPDX-License-Identifier: Apache-2.0
// Requests: checks every field a client sent before it reaches the model. What runs when is decided
// elsewhere (engine_device.cpp, engine_comm.cpp).
#include "engine.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "engine_model.hpp"

namespace simgpu {
namespace {

// Bounds against a client that runs wild, far beyond what a training program uses.
constexpr std::size_t kMaxLiveOps = std::size_t{1} << 20;
constexpr std::size_t kMaxStreams = 65'536;
constexpr std::size_t kMaxMeetings = 65'536;
constexpr std::uint64_t kMaxCostNs = 1'000'000'000'000'000;

std::string text(const char* what, std::uint64_t value) { return what + std::to_string(value); }

}  // namespace

Engine::Engine(const EngineSettings& settings, NoticeSink notices, TruthSink truth)
    : model_(std::make_unique<Model>(settings, std::move(notices), std::move(truth))) {}
Engine::~Engine() = default;
void Engine::add_client(ClientId client) { model_->add_client(client); }
void Engine::remove_client(ClientId client, std::uint64_t at_ns) {
    model_->remove_client(client, at_ns);
}
void Engine::handle(ClientId client, const Request& request, std::uint64_t at_ns) {
    model_->handle(client, request, at_ns);
}
void Engine::advance(std::uint64_t now_ns) { model_->advance(now_ns); }
std::uint64_t Engine::next_event_ns() const { return model_->next_event_ns(); }
std::uint64_t Engine::time_ns() const { return model_->time_ns(); }
std::size_t Engine::live_operations() const { return model_->live_operations(); }

Engine::Model::Model(const EngineSettings& settings, NoticeSink notices, TruthSink truth)
    : settings_(settings),
      notices_(std::move(notices)),
      truth_(std::move(truth)),
      devices_(static_cast<std::size_t>(settings.devices)) {}

// Communicators and their rendezvous point at each other.
Engine::Model::~Model() {
    for (auto& [number, comm] : comms_) comm->rendezvous.clear();
}

void Engine::Model::add_client(ClientId id) { clients_.try_emplace(id); }

void Engine::Model::remove_client(ClientId id, std::uint64_t at_ns) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    move_to(at_ns);
    Client& client = found->second;
    // Copies that wait go first, so that none of them starts when a running one ends.
    for (auto& [op_id, op] : client.ops) {
        if (op->kind == OpKind::kCopy && op->state == Op::State::kReady) withdraw(*op);
    }
    for (auto& [op_id, op] : client.ops) {
        if (op->started && op->state != Op::State::kComplete) record_truth(*op);
        withdraw(*op);
    }
    leave_comms(id);
    for (auto& [index, context] : client.contexts) {
        Device& device = devices_[static_cast<std::size_t>(index)];
        touch(device);
        std::erase(device.contexts, context.get());
        if (device.current == context.get()) device.current = nullptr;
    }
    std::erase_if(worklist_, [id](const Stream* stream) { return stream->client == id; });
    clients_.erase(found);
    drain();
}

void Engine::Model::handle(ClientId id, const Request& request, std::uint64_t at_ns) {
    const auto found = clients_.find(id);
    if (found == clients_.end()) return;
    move_to(at_ns);
    Client& client = found->second;
    std::string wrong;
    switch (request.kind) {
        case RequestKind::kStreamCreate:
            wrong = stream_create(client, id, request);
            break;
        case RequestKind::kStreamDestroy:
            wrong = stream_destroy(client, request);
            break;
        case RequestKind::kSubmit:
            wrong = submit(client, id, request);
            break;
        case RequestKind::kRendezvous:
            wrong = add_meeting(client, request);
            break;
        case RequestKind::kAck:
            wrong = ack(client, request);
            break;
        case RequestKind::kCommInit:
            comm_init(id, request);
            break;
        case RequestKind::kCommAbort:
            wrong = comm_leave(id, request, true);
            break;
        case RequestKind::kCommDestroy:
            wrong = comm_leave(id, request, false);
            break;
        default:
            wrong = text("unknown request kind ", static_cast<std::uint32_t>(request.kind));
            break;
    }
    if (!wrong.empty()) {
        Notice notice{};
        notice.kind = NoticeKind::kError;
        notice.op = request.op;
        notice.time_ns = time_ns_;
        wrong.copy(notice.text, sizeof(notice.text) - 1);
        notices_(id, notice);
    }
    drain();
}

void Engine::Model::move_to(std::uint64_t at_ns) {
    advance(at_ns);
    time_ns_ = std::max(time_ns_, at_ns);
}

std::size_t Engine::Model::live_operations() const {
    std::size_t count = 0;
    for (const auto& [id, client] : clients_) count += client.ops.size();
    return count;
}

std::string Engine::Model::stream_create(Client& client, ClientId id, const Request& request) {
    if (request.device < 0 || request.device >= settings_.devices) {
        return "device " + std::to_string(request.device) + " not in 0.." +
               std::to_string(settings_.devices - 1);
    }
    if (client.streams.size() >= kMaxStreams) return text("more streams than ", kMaxStreams);
    if (client.streams.count(request.stream) != 0)
        return text("second creation of stream ", request.stream);
    auto& context = client.contexts[request.device];
    if (!context) {
        context = std::make_unique<Context>();
        context->client = id;
        context->device = request.device;
        devices_[static_cast<std::size_t>(request.device)].contexts.push_back(context.get());
    }
    auto stream = std::make_unique<Stream>();
    stream->id = request.stream;
    stream->client = id;
    stream->context = context.get();
    stream->priority = request.priority;
    client.streams.emplace(request.stream, std::move(stream));
    return {};
}

std::string Engine::Model::stream_destroy(Client& client, const Request& request) {
    const auto found = client.streams.find(request.stream);
    if (found == client.streams.end() || found->second->destroyed)
        return text("unknown stream ", request.stream);
    found->second->destroyed = true;
    list(*found->second);
    return {};
}

std::string Engine::Model::submit(Client& client, ClientId id, const Request& request) {
    if (request.op <= client.last_op) {
        return text("operation ", request.op) + text(" does not follow operation ", client.last_op);
    }
    const OpKind kind = request.op_kind;
    if (kind < OpKind::kMarker || kind > OpKind::kClient) {
        return text("unknown operation kind ", static_cast<std::uint32_t>(kind));
    }
    const auto found = client.streams.find(request.stream);
    if (found == client.streams.end() || found->second->destroyed)
        return text("unknown stream ", request.stream);
    if (client.ops.size() >= kMaxLiveOps)
        return text("more operations in flight than ", kMaxLiveOps);
    if ((request.flags & ~(kNotifyStart | kFill)) != 0) return text("unknown flags ", request.flags);
    if (request.cost_ns > kMaxCostNs) return text("cost_ns above ", kMaxCostNs);
    const bool on_sm = kind == OpKind::kKernel || kind == OpKind::kCollective;
    if (on_sm && !(request.sm_share > 0.0F && request.sm_share <= 1.0F))
        return "sm_share not in (0, 1]";
    Stream& stream = *found->second;

    std::vector<Request> meetings;
    if (client.meetings_of == request.op) meetings.swap(client.meetings);
    if (kind == OpKind::kCollective && request.participants != 0)
        meetings.insert(meetings.begin(), request);
    if (kind == OpKind::kCollective && meetings.empty()) return "collective without a rendezvous";
    if (kind != OpKind::kCollective && !meetings.empty())
        return "rendezvous of an operation that is no collective";
    for (std::size_t i = 0; i < meetings.size(); ++i) {
        std::string wrong = check_meeting(id, stream, meetings[i]);
        if (!wrong.empty()) return wrong;
        for (std::size_t j = 0; j < i; ++j) {
            if (meetings[j].comm_key == meetings[i].comm_key &&
                meetings[j].rendezvous == meetings[i].rendezvous) {
                return text("same rendezvous twice in operation ", request.op);
            }
        }
    }

    auto op = std::make_unique<Op>();
    op->id = request.op;
    op->kind = kind;
    op->stream = &stream;
    op->submit_ns = request.submit_ns == 0 ? time_ns_ : std::min(request.submit_ns, time_ns_);
    op->arrival_ns = time_ns_;
    const auto awaited = client.ops.find(request.wait_op);
    const bool holds =
        awaited != client.ops.end() && awaited->second->state != Op::State::kComplete;
    op->wait_op = holds ? request.wait_op : 0;
    // A float's 0.1 is meant as 0.1: shares count in millionths.
    op->share = std::max(1e-6, std::round(static_cast<double>(request.sm_share) * 1e6) / 1e6);
    op->cost_ns = request.cost_ns;
    if (settings_.instances > 1 && on_sm) {
        // What the operation can use of a whole GPU is more of an instance; beyond all of it, it
        // takes longer.
        const double share = op->share * settings_.instances;
        op->share = std::min(1.0, share);
        if (kind == OpKind::kKernel)
            op->cost_ns = static_cast<std::uint64_t>(
                std::llround(static_cast<double>(request.cost_ns) * std::max(1.0, share)));
    }
    op->remaining_ns = static_cast<double>(op->cost_ns);
    op->notify = (request.flags & kNotifyStart) != 0 || kind == OpKind::kClient;
    op->fill = (request.flags & kFill) != 0;
    for (const Request& meeting : meetings) join_meeting(*op, meeting);
    client.last_op = request.op;
    stream.queue.push_back(op.get());
    client.ops.emplace(request.op, std::move(op));
    list(stream);
    return {};
}

std::string Engine::Model::add_meeting(Client& client, const Request& request) {
    if (request.op <= client.last_op) return text("rendezvous after its operation ", request.op);
    if (client.meetings_of != request.op) client.meetings.clear();
    if (client.meetings.size() >= kMaxMeetings)
        return text("more rendezvous in one operation than ", kMaxMeetings);
    client.meetings_of = request.op;
    client.meetings.push_back(request);
    return {};
}

std::string Engine::Model::ack(Client& client, const Request& request) {
    const auto found = client.ops.find(request.op);
    if (found == client.ops.end()) {
        // An abort may have completed it while the acknowledgement was under way.
        return request.op <= client.last_op ? std::string()
                                            : text("acknowledged unknown operation ", request.op);
    }
    Op& op = *found->second;
    if (!op.notify || !op.started || op.acked)
        return text("unexpected acknowledgement of operation ", request.op);
    op.acked = true;
    if (op.state == Op::State::kComplete) {
        report(*op.stream);
    } else if (op.state == Op::State::kWithClient) {
        complete(op, 0);
    } else {
        for (const auto& meeting : op.meetings) {
            tell_staged(*meeting.rendezvous);
            check_over(*meeting.rendezvous);
        }
    }
    return {};
}

}  // namespace simgpu
