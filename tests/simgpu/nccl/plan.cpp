// SPDX-License-Identifier: Apache-2.0
// The effect of one fused launch on one communicator; see plan.hpp. Runs on the driver's executor
// thread, so nothing here blocks or calls CUDA.
#include "plan.hpp"

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "report.hpp"

namespace simgpu::nccl {
namespace {

constexpr std::size_t kAlignment = 64;

bool reduces(Kind kind) {
    return kind == Kind::kAllReduce || kind == Kind::kReduce || kind == Kind::kReduceScatter;
}

const char* type_name(ncclDataType_t type, bool sign_matters) {
    switch (type) {
        case ncclInt8:
            return sign_matters ? "i8" : "u8";
        case ncclUint8:
            return "u8";
        case ncclInt32:
            return sign_matters ? "i32" : "u32";
        case ncclUint32:
            return "u32";
        case ncclInt64:
            return sign_matters ? "i64" : "u64";
        case ncclUint64:
            return "u64";
        case ncclFloat16:
            return "f16";
        case ncclFloat32:
            return "f32";
        case ncclFloat64:
            return "f64";
        case ncclBfloat16:
            return "bf16";
        case ncclFloat8e4m3:
            return "f8e4m3";
        default:
            return "f8e5m2";
    }
}

// What kernels' names begin with: NCCL's own since 2.19, or SIMGPU_NCCL_KERNELS, for a release that
// nobody has seen yet.
const std::string& kernel_family() {
    static const std::string* const family = [] {
        const char* const text = std::getenv("SIMGPU_NCCL_KERNELS");
        return new std::string(text && *text ? text : "ncclDevKernel_");
    }();
    return *family;
}

std::string kernel_name_of(const Task& task) {
    std::string name = kernel_family();
    switch (task.kind) {
        case Kind::kAllReduce:
            name += "AllReduce";
            break;
        case Kind::kBroadcast:
            name += "Broadcast";
            break;
        case Kind::kReduce:
            name += "Reduce";
            break;
        case Kind::kAllGather:
            name += "AllGather";
            break;
        case Kind::kReduceScatter:
            name += "ReduceScatter";
            break;
        case Kind::kSend:
        case Kind::kReceive:
            name += "SendRecv";
            break;
    }
    if (reduces(task.kind)) {
        const bool integral = task.type <= ncclUint64;
        const ReduceKind kind = task.reduction.kind;
        // Averages of floats are scaled sums. The sign only matters to comparisons and divisions.
        const bool divides = kind == ReduceKind::kAverage && integral;
        const bool compares = kind == ReduceKind::kMin || kind == ReduceKind::kMax;
        name += kind == ReduceKind::kSum    ? "_Sum_"
                : kind == ReduceKind::kProd ? "_Prod_"
                : compares                  ? "_MinMax_"
                : divides                   ? "_SumPostDiv_"
                                            : "_PreMulSum_";
        name += type_name(task.type, divides || compares);
    }
    if (task.kind != Kind::kSend && task.kind != Kind::kReceive) {
        name += "_RING_LL";
    }
    return "_Z" + std::to_string(name.size()) + name + "24ncclDevKernelArgsStorageILm4096EE";
}

std::uint64_t message_number(int from, int to, std::uint64_t sequence) {
    // 16 bits a rank and 30 of sequence: enough to tell apart what can be in flight at once.
    return kFirstMessageNumber | (static_cast<std::uint64_t>(from) & 0xffff) << 46 |
           (static_cast<std::uint64_t>(to) & 0xffff) << 30 | (sequence & 0x3fffffff);
}

}  // namespace

struct Plan::Instance {
    std::shared_ptr<Plan> plan;
    std::uint64_t number = 0;
    std::vector<std::uint64_t> send_sequences;
    std::vector<std::uint64_t> receive_sequences;
    std::vector<SimgpuRendezvous> rendezvous;
    std::vector<std::vector<const void*>> inputs;     // of each collective, by rank, once found
    std::vector<std::vector<unsigned char>> results;  // made ahead; empty: not yet
    bool failed = false;
};

// What the driver calls. Nothing may be thrown into it.
struct Callbacks {
    static int prepare(void* user, SimgpuSubmission* submission) {
        const auto& plan = *static_cast<std::shared_ptr<Plan>*>(user);
        ncclComm& comm = *plan->comm_;
        try {
            auto instance = std::make_unique<Plan::Instance>();
            instance->plan = plan;
            const auto ranks = static_cast<std::uint32_t>(comm.ranks());
            const bool meets = !plan->collectives_.empty() && ranks > 1;
            instance->send_sequences.reserve(plan->sends_.size());
            instance->receive_sequences.reserve(plan->receives_.size());
            instance->rendezvous.reserve(1 + plan->sends_.size() + plan->receives_.size());
            if (!comm.begin(meets, &instance->number, plan->send_peers_, plan->receive_peers_,
                            &instance->send_sequences, &instance->receive_sequences)) {
                return 1;
            }
            if (meets) {
                instance->rendezvous.push_back({instance->number, plan->link_total_, ranks, 0});
            }
            for (std::size_t i = 0; i < plan->sends_.size(); ++i) {
                const Task& task = plan->sends_[i];
                instance->rendezvous.push_back(
                    {message_number(comm.rank(), task.peer, instance->send_sequences[i]),
                     task.bytes(), 2, 0});
            }
            for (std::size_t i = 0; i < plan->receives_.size(); ++i) {
                const Task& task = plan->receives_[i];
                instance->rendezvous.push_back(
                    {message_number(task.peer, comm.rank(), instance->receive_sequences[i]),
                     task.bytes(), 2, 0});
            }
            submission->comm = comm.number();
            submission->rank = static_cast<std::uint32_t>(comm.rank());
            submission->rendezvous_count = static_cast<std::uint32_t>(instance->rendezvous.size());
            submission->rendezvous = instance->rendezvous.data();
            submission->on_start = start;
            submission->on_staged = staged;
            submission->on_done = done;
            submission->instance = instance.release();
            return 0;
        } catch (const std::bad_alloc&) {
            return 1;
        }
    }

    static void start(void* data) {
        auto& instance = *static_cast<Plan::Instance*>(data);
        instance.plan->start(instance);
    }

    static void staged(void* data) {
        auto& instance = *static_cast<Plan::Instance*>(data);
        try {
            instance.plan->staged(instance);
        } catch (const std::bad_alloc&) {
            instance.inputs.clear();  // done() finds them and makes the results in place
            instance.results.clear();
        }
    }

    static void done(void* data, int aborted) {
        const std::unique_ptr<Plan::Instance> instance(static_cast<Plan::Instance*>(data));
        // Kept past the instance: its end may be the communicator's.
        const Comm comm = instance->plan->comm_;
        instance->plan->done(*instance, aborted != 0);
        comm->end();
    }

    static void release(void* user) { delete static_cast<std::shared_ptr<Plan>*>(user); }
};

Plan::Plan(Comm comm, std::vector<Task> tasks) : comm_(std::move(comm)) {
    kernel_name_ = kernel_name_of(tasks.front());
    const auto align = [](std::size_t bytes) {
        return (bytes + kAlignment - 1) / kAlignment * kAlignment;
    };
    signature_ = 1;
    for (const Task& task : tasks) {
        const bool self = task.peer == comm_->rank();
        if (task.kind == Kind::kSend) {
            (self ? self_sends_ : sends_).push_back(task);
        } else if (task.kind == Kind::kReceive) {
            (self ? self_receives_ : receives_).push_back(task);
        } else {
            collectives_.push_back(task);
            offsets_.push_back(staged_total_);
            staged_total_ += align(staged_bytes(task));
            link_total_ += link_bytes(task);
            for (const std::uint64_t value :
                 {static_cast<std::uint64_t>(task.kind), static_cast<std::uint64_t>(task.count),
                  static_cast<std::uint64_t>(task.type),
                  static_cast<std::uint64_t>(task.reduction.kind),
                  static_cast<std::uint64_t>(task.peer)}) {
                signature_ = mix(signature_, value);
            }
        }
    }
    for (const Task& task : sends_) {
        send_peers_.push_back(task.peer);
    }
    for (const Task& task : receives_) {
        receive_peers_.push_back(task.peer);
    }
}

ncclResult_t Plan::make(Comm comm, std::vector<Task> tasks, std::shared_ptr<Plan>* plan) {
    std::shared_ptr<Plan> fresh(new Plan(std::move(comm), std::move(tasks)));
    bool matched = fresh->self_sends_.size() == fresh->self_receives_.size();
    for (std::size_t i = 0; matched && i < fresh->self_sends_.size(); ++i) {
        matched = fresh->self_sends_[i].bytes() == fresh->self_receives_[i].bytes();
    }
    if (!matched) {
        return fail(ncclInvalidUsage,
                    "sends and receives of rank %d to itself do not match in the group",
                    fresh->comm_->rank());
    }
    *plan = std::move(fresh);
    return ncclSuccess;
}

SimgpuCollective Plan::launch_argument(const std::shared_ptr<Plan>& plan) {
    SimgpuCollective argument{};
    argument.version = SIMGPU_COLLECTIVE_VERSION;
    argument.user = new std::shared_ptr<Plan>(plan);
    argument.prepare = Callbacks::prepare;
    argument.release = Callbacks::release;
    return argument;
}

std::size_t Plan::staged_bytes(const Task& task) const {
    const auto ranks = static_cast<std::size_t>(comm_->ranks());
    return task.kind == Kind::kReduceScatter ? task.bytes() * ranks : task.bytes();
}

// Bytes over each link of the ring, as the ring algorithm needs them.
std::uint64_t Plan::link_bytes(const Task& task) const {
    const auto ranks = static_cast<std::uint64_t>(comm_->ranks());
    const std::uint64_t bytes = task.bytes();
    switch (task.kind) {
        case Kind::kAllReduce:
            return 2 * (ranks - 1) * bytes / ranks;
        case Kind::kAllGather:
        case Kind::kReduceScatter:
            return (ranks - 1) * bytes;  // of ranks * bytes in all
        default:
            return bytes;
    }
}

void Plan::stage(const Task& task, unsigned char* target) const {
    if (task.kind == Kind::kBroadcast && task.peer != comm_->rank()) {
        return;
    }
    const std::size_t bytes = staged_bytes(task);
    if (reduces(task.kind) && needs_scale(task.reduction, task.type)) {
        Reduction reduction = task.reduction;
        if (task.device_scalar) {
            std::memcpy(&reduction.scalar, task.device_scalar, element_size(task.type));
        }
        scale(reduction, task.type, bytes / element_size(task.type), comm_->ranks(), task.send,
              target);
    } else {
        std::memcpy(target, task.send, bytes);
    }
}

bool Plan::has_result(const Task& task) const {
    return task.kind != Kind::kReduce || task.peer == comm_->rank();
}

std::size_t Plan::result_bytes(const Task& task) const {
    return task.kind == Kind::kAllGather ? task.bytes() * static_cast<std::size_t>(comm_->ranks())
                                         : task.bytes();
}

void Plan::finish(const Task& task, const std::vector<const void*>& inputs, void* target) const {
    const std::size_t bytes = task.bytes();
    const int ranks = comm_->ranks();
    const auto own = static_cast<std::size_t>(comm_->rank());
    switch (task.kind) {
        case Kind::kReduce:
        case Kind::kAllReduce:
            combine(task.reduction, task.type, task.count, ranks, inputs.data(), target);
            return;
        case Kind::kReduceScatter: {
            std::vector<const void*> parts;
            for (const void* const input : inputs) {
                parts.push_back(static_cast<const unsigned char*>(input) + own * bytes);
            }
            combine(task.reduction, task.type, task.count, ranks, parts.data(), target);
            return;
        }
        case Kind::kAllGather:
            for (std::size_t rank = 0; rank < inputs.size(); ++rank) {
                std::memcpy(static_cast<unsigned char*>(target) + rank * bytes, inputs[rank],
                            bytes);
            }
            return;
        case Kind::kBroadcast:
            std::memcpy(target, inputs[static_cast<std::size_t>(task.peer)], bytes);
            return;
        case Kind::kSend:
        case Kind::kReceive:
            return;
    }
}

// What all ranks have put into their exchange buffers. False: they did not call the same.
bool Plan::find_inputs(Instance& instance) const {
    if (!instance.inputs.empty()) {
        return true;
    }
    std::vector<const unsigned char*> buffers;
    for (int rank = 0; rank < comm_->ranks(); ++rank) {
        const void* const buffer =
            comm_->exchange()->peer(rank, instance.number, staged_total_, signature_);
        if (!buffer) {
            warn("ranks %d and %d called different collectives (number %llu of this communicator)",
                 comm_->rank(), rank, static_cast<unsigned long long>(instance.number));
            return false;
        }
        buffers.push_back(static_cast<const unsigned char*>(buffer));
    }
    for (const std::size_t offset : offsets_) {
        std::vector<const void*>& inputs = instance.inputs.emplace_back();
        for (const unsigned char* const buffer : buffers) {
            inputs.push_back(buffer + offset);
        }
    }
    return true;
}

void Plan::start(Instance& instance) {
    if (comm_->ranks() == 1) {
        return;
    }
    if (!collectives_.empty()) {
        void* const buffer = comm_->exchange()->own(instance.number, staged_total_, signature_);
        if (buffer) {
            for (std::size_t i = 0; i < collectives_.size(); ++i) {
                stage(collectives_[i], static_cast<unsigned char*>(buffer) + offsets_[i]);
            }
        } else {
            warn("rank %d cannot make its exchange buffer of %zu bytes: %s", comm_->rank(),
                 staged_total_, std::strerror(errno));
            instance.failed = true;
        }
    }
    for (std::size_t i = 0; i < sends_.size(); ++i) {
        const Task& task = sends_[i];
        if (!comm_->exchange()->send(task.peer, instance.send_sequences[i], task.send,
                                     task.bytes())) {
            warn("rank %d cannot write its message of %zu bytes to rank %d: %s", comm_->rank(),
                 task.bytes(), task.peer, std::strerror(errno));
            instance.failed = true;
        }
    }
}

void Plan::staged(Instance& instance) const {
    if (comm_->ranks() == 1 || collectives_.empty() || instance.failed) {
        return;
    }
    if (!find_inputs(instance)) {
        instance.failed = true;
        return;
    }
    for (std::size_t i = 0; i < collectives_.size(); ++i) {
        std::vector<unsigned char>& result = instance.results.emplace_back();
        if (has_result(collectives_[i])) {
            result.resize(result_bytes(collectives_[i]));
            finish(collectives_[i], instance.inputs[i], result.data());
        }
    }
}

void Plan::done(Instance& instance, bool aborted) {
    if (aborted) {
        comm_->set_async_error(ncclRemoteError);
        return;
    }
    for (std::size_t i = 0; i < self_sends_.size(); ++i) {
        std::memmove(self_receives_[i].receive, self_sends_[i].send, self_sends_[i].bytes());
    }
    if (comm_->ranks() == 1) {
        for (const Task& task : collectives_) {
            // Only a scaled sum needs a kernel on one rank.
            stage(task, static_cast<unsigned char*>(task.receive));
        }
        return;
    }
    for (std::size_t i = 0; i < receives_.size(); ++i) {
        const Task& task = receives_[i];
        if (!comm_->exchange()->receive(task.peer, instance.receive_sequences[i], task.receive,
                                        task.bytes())) {
            warn("rank %d expected a message of %zu bytes from rank %d and got another",
                 comm_->rank(), task.bytes(), task.peer);
            instance.failed = true;
        }
    }
    if (!collectives_.empty() && !instance.failed) {
        instance.failed = !find_inputs(instance);
    }
    for (std::size_t i = 0; i < instance.inputs.size() && !instance.failed; ++i) {
        const Task& task = collectives_[i];
        if (!has_result(task)) {
            continue;
        }
        if (i < instance.results.size()) {
            std::memcpy(task.receive, instance.results[i].data(), instance.results[i].size());
        } else {
            finish(task, instance.inputs[i], task.receive);
        }
    }
    if (instance.failed) {
        comm_->set_async_error(ncclInternalError);
    }
}

}  // namespace simgpu::nccl
