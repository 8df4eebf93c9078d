// SPDX-License-Identifier: Apache-2.0
// Communicators, rendezvous and links of the timed model. When a collective gets multiprocessors is
// decided in engine_device.cpp.
#include <algorithm>
#include <cmath>
#include <set>
#include <utility>

#include "engine_model.hpp"

namespace simgpu {
namespace {

constexpr std::uint32_t kMaxRanks = 65'536;
constexpr std::uint64_t kNetwork = std::uint64_t{1} << 63;  // of a link's key
constexpr std::uint64_t kMaxLinkBytes = 1'000'000'000'000'000'000;

enum CommStatus : std::uint32_t { kReady = 0, kDuplicateDevice = 1, kBadRankOrSize = 2 };

std::string unknown_comm(const Request& request) {
    return "rank " + std::to_string(request.rank) + " is not in communicator " +
           std::to_string(request.comm_key);
}

}  // namespace

// ---- membership ----

void Engine::Model::comm_init(ClientId id, const Request& request) {
    const bool valid = request.participants >= 1 && request.participants <= kMaxRanks &&
                       request.rank < request.participants && request.device >= 0 &&
                       request.device < settings_.devices;
    auto found = setups_.find(request.comm_key);
    const bool fits = found == setups_.end() || (found->second.size == request.participants &&
                                                 found->second.ranks.count(request.rank) == 0);
    if (!valid || !fits) {
        comm_ready(id, request.comm_key, request.rank, 0, kBadRankOrSize);
        return;
    }
    CommSetup& setup = setups_[request.comm_key];
    setup.size = request.participants;
    setup.ranks[request.rank] = CommSetup::Joined{id, request.device, request.rendezvous};
    if (setup.ranks.size() < setup.size) return;

    std::set<std::pair<std::uint64_t, int>> used;
    for (const auto& [rank, joined] : setup.ranks) used.emplace(joined.host, joined.device);
    const bool duplicate = used.size() < setup.ranks.size();
    auto comm = std::make_shared<Comm>();
    comm->size = setup.size;
    if (!duplicate) {
        comm->number = next_comm_++;
        comms_.emplace(comm->number, comm);
    }
    for (const auto& [rank, joined] : setup.ranks) {
        comm->members[rank] = Member{joined.client, joined.device, {}, false};
        comm_ready(joined.client, request.comm_key, rank, comm->number,
                   duplicate ? kDuplicateDevice : kReady);
    }
    setups_.erase(request.comm_key);
}

void Engine::Model::comm_ready(ClientId id, std::uint64_t key, std::uint32_t rank,
                               std::uint64_t number, std::uint32_t status) {
    Notice notice{};
    notice.kind = NoticeKind::kCommReady;
    notice.status = status;
    notice.op = key;
    notice.time_ns = time_ns_;
    notice.value = number;
    notice.rank = rank;
    notices_(id, notice);
}

std::string Engine::Model::comm_leave(ClientId id, const Request& request, bool abort) {
    const auto found = comms_.find(request.comm_key);
    if (found == comms_.end()) return unknown_comm(request);
    const std::shared_ptr<Comm> comm = found->second;
    const auto member = comm->members.find(request.rank);
    if (member == comm->members.end() || member->second.client != id || member->second.left) {
        return unknown_comm(request);
    }
    member->second.left = true;
    if (abort) {
        comm->aborted = true;
        for (auto& [rank, other] : comm->members) {
            const std::deque<Op*> ops = other.queue;
            for (Op* op : ops) {
                // Those further back in their streams end when their turn comes.
                if (op->stream->queue.front() == op) complete(*op, 1);
            }
        }
    }
    reap(comm->number);
    return {};
}

void Engine::Model::leave_comms(ClientId id) {
    for (auto setup = setups_.begin(); setup != setups_.end();) {
        std::erase_if(setup->second.ranks,
                      [id](const auto& entry) { return entry.second.client == id; });
        setup = setup->second.ranks.empty() ? setups_.erase(setup) : std::next(setup);
    }
    for (auto comm = comms_.begin(); comm != comms_.end();) {
        const std::uint64_t number = comm->first;
        for (auto& [rank, member] : comm->second->members) {
            if (member.client == id) member.left = true;
        }
        ++comm;
        reap(number);
    }
}

// Forgets a communicator that every rank has left; operations still under way keep what they need
// of it.
void Engine::Model::reap(std::uint64_t comm_number) {
    const auto found = comms_.find(comm_number);
    const auto& members = found->second->members;
    const bool empty = std::all_of(members.begin(), members.end(),
                                   [](const auto& entry) { return entry.second.left; });
    if (!empty) return;
    found->second->rendezvous.clear();
    comms_.erase(found);
}

// ---- rendezvous ----

std::string Engine::Model::check_meeting(ClientId id, const Stream& stream,
                                         const Request& request) const {
    const auto found = comms_.find(request.comm_key);
    if (found == comms_.end()) return unknown_comm(request);
    const Comm& comm = *found->second;
    const auto member = comm.members.find(request.rank);
    if (member == comm.members.end() || member->second.client != id || member->second.left) {
        return unknown_comm(request);
    }
    if (member->second.device != stream.context->device) {
        return "stream on device " + std::to_string(stream.context->device) + ", rank " +
               std::to_string(request.rank) + " on device " + std::to_string(member->second.device);
    }
    if (request.participants < 1 || request.participants > comm.size) {
        return "rendezvous of " + std::to_string(request.participants) + " in a communicator of " +
               std::to_string(comm.size);
    }
    if (request.link_bytes > kMaxLinkBytes)
        return "link_bytes above " + std::to_string(kMaxLinkBytes);
    const auto meeting = comm.rendezvous.find(request.rendezvous);
    if (meeting == comm.rendezvous.end()) return {};
    if (meeting->second->participants != request.participants) {
        return "rendezvous " + std::to_string(request.rendezvous) + " is of " +
               std::to_string(meeting->second->participants) + ", not " +
               std::to_string(request.participants);
    }
    const auto& parties = meeting->second->parties;
    const bool twice = std::any_of(parties.begin(), parties.end(), [&request](const auto& party) {
        return party.rank == request.rank;
    });
    if (twice || parties.size() == request.participants) {
        return "rank " + std::to_string(request.rank) + " is too many in rendezvous " +
               std::to_string(request.rendezvous);
    }
    return {};
}

void Engine::Model::join_meeting(Op& op, const Request& request) {
    const std::shared_ptr<Comm>& comm = comms_.at(request.comm_key);
    auto& meeting = comm->rendezvous[request.rendezvous];
    if (!meeting) {
        meeting = std::make_shared<Rendezvous>();
        meeting->comm = comm;
        meeting->number = request.rendezvous;
        meeting->participants = request.participants;
    }
    // Ranks agree on the bytes; if they do not, the largest share decides how long the link is
    // busy.
    meeting->bytes_left = std::max(meeting->bytes_left, static_cast<double>(request.link_bytes));
    meeting->parties.push_back(Rendezvous::Party{request.rank, &op});
    std::deque<Op*>& queue = comm->members.at(request.rank).queue;
    if (queue.empty() || queue.back() != &op) queue.push_back(&op);
    op.meetings.push_back(Op::Meeting{meeting, request.rank});
}

bool Engine::Model::first_in_comms(const Op& op) const {
    return std::all_of(op.meetings.begin(), op.meetings.end(), [&op](const Op::Meeting& meeting) {
        return meeting.rendezvous->comm->members.at(meeting.rank).queue.front() == &op;
    });
}

bool Engine::Model::aborted(const Op& op) const {
    return std::any_of(op.meetings.begin(), op.meetings.end(), [](const Op::Meeting& meeting) {
        return meeting.rendezvous->comm->aborted;
    });
}

bool Engine::Model::meetings_over(const Op& op) const {
    return std::all_of(op.meetings.begin(), op.meetings.end(),
                       [](const Op::Meeting& meeting) { return meeting.rendezvous->over; });
}

// The operation has become resident: where it was the last, the transfer begins.
void Engine::Model::arrive(Op& op) {
    for (const Op::Meeting& part : op.meetings) {
        Rendezvous& meeting = *part.rendezvous;
        ++meeting.resident;
        if (meeting.broken || meeting.resident < meeting.participants) continue;
        meeting.transferring = true;
        const int devices_a_node = settings_.devices / settings_.nodes;
        const int first_node = meeting.parties.front().op->stream->context->device / devices_a_node;
        meeting.between_nodes =
            std::any_of(meeting.parties.begin(), meeting.parties.end(), [&](const auto& party) {
                return party.op->stream->context->device / devices_a_node != first_node;
            });
        meeting.latency_left_ns = static_cast<double>(
            meeting.between_nodes ? settings_.node_latency_ns : settings_.latency_ns);
        for (const auto& party : meeting.parties) {
            if (party.op->transfer_start_ns == 0) party.op->transfer_start_ns = time_ns_;
        }
        Link& link = links_[link_key(meeting)];
        touch(link);
        link.transfers.push_back(part.rendezvous);
    }
}

bool Engine::Model::staged(const Rendezvous& meeting) {
    return !meeting.broken && meeting.resident == meeting.participants &&
           std::all_of(meeting.parties.begin(), meeting.parties.end(), [](const auto& party) {
               return party.op != nullptr && (!party.op->notify || party.op->acked);
           });
}

// Where all have what they bring on the table, each may make its result while the bytes travel.
void Engine::Model::tell_staged(const Rendezvous& meeting) {
    if (!staged(meeting)) return;
    for (const auto& party : meeting.parties) {
        Op& op = *party.op;
        const bool all =
            std::all_of(op.meetings.begin(), op.meetings.end(),
                        [](const Op::Meeting& part) { return staged(*part.rendezvous); });
        if (op.staged || !op.notify || !all) continue;
        op.staged = true;
        Notice notice{};
        notice.kind = NoticeKind::kStaged;
        notice.op = op.id;
        notice.time_ns = time_ns_;
        notices_(op.stream->client, notice);
    }
}

void Engine::Model::check_over(Rendezvous& meeting) {
    if (!meeting.transferred || meeting.broken || meeting.over) return;
    const bool acked =
        std::all_of(meeting.parties.begin(), meeting.parties.end(),
                    [](const auto& party) { return !party.op->notify || party.op->acked; });
    if (!acked) return;
    meeting.over = true;
    meeting.comm->rendezvous.erase(meeting.number);
    for (const auto& party : meeting.parties) touch(device_of(*party.op));
}

// Takes an ending operation out of its rendezvous and out of its communicators' order.
void Engine::Model::leave_meetings(Op& op) {
    for (const Op::Meeting& part : op.meetings) {
        Rendezvous& meeting = *part.rendezvous;
        for (auto& party : meeting.parties) {
            if (party.op == &op) party.op = nullptr;
        }
        if (!meeting.over) meeting.broken = true;
        if (meeting.transferring) {
            const auto link = links_.find(link_key(meeting));
            touch(link->second);
            std::erase(link->second.transfers, part.rendezvous);
            meeting.transferring = false;
        }
        std::deque<Op*>& queue = meeting.comm->members.at(part.rank).queue;
        std::erase(queue, &op);
        if (!queue.empty()) list(*queue.front()->stream);
    }
    op.meetings.clear();
}

// ---- links ----

std::uint64_t Engine::Model::link_key(const Rendezvous& meeting) const {
    // Communicators are numbered from 1.
    return (settings_.shared_link ? 0 : meeting.comm->number) |
           (meeting.between_nodes ? kNetwork : 0);
}

void Engine::Model::touch(Link& link) {
    const double elapsed_ns = static_cast<double>(time_ns_ - link.settled_ns);
    for (const auto& meeting : link.transfers) {
        if (meeting->rate <= 0) continue;
        const bool phase_ends = meeting->end_ns <= time_ns_;
        double& left =
            meeting->latency_left_ns > 0 ? meeting->latency_left_ns : meeting->bytes_left;
        left = phase_ends ? 0 : std::max(0.0, left - meeting->rate * elapsed_ns);
        if (phase_ends) meeting->rate = 0;  // that of the next phase is set by reschedule()
    }
    link.settled_ns = time_ns_;
    link.dirty = true;
}

void Engine::Model::touch_links() {
    for (auto& [key, link] : links_) touch(link);
}

void Engine::Model::reschedule(Link& link) {
    touch(link);
    link.dirty = false;
    const std::vector<std::shared_ptr<Rendezvous>> before = link.transfers;
    for (const auto& meeting : before) {
        if (meeting->latency_left_ns > 0 || meeting->bytes_left > 0) continue;
        std::erase(link.transfers, meeting);
        meeting->transferring = false;
        meeting->transferred = true;
        check_over(*meeting);
    }
    const bool stalls = settings_.sharing == Sharing::kTimeslice &&
                        settings_.timeslice_comm == TimesliceComm::kStall;
    // Ranks that share a device have its slices by turns; one of them there is enough.
    const auto moves = [this, stalls](const Rendezvous& meeting) {
        std::map<int, bool> devices;
        for (const Rendezvous::Party& party : meeting.parties) {
            const Context& context = *party.op->stream->context;
            devices[context.device] = devices[context.device] || scheduled(context);
        }
        return !stalls || std::all_of(devices.begin(), devices.end(),
                                      [](const auto& device) { return device.second; });
    };
    const auto flowing = std::count_if(
        link.transfers.begin(), link.transfers.end(),
        [&moves](const auto& meeting) { return meeting->latency_left_ns <= 0 && moves(*meeting); });
    const bool network = !link.transfers.empty() && link.transfers.front()->between_nodes &&
                         settings_.node_link_gbps > 0;
    const double bytes_per_ns = (network ? settings_.node_link_gbps : settings_.link_gbps) / 8.0 /
                                static_cast<double>(std::max<std::ptrdiff_t>(flowing, 1));
    link.next_ns = kNever;
    for (const auto& meeting : link.transfers) {
        const bool latency = meeting->latency_left_ns > 0;
        const double rate = latency ? 1.0 : bytes_per_ns;
        meeting->rate = moves(*meeting) ? rate : 0;
        const double left = latency ? meeting->latency_left_ns : meeting->bytes_left;
        meeting->end_ns = end_of(time_ns_, left, meeting->rate);
        link.next_ns = std::min(link.next_ns, meeting->end_ns);
    }
}

}  // namespace simgpu
