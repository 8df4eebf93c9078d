// SPDX-License-Identifier: Apache-2.0
// The exported collectives and messages of the virtual GPU's libnccl: argument checks, then a task
// in the group.
#include <cstring>

#include "group.hpp"
#include "report.hpp"

using namespace simgpu::nccl;

namespace {

// One call on a communicator; `add` puts its tasks into the group, which is open while it runs.
template <typename Add>
ncclResult_t enqueue(const char* name, ncclComm_t handle, Add add) {
    const Comm comm = find_comm(handle);
    if (!comm) {
        return group_failed(fail(ncclInvalidArgument, "%s: invalid communicator", name));
    }
    const ncclResult_t usable = comm->usable();
    if (usable != ncclSuccess) {
        return group_failed(usable);
    }
    group_start();
    const ncclResult_t result = add(comm);
    if (result != ncclSuccess) {
        group_failed(result);
    }
    const ncclResult_t ended = group_end();
    return result != ncclSuccess ? result : ended;
}

ncclResult_t check_type(const char* name, ncclDataType_t type) {
    return element_size(type) > 0 ? ncclSuccess
                                  : fail(ncclInvalidArgument, "%s: invalid data type %d", name,
                                         static_cast<int>(type));
}

ncclResult_t check_rank(const char* name, const char* what, int rank, const Comm& comm) {
    return rank >= 0 && rank < comm->ranks()
               ? ncclSuccess
               : fail(ncclInvalidArgument, "%s: invalid %s %d (allowed: 0 to %d)", name, what, rank,
                      comm->ranks() - 1);
}

ncclResult_t check_pointer(const char* name, const char* what, const void* pointer) {
    return pointer ? ncclSuccess : fail(ncclInvalidArgument, "%s: %s is NULL", name, what);
}

ncclResult_t resolve(const char* name, const Comm& comm, ncclRedOp_t op, Task* task) {
    switch (op) {
        case ncclSum:
            task->reduction.kind = ReduceKind::kSum;
            return ncclSuccess;
        case ncclProd:
            task->reduction.kind = ReduceKind::kProd;
            return ncclSuccess;
        case ncclMin:
            task->reduction.kind = ReduceKind::kMin;
            return ncclSuccess;
        case ncclMax:
            task->reduction.kind = ReduceKind::kMax;
            return ncclSuccess;
        case ncclAvg:
            task->reduction.kind = ReduceKind::kAverage;
            return ncclSuccess;
        default:
            break;
    }
    const auto user = comm->find_operator(op);
    if (!user) {
        return fail(ncclInvalidArgument, "%s: invalid reduction operation %d", name,
                    static_cast<int>(op));
    }
    if (user->type != task->type) {
        return fail(ncclInvalidArgument, "%s: data type %d differs from the operator's %d", name,
                    static_cast<int>(task->type), static_cast<int>(user->type));
    }
    task->reduction = Reduction{ReduceKind::kPreMulSum, user->scalar};
    task->device_scalar = user->device_scalar;
    return ncclSuccess;
}

struct Call {
    Kind kind{};
    const void* send = nullptr;
    void* receive = nullptr;
    std::size_t count = 0;
    ncclDataType_t type = ncclInt8;
    ncclRedOp_t op = ncclSum;
    bool reduces = false;
    int root = 0;
    bool rooted = false;
};

ncclResult_t collective(const char* name, const Call& call, ncclComm_t handle,
                        cudaStream_t stream) {
    return enqueue(name, handle, [&](const Comm& comm) {
        Task task;
        task.kind = call.kind;
        task.send = call.send;
        task.receive = call.receive;
        task.count = call.count;
        task.type = call.type;
        task.peer = call.root;
        ncclResult_t result = check_type(name, call.type);
        if (result == ncclSuccess && call.rooted) {
            result = check_rank(name, "root", call.root, comm);
        }
        if (result == ncclSuccess && call.reduces) {
            result = resolve(name, comm, call.op, &task);
        }
        if (result != ncclSuccess || call.count == 0) {
            return result;
        }
        const bool root = call.rooted && call.root == comm->rank();
        const bool sends = call.kind != Kind::kBroadcast || root;
        const bool receives = call.kind != Kind::kReduce || root;
        if (sends) {
            result = check_pointer(name, "sendbuff", call.send);
        }
        if (result == ncclSuccess && receives) {
            result = check_pointer(name, "recvbuff", call.receive);
        }
        if (result == ncclSuccess) {
            group_add(comm, task, stream);
        }
        return result;
    });
}

ncclResult_t add_message(const char* name, const Comm& comm, Kind kind, const void* send,
                         void* receive, std::size_t count, ncclDataType_t type, int peer,
                         cudaStream_t stream) {
    ncclResult_t result = check_type(name, type);
    if (result == ncclSuccess) {
        result = check_rank(name, "peer", peer, comm);
    }
    if (result == ncclSuccess && count > 0) {
        result = kind == Kind::kSend ? check_pointer(name, "sendbuff", send)
                                     : check_pointer(name, "recvbuff", receive);
    }
    if (result == ncclSuccess) {
        Task task;
        task.kind = kind;
        task.send = send;
        task.receive = receive;
        task.count = count;
        task.type = type;
        task.peer = peer;
        group_add(comm, task, stream);
    }
    return result;
}

const void* part(const void* base, int index, std::size_t count, ncclDataType_t type) {
    return base ? static_cast<const unsigned char*>(base) +
                      static_cast<std::size_t>(index) * count * element_size(type)
                : nullptr;
}

void* part(void* base, int index, std::size_t count, ncclDataType_t type) {
    return base ? static_cast<unsigned char*>(base) +
                      static_cast<std::size_t>(index) * count * element_size(type)
                : nullptr;
}

}  // namespace

SIMGPU_NCCL_API(ncclResult_t, ncclAllReduce,
                (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                 ncclComm_t comm, cudaStream_t stream)) {
    return collective("ncclAllReduce",
                      Call{Kind::kAllReduce, send, receive, count, type, op, true, 0, false}, comm,
                      stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclReduce,
                (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                 int root, ncclComm_t comm, cudaStream_t stream)) {
    return collective("ncclReduce",
                      Call{Kind::kReduce, send, receive, count, type, op, true, root, true}, comm,
                      stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclReduceScatter,
                (const void* send, void* receive, size_t count, ncclDataType_t type, ncclRedOp_t op,
                 ncclComm_t comm, cudaStream_t stream)) {
    return collective("ncclReduceScatter",
                      Call{Kind::kReduceScatter, send, receive, count, type, op, true, 0, false},
                      comm, stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclBroadcast,
                (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                 ncclComm_t comm, cudaStream_t stream)) {
    return collective(
        "ncclBroadcast",
        Call{Kind::kBroadcast, send, receive, count, type, ncclSum, false, root, true}, comm,
        stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclBcast,
                (void* buffer, size_t count, ncclDataType_t type, int root, ncclComm_t comm,
                 cudaStream_t stream)) {
    return collective(
        "ncclBcast",
        Call{Kind::kBroadcast, buffer, buffer, count, type, ncclSum, false, root, true}, comm,
        stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclAllGather,
                (const void* send, void* receive, size_t count, ncclDataType_t type,
                 ncclComm_t comm, cudaStream_t stream)) {
    return collective("ncclAllGather",
                      Call{Kind::kAllGather, send, receive, count, type, ncclSum, false, 0, false},
                      comm, stream);
}

SIMGPU_NCCL_API(ncclResult_t, ncclSend,
                (const void* send, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t stream)) {
    return enqueue("ncclSend", comm, [&](const Comm& found) {
        return add_message("ncclSend", found, Kind::kSend, send, nullptr, count, type, peer,
                           stream);
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclRecv,
                (void* receive, size_t count, ncclDataType_t type, int peer, ncclComm_t comm,
                 cudaStream_t stream)) {
    return enqueue("ncclRecv", comm, [&](const Comm& found) {
        return add_message("ncclRecv", found, Kind::kReceive, nullptr, receive, count, type, peer,
                           stream);
    });
}

// The three below are messages in a group, as in the vendor's library.
SIMGPU_NCCL_API(ncclResult_t, ncclAlltoAll,
                (const void* send, void* receive, size_t count, ncclDataType_t type,
                 ncclComm_t comm, cudaStream_t stream)) {
    return enqueue("ncclAlltoAll", comm, [&](const Comm& found) {
        ncclResult_t result = ncclSuccess;
        for (int rank = 0; rank < found->ranks() && result == ncclSuccess; ++rank) {
            result = add_message("ncclAlltoAll", found, Kind::kSend, part(send, rank, count, type),
                                 nullptr, count, type, rank, stream);
            if (result == ncclSuccess) {
                result = add_message("ncclAlltoAll", found, Kind::kReceive, nullptr,
                                     part(receive, rank, count, type), count, type, rank, stream);
            }
        }
        return result;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclGather,
                (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                 ncclComm_t comm, cudaStream_t stream)) {
    return enqueue("ncclGather", comm, [&](const Comm& found) {
        ncclResult_t result = check_rank("ncclGather", "root", root, found);
        if (result == ncclSuccess) {
            result = add_message("ncclGather", found, Kind::kSend, send, nullptr, count, type, root,
                                 stream);
        }
        for (int rank = 0; rank < found->ranks() && result == ncclSuccess && root == found->rank();
             ++rank) {
            result = add_message("ncclGather", found, Kind::kReceive, nullptr,
                                 part(receive, rank, count, type), count, type, rank, stream);
        }
        return result;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclScatter,
                (const void* send, void* receive, size_t count, ncclDataType_t type, int root,
                 ncclComm_t comm, cudaStream_t stream)) {
    return enqueue("ncclScatter", comm, [&](const Comm& found) {
        ncclResult_t result = check_rank("ncclScatter", "root", root, found);
        for (int rank = 0; rank < found->ranks() && result == ncclSuccess && root == found->rank();
             ++rank) {
            result = add_message("ncclScatter", found, Kind::kSend, part(send, rank, count, type),
                                 nullptr, count, type, rank, stream);
        }
        if (result == ncclSuccess) {
            result = add_message("ncclScatter", found, Kind::kReceive, nullptr, receive, count,
                                 type, root, stream);
        }
        return result;
    });
}

SIMGPU_NCCL_API(ncclResult_t, ncclRedOpCreatePreMulSum,
                (ncclRedOp_t * op, void* scalar, ncclDataType_t type,
                 ncclScalarResidence_t residence, ncclComm_t handle)) {
    const char* const name = "ncclRedOpCreatePreMulSum";
    const Comm comm = find_comm(handle);
    if (!comm) {
        return fail(ncclInvalidArgument, "%s: invalid communicator", name);
    }
    ncclResult_t result = comm->usable();
    if (result == ncclSuccess) {
        result = check_pointer(name, "op", op);
    }
    if (result == ncclSuccess) {
        result = check_pointer(name, "scalar", scalar);
    }
    if (result == ncclSuccess) {
        result = check_type(name, type);
    }
    if (result != ncclSuccess) {
        return result;
    }
    ncclComm::UserOperator user{type, 0, nullptr};
    if (residence == ncclScalarHostImmediate) {
        std::memcpy(&user.scalar, scalar, element_size(type));
    } else if (residence == ncclScalarDevice) {
        user.device_scalar = scalar;
    } else {
        return fail(ncclInvalidArgument, "%s: invalid residence %d", name,
                    static_cast<int>(residence));
    }
    *op = comm->add_operator(user);
    return ncclSuccess;
}

SIMGPU_NCCL_API(ncclResult_t, ncclRedOpDestroy, (ncclRedOp_t op, ncclComm_t handle)) {
    const Comm comm = find_comm(handle);
    if (!comm || !comm->remove_operator(op)) {
        return fail(ncclInvalidArgument, "ncclRedOpDestroy: no such operator (%d) or communicator",
                    static_cast<int>(op));
    }
    return ncclSuccess;
}
