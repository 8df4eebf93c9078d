// SPDX-License-Identifier: Apache-2.0
// Streams, multiprocessors, time slices and copy engines of the timed model. What a rendezvous and
// a link do is in engine_comm.cpp.
#include <algorithm>
#include <cmath>

#include "engine_model.hpp"

namespace simgpu {
namespace {

// Progress below this is rounding of the fluid model, far under a nanosecond.
constexpr double kEpsilon = 1e-6;

bool on_multiprocessors(OpKind kind) {
    return kind == OpKind::kKernel || kind == OpKind::kCollective;
}

}  // namespace

std::uint64_t end_of(std::uint64_t from_ns, double amount, double rate) {
    constexpr double kFarthest = 4e18;
    if (rate <= 0) return kNever;
    const double wait_ns = std::ceil(amount / rate - kEpsilon);
    if (wait_ns <= 0) return from_ns;
    return wait_ns < kFarthest ? from_ns + static_cast<std::uint64_t>(wait_ns) : kNever;
}

// ---- time ----

std::uint64_t Engine::Model::next_event_ns() const {
    std::uint64_t next = timers_.empty() ? kNever : timers_.top().at_ns;
    for (const Device& device : devices_) next = std::min(next, device.next_ns);
    for (const auto& [key, link] : links_) next = std::min(next, link.next_ns);
    return next;
}

void Engine::Model::advance(std::uint64_t now_ns) {
    for (std::uint64_t next = next_event_ns(); next <= now_ns && next != kNever;
         next = next_event_ns())
        step(next);
}

void Engine::Model::step(std::uint64_t at_ns) {
    time_ns_ = std::max(time_ns_, at_ns);
    while (!timers_.empty() && timers_.top().at_ns <= time_ns_) {
        const Timer timer = timers_.top();
        timers_.pop();
        Op* op = find(timer.client, timer.op);
        if (op == nullptr) continue;
        if (op->state == Op::State::kLaunching) {
            launched(*op);
        } else if (op->kind == OpKind::kCopy && op->state == Op::State::kRunning) {
            complete(*op, 0);
        }
    }
    for (Device& device : devices_) {
        if (device.next_ns <= time_ns_) touch(device);
    }
    for (auto& [key, link] : links_) {
        if (link.next_ns <= time_ns_) touch(link);
    }
    drain();
}

// Follows the consequences of what just happened until nothing more changes at this instant.
void Engine::Model::drain() {
    const auto dirty = [](const auto& part) { return part.dirty; };
    for (;;) {
        if (!worklist_.empty()) {
            Stream& stream = *worklist_.front();
            worklist_.pop_front();
            stream.listed = false;
            visit(stream);
            continue;
        }
        const auto device = std::find_if(devices_.begin(), devices_.end(), dirty);
        if (device != devices_.end()) {
            reschedule(*device);
            continue;
        }
        const auto link = std::find_if(links_.begin(), links_.end(),
                                       [](const auto& entry) { return entry.second.dirty; });
        if (link == links_.end()) return;
        reschedule(link->second);
        if (link->second.transfers.empty()) links_.erase(link);
    }
}

Op* Engine::Model::find(ClientId id, OpId op) {
    const auto client = clients_.find(id);
    if (client == clients_.end()) return nullptr;
    const auto found = client->second.ops.find(op);
    return found == client->second.ops.end() ? nullptr : found->second.get();
}

Device& Engine::Model::device_of(const Op& op) {
    return devices_[static_cast<std::size_t>(op.stream->context->device)];
}

void Engine::Model::set_timer(const Op& op, std::uint64_t at_ns) {
    timers_.push(Timer{at_ns, next_timer_++, op.stream->client, op.id});
}

// ---- streams ----

void Engine::Model::list(Stream& stream) {
    if (stream.listed) return;
    stream.listed = true;
    worklist_.push_back(&stream);
}

void Engine::Model::visit(Stream& stream) {
    if (!stream.queue.empty()) {
        Op& head = *stream.queue.front();
        if (head.state == Op::State::kQueued && !head.started) begin(head);
    } else if (stream.destroyed && stream.unreported.empty()) {
        clients_.at(stream.client).streams.erase(stream.id);
    }
}

void Engine::Model::begin(Op& op) {
    switch (op.kind) {
        case OpKind::kWait:
            if (Op* awaited = find(op.stream->client, op.wait_op);
                awaited != nullptr && awaited->state != Op::State::kComplete) {
                awaited->waiters.push_back(op.stream);
                break;
            }
            [[fallthrough]];
        case OpKind::kMarker:
            start(op);
            complete(op, 0);
            break;
        case OpKind::kClient:
            op.state = Op::State::kWithClient;
            start(op);
            break;
        case OpKind::kKernel:
        case OpKind::kCopy:
            launch(op);
            break;
        case OpKind::kCollective:
            if (aborted(op)) {
                complete(op, 1);
            } else if (first_in_comms(op)) {
                launch(op);
            }
            break;
    }
}

void Engine::Model::launch(Op& op) {
    std::uint64_t at_ns = std::max(time_ns_, op.submit_ns + settings_.launch_ns);
    // What it had to wait for: another stream or operation if it could not begin on arrival, else
    // its own stream.
    const std::uint64_t after_ns = time_ns_ > op.arrival_ns ? time_ns_ : op.stream->last_end_ns;
    if (after_ns != 0) at_ns = std::max(at_ns, after_ns + settings_.gap_ns);
    op.state = Op::State::kLaunching;
    if (on_multiprocessors(op.kind)) ++op.stream->context->launching;
    set_timer(op, at_ns);
}

void Engine::Model::launched(Op& op) {
    Device& device = device_of(op);
    op.state = Op::State::kReady;
    if (op.kind == OpKind::kCopy) {
        if (device.copies_running < settings_.copy_engines) {
            start_copy(op);
        } else {
            device.copies_waiting.push_back(&op);
        }
        return;
    }
    touch(device);
    --op.stream->context->launching;
    ++op.stream->context->runnable;
    device.sm_ops.push_back(&op);
}

void Engine::Model::start(Op& op) {
    op.started = true;
    op.start_ns = time_ns_;
    if (!op.notify) return;
    Notice notice{};
    notice.kind = NoticeKind::kStarted;
    notice.op = op.id;
    notice.time_ns = time_ns_;
    notices_(op.stream->client, notice);
}

void Engine::Model::start_copy(Op& op) {
    ++device_of(op).copies_running;
    op.state = Op::State::kRunning;
    start(op);
    set_timer(op, time_ns_ + op.cost_ns);
}

// The operation is over for the device: what follows it begins. Its kDone may have to wait for the
// client, whose effects run in the order of the notices anyway; so a client that is late costs no
// device time.
void Engine::Model::complete(Op& op, std::uint32_t status) {
    if (op.started) record_truth(op);
    withdraw(op);
    op.state = Op::State::kComplete;
    op.status = status;
    op.end_ns = time_ns_;
    Stream& stream = *op.stream;
    stream.queue.pop_front();
    stream.unreported.push_back(&op);
    stream.last_end_ns = time_ns_;
    list(stream);
    for (Stream* waiter : op.waiters) list(*waiter);
    report(stream);
}

// Sends the kDone of what is complete and acknowledged, in the order of the stream.
void Engine::Model::report(Stream& stream) {
    while (!stream.unreported.empty()) {
        const Op& op = *stream.unreported.front();
        if (op.notify && !op.acked && op.started && op.status == 0) return;
        stream.unreported.pop_front();
        Notice notice{};
        notice.kind = NoticeKind::kDone;
        notice.op = op.id;
        notice.status = op.status;
        notice.time_ns = op.end_ns;
        notices_(stream.client, notice);
        clients_.at(stream.client).ops.erase(op.id);
    }
    if (stream.destroyed) list(stream);
}

// Takes the operation off whatever it occupies.
void Engine::Model::withdraw(Op& op) {
    Device& device = device_of(op);
    const Op::State state = op.state;
    op.state = Op::State::kQueued;
    if (on_multiprocessors(op.kind) && state == Op::State::kLaunching) {
        touch(device);
        --op.stream->context->launching;
    } else if (on_multiprocessors(op.kind) &&
               (state == Op::State::kReady || state == Op::State::kRunning)) {
        touch(device);
        std::erase(device.sm_ops, &op);
        --op.stream->context->runnable;
    } else if (op.kind == OpKind::kCopy && state == Op::State::kReady) {
        std::erase(device.copies_waiting, &op);
    } else if (op.kind == OpKind::kCopy && state == Op::State::kRunning) {
        --device.copies_running;
        if (!device.copies_waiting.empty()) {
            Op& next = *device.copies_waiting.front();
            device.copies_waiting.pop_front();
            start_copy(next);
        }
    }
    if (op.kind == OpKind::kCollective) leave_meetings(op);
}

void Engine::Model::record_truth(const Op& op) {
    if (!on_multiprocessors(op.kind) && op.kind != OpKind::kCopy) return;
    TruthRecord record;
    record.client = op.stream->client;
    record.device = op.stream->context->device;
    record.stream = op.stream->id;
    record.op = op.id;
    record.kind = op.fill ? OpKind::kCopy : op.kind;
    record.submit_ns = op.submit_ns;
    record.start_ns = op.start_ns;
    record.end_ns = time_ns_;
    record.transfer_start_ns = op.transfer_start_ns;
    if (!op.meetings.empty()) record.comm = op.meetings.front().rendezvous->comm->number;
    truth_(record);
}

// ---- multiprocessors ----

// Brings the device's progress up to now and marks it for rescheduling; to be called before any
// change to it.
void Engine::Model::touch(Device& device) {
    const double elapsed_ns = static_cast<double>(time_ns_ - device.settled_ns);
    for (Op* op : device.sm_ops) {
        if (op->rate <= 0) continue;
        op->remaining_ns =
            op->end_ns <= time_ns_ ? 0 : std::max(0.0, op->remaining_ns - op->rate * elapsed_ns);
    }
    device.settled_ns = time_ns_;
    device.dirty = true;
}

void Engine::Model::reschedule(Device& device) {
    touch(device);
    device.dirty = false;
    // Whenever something ends the device is dirty again and its successors come first: they may
    // keep the slice.
    if (finish_kernels(device)) return;
    choose_context(device);
    if (run_collectives(device)) return;
    allocate(device);
    if (settings_.timeslice_comm == TimesliceComm::kStall) touch_links();
}

bool Engine::Model::finish_kernels(Device& device) {
    bool ended = false;
    const std::vector<Op*> ops = device.sm_ops;
    for (Op* op : ops) {
        if (op->kind != OpKind::kKernel || op->rate <= 0 || op->end_ns > time_ns_) continue;
        complete(*op, 0);
        ended = true;
    }
    return ended;
}

// Makes collectives resident that may be, and ends those whose rendezvous are over. True if one
// ended.
bool Engine::Model::run_collectives(Device& device) {
    bool ended = false;
    const std::vector<Op*> ops = device.sm_ops;
    for (Op* op : ops) {
        if (op->kind != OpKind::kCollective || !scheduled(*op->stream->context)) continue;
        if (op->state == Op::State::kReady) {
            op->state = Op::State::kRunning;
            start(*op);
            arrive(*op);
        }
        if (meetings_over(*op)) {
            complete(*op, 0);
            ended = true;
        }
    }
    return ended;
}

bool Engine::Model::scheduled(const Context& context) const {
    if (settings_.sharing == Sharing::kMps) return true;
    const Device& device = devices_[static_cast<std::size_t>(context.device)];
    return device.current == &context && time_ns_ >= device.switch_until_ns;
}

void Engine::Model::choose_context(Device& device) {
    if (settings_.sharing == Sharing::kMps) return;
    Context* const current = device.current;
    const bool others = std::any_of(
        device.contexts.begin(), device.contexts.end(),
        [current](const Context* context) { return context != current && context->runnable > 0; });
    // Work that follows within the launch gap keeps a slice, but does not bring one about.
    const bool holds = current != nullptr && (current->runnable > 0 || current->launching > 0);
    if (holds) {
        if (device.slice_end_ns == 0) device.slice_end_ns = time_ns_ + settings_.slice_ns;
        const bool newly_contended = others && !device.contended;
        device.contended = others;
        if (!others) return;
        if (newly_contended && device.slice_end_ns <= time_ns_) {
            // It ran alone past the end of its slice, in slice after slice.
            const std::uint64_t passed = (time_ns_ - device.slice_end_ns) / settings_.slice_ns + 1;
            device.slice_end_ns += passed * settings_.slice_ns;
        }
        if (device.slice_end_ns > time_ns_) return;
    } else if (!others) {
        device.contended = false;
        device.slice_end_ns = 0;
        return;
    }
    const auto at = std::find(device.contexts.begin(), device.contexts.end(), current);
    auto next = at;
    do {
        next = next == device.contexts.end() || next + 1 == device.contexts.end()
                   ? device.contexts.begin()
                   : next + 1;
    } while (*next == current || (*next)->runnable == 0);
    switch_to(device, *next);
}

void Engine::Model::switch_to(Device& device, Context* context) {
    device.switch_until_ns =
        time_ns_ + (device.current == nullptr ? 0 : settings_.context_switch_ns);
    device.current = context;
    device.slice_end_ns = device.switch_until_ns + settings_.slice_ns;
    device.contended = std::any_of(
        device.contexts.begin(), device.contexts.end(),
        [context](const Context* other) { return other != context && other->runnable > 0; });
}

// Shares the multiprocessors out: collectives first, then kernels by urgency, max-min fair among
// equals.
void Engine::Model::allocate(Device& device) {
    std::vector<Op*> kernels;
    double left = 1.0;
    for (Op* op : device.sm_ops) {
        op->rate = 0;
        op->end_ns = kNever;
        if (!scheduled(*op->stream->context)) continue;
        if (op->kind == OpKind::kCollective) {
            left -= op->share;
        } else {
            kernels.push_back(op);
        }
    }
    std::stable_sort(kernels.begin(), kernels.end(), [](const Op* a, const Op* b) {
        if (a->stream->priority != b->stream->priority)
            return a->stream->priority < b->stream->priority;
        return a->share < b->share;
    });
    device.next_ns = kNever;
    for (auto level = kernels.begin(); level != kernels.end();) {
        const auto level_end = std::find_if(level, kernels.end(), [level](const Op* op) {
            return op->stream->priority != (*level)->stream->priority;
        });
        for (; level != level_end; ++level) {
            if (left <= kEpsilon) break;
            Op& op = **level;
            const double part = std::min(op.share, left / static_cast<double>(level_end - level));
            left -= part;
            if (!op.started) {
                op.state = Op::State::kRunning;
                start(op);
            }
            op.rate = part / op.share;
            op.end_ns = end_of(time_ns_, op.remaining_ns, op.rate);
            device.next_ns = std::min(device.next_ns, op.end_ns);
        }
        level = level_end;
    }
    if (settings_.sharing == Sharing::kTimeslice) {
        if (device.switch_until_ns > time_ns_)
            device.next_ns = std::min(device.next_ns, device.switch_until_ns);
        if (device.contended) device.next_ns = std::min(device.next_ns, device.slice_end_ns);
    }
}

}  // namespace simgpu
