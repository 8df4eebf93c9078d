// SPDX-License-Identifier: Apache-2.0
// The exported NCCL wrappers. They say what a collective is (communicator, bytes, kind), which job
// a communicator belongs to, and when nobody may be held. That a collective is under way is seen at
// the driver, by its kernel.
#include <type_traits>

#include "shim/gate/process.hpp"
#include "shim/inference/history.hpp"
#include "shim/real_nccl.hpp"

#define CX_EXPORT extern "C" [[gnu::visibility("default")]]

using crossover::ThreadState;

namespace {

constexpr std::size_t type_bytes(ncclDataType_t type) noexcept {
    switch (type) {
        case ncclFloat16:
        case ncclBfloat16:
            return 2;
        case ncclInt32:
        case ncclUint32:
        case ncclFloat32:
            return 4;
        case ncclInt64:
        case ncclUint64:
        case ncclFloat64:
            return 8;
        default:
            return 1;  // int8, uint8 and the 8-bit floats
    }
}

enum class Operation : std::uint64_t {
    kAllReduce = 1,
    kBroadcast,
    kReduce,
    kAllGather,
    kReduceScatter,
    kAllToAll,
    kGather,
    kScatter,
    kSend,
    kReceive,
};

// Between its construction and destruction the thread is inside NCCL. What is asked for adds up,
// because one kernel may carry all calls of a group.
class NcclCall {
  public:
    NcclCall() noexcept : thread_(crossover::thread_state()) {
        // What NCCL's profiler has told so far belongs to calls that were not intercepted.
        if (thread_.nccl_depth++ == 0) {
            thread_.call = {};
        }
        ++thread_.inside_nccl;
    }
    NcclCall(Operation operation, ncclComm_t communicator, std::size_t count,
             ncclDataType_t type) noexcept
        : NcclCall() {
        crossover::CollectiveCall& call = thread_.call;
        call.communicator = crossover::mix_signature(
            call.communicator, reinterpret_cast<std::uintptr_t>(communicator));
        call.bytes += count * type_bytes(type);
        call.operation =
            crossover::mix_signature(call.operation, static_cast<std::uint64_t>(operation));
    }
    ~NcclCall() {
        --thread_.inside_nccl;
        leave(thread_);
    }
    NcclCall(const NcclCall&) = delete;
    NcclCall& operator=(const NcclCall&) = delete;

    static void leave(ThreadState& thread) noexcept {
        if (thread.nccl_depth != 0 && --thread.nccl_depth == 0) {
            thread.call = {};
        }
    }

  private:
    ThreadState& thread_;
};

// While it lives, no thread of the process is held at a gate.
class LetGo {
  public:
    LetGo() noexcept { crossover::let_go(); }
    ~LetGo() { crossover::allow(); }
    LetGo(const LetGo&) = delete;
    LetGo& operator=(const LetGo&) = delete;
};

}  // namespace

namespace {

// Calls the real function that `caller` means; NCCL's own error where there is no NCCL in the
// process.
template <class... Arguments>
ncclResult_t call_real(ncclResult_t (*crossover::RealNccl::*row)(Arguments...), const void* caller,
                       std::type_identity_t<Arguments>... arguments) noexcept {
    const crossover::RealNccl* real = crossover::real_nccl(caller);
    return real == nullptr || real->*row == nullptr ? ncclSystemError : (real->*row)(arguments...);
}

}  // namespace

#define CX_CALL_REAL(name, ...) \
    call_real(&crossover::RealNccl::name, __builtin_return_address(0) __VA_OPT__(, ) __VA_ARGS__)

// -------------------------------------------------------------------------------------------
// collectives

CX_EXPORT ncclResult_t ncclAllReduce(const void* send, void* receive, size_t count,
                                     ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                     cudaStream_t stream) {
    const NcclCall call(Operation::kAllReduce, comm, count, type);
    return CX_CALL_REAL(ncclAllReduce, send, receive, count, type, op, comm, stream);
}

CX_EXPORT ncclResult_t ncclBroadcast(const void* send, void* receive, size_t count,
                                     ncclDataType_t type, int root, ncclComm_t comm,
                                     cudaStream_t stream) {
    const NcclCall call(Operation::kBroadcast, comm, count, type);
    return CX_CALL_REAL(ncclBroadcast, send, receive, count, type, root, comm, stream);
}

CX_EXPORT ncclResult_t ncclBcast(void* buffer, size_t count, ncclDataType_t type, int root,
                                 ncclComm_t comm, cudaStream_t stream) {
    const NcclCall call(Operation::kBroadcast, comm, count, type);
    return CX_CALL_REAL(ncclBcast, buffer, count, type, root, comm, stream);
}

CX_EXPORT ncclResult_t ncclReduce(const void* send, void* receive, size_t count,
                                  ncclDataType_t type, ncclRedOp_t op, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
    const NcclCall call(Operation::kReduce, comm, count, type);
    return CX_CALL_REAL(ncclReduce, send, receive, count, type, op, root, comm, stream);
}

CX_EXPORT ncclResult_t ncclAllGather(const void* send, void* receive, size_t count,
                                     ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    const NcclCall call(Operation::kAllGather, comm, count, type);
    return CX_CALL_REAL(ncclAllGather, send, receive, count, type, comm, stream);
}

CX_EXPORT ncclResult_t ncclReduceScatter(const void* send, void* receive, size_t count,
                                         ncclDataType_t type, ncclRedOp_t op, ncclComm_t comm,
                                         cudaStream_t stream) {
    const NcclCall call(Operation::kReduceScatter, comm, count, type);
    return CX_CALL_REAL(ncclReduceScatter, send, receive, count, type, op, comm, stream);
}

#if NCCL_VERSION_CODE >= NCCL_VERSION(2, 28, 0)
CX_EXPORT ncclResult_t ncclAlltoAll(const void* send, void* receive, size_t count,
                                    ncclDataType_t type, ncclComm_t comm, cudaStream_t stream) {
    const NcclCall call(Operation::kAllToAll, comm, count, type);
    return CX_CALL_REAL(ncclAlltoAll, send, receive, count, type, comm, stream);
}

CX_EXPORT ncclResult_t ncclGather(const void* send, void* receive, size_t count,
                                  ncclDataType_t type, int root, ncclComm_t comm,
                                  cudaStream_t stream) {
    const NcclCall call(Operation::kGather, comm, count, type);
    return CX_CALL_REAL(ncclGather, send, receive, count, type, root, comm, stream);
}

CX_EXPORT ncclResult_t ncclScatter(const void* send, void* receive, size_t count,
                                   ncclDataType_t type, int root, ncclComm_t comm,
                                   cudaStream_t stream) {
    const NcclCall call(Operation::kScatter, comm, count, type);
    return CX_CALL_REAL(ncclScatter, send, receive, count, type, root, comm, stream);
}
#endif

CX_EXPORT ncclResult_t ncclSend(const void* send, size_t count, ncclDataType_t type, int peer,
                                ncclComm_t comm, cudaStream_t stream) {
    const NcclCall call(Operation::kSend, comm, count, type);
    return CX_CALL_REAL(ncclSend, send, count, type, peer, comm, stream);
}

CX_EXPORT ncclResult_t ncclRecv(void* receive, size_t count, ncclDataType_t type, int peer,
                                ncclComm_t comm, cudaStream_t stream) {
    const NcclCall call(Operation::kReceive, comm, count, type);
    return CX_CALL_REAL(ncclRecv, receive, count, type, peer, comm, stream);
}

CX_EXPORT ncclResult_t ncclGroupStart() {
    const ncclResult_t result = CX_CALL_REAL(ncclGroupStart);
    if (result == ncclSuccess) {
        ThreadState& thread = crossover::thread_state();
        if (thread.nccl_depth++ == 0) {
            thread.call = {};
        }
    }
    return result;
}

CX_EXPORT ncclResult_t ncclGroupEnd() {
    // Between group start and end the program may launch kernels of its own; in here only NCCL
    // does.
    ThreadState& thread = crossover::thread_state();
    ++thread.inside_nccl;
    const ncclResult_t result = CX_CALL_REAL(ncclGroupEnd);
    --thread.inside_nccl;
    NcclCall::leave(thread);
    return result;
}

// -----------------------------------------------------------------------------------------
// communicators

CX_EXPORT ncclResult_t ncclCommInitRank(ncclComm_t* comm, int ranks, ncclUniqueId id, int rank) {
    crossover::communicator_made(&id, sizeof id, ranks);
    return CX_CALL_REAL(ncclCommInitRank, comm, ranks, id, rank);
}

CX_EXPORT ncclResult_t ncclCommInitRankConfig(ncclComm_t* comm, int ranks, ncclUniqueId id,
                                              int rank, ncclConfig_t* config) {
    crossover::communicator_made(&id, sizeof id, ranks);
    return CX_CALL_REAL(ncclCommInitRankConfig, comm, ranks, id, rank, config);
}

CX_EXPORT ncclResult_t ncclCommInitRankScalable(ncclComm_t* comm, int ranks, int rank, int id_count,
                                                ncclUniqueId* ids, ncclConfig_t* config) {
    if (ids != nullptr && id_count > 0) {
        crossover::communicator_made(&ids[0], sizeof ids[0], ranks);
    }
    return CX_CALL_REAL(ncclCommInitRankScalable, comm, ranks, rank, id_count, ids, config);
}

CX_EXPORT ncclResult_t ncclCommAbort(ncclComm_t comm) {
    const LetGo nobody_waits;
    return CX_CALL_REAL(ncclCommAbort, comm);
}

CX_EXPORT ncclResult_t ncclCommDestroy(ncclComm_t comm) {
    const LetGo nobody_waits;
    return CX_CALL_REAL(ncclCommDestroy, comm);
}

CX_EXPORT ncclResult_t ncclCommFinalize(ncclComm_t comm) {
    const LetGo nobody_waits;
    return CX_CALL_REAL(ncclCommFinalize, comm);
}
