// SPDX-License-Identifier: Apache-2.0
// The wire between a client process (libcuda.so.1 of the virtual GPU) and the device server.
//
// One UNIX SOCK_SEQPACKET connection per client process; a packet is an array of whole Request
// (client to server) or Notice (server to client) records, at most kMaxRecords. The server owns
// time: it keeps every stream's queue, decides when each operation starts and ends, and tells the
// client. The client owns data: device memory is memory of the client process, and the effect of an
// operation (a kernel's host version, a copy, a reduction) runs in the client, in the order in
// which notices arrive, before the operation counts as complete for the program. So results are
// right whatever the timing, and timing does not depend on results.
//
// No CUDA, NCCL or Crossover header here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

namespace simgpu {

inline constexpr std::uint32_t kProtocolVersion = 2;
inline constexpr std::size_t kMaxRecords = 256;

// Names an operation: chosen by the client, strictly increasing over the whole process, never 0.
using OpId = std::uint64_t;

enum class RequestKind : std::uint32_t {
    kHello = 1,      // first record of a connection; answered by kWelcome
    kStreamCreate,   // stream, device, priority (CUDA's: lower is more urgent)
    kStreamDestroy,  // stream; work already submitted still completes
    kSubmit,         // one operation at the end of a stream's queue
    kRendezvous,     // a further rendezvous (see below) of operation `op`, before its kSubmit
    kAck,            // op: the client's part of a started operation is done
    kCommInit,       // joins communicator `comm_key`; kCommReady once all `participants` joined
    kCommAbort,      // comm, rank: all its operations in flight, on all ranks, end with status 1
    kCommDestroy,    // comm, rank: this rank leaves
};

enum class OpKind : std::uint32_t {
    kMarker = 1,  // takes no time: an event record, a fence
    kWait,        // holds its stream until operation `wait_op` of the same client is over
    kKernel,      // occupies `sm_share` of the device for `cost_ns` of device time
    kCopy,        // occupies a copy engine for `cost_ns`; overlaps with kernels
    kCollective,  // occupies `sm_share` from its start until all its rendezvous are over
    kClient,      // work of the client in stream order (host function, stream wait on a value):
                  // started, then over when acknowledged
};

struct Request {
    RequestKind kind{};
    OpKind op_kind{};
    OpId op = 0;
    // Chosen by the client, unique in the process; on kHello the process id.
    std::uint64_t stream = 0;
    std::uint64_t wait_op = 0;  // kWait; an id that is complete or unknown does not hold
    std::uint64_t cost_ns = 0;  // device time the operation would take alone on the whole device
    // CLOCK_MONOTONIC when the program made the call, or the client finished (kAck); 0: on arrival.
    std::uint64_t submit_ns = 0;
    // kCommInit: hash of the unique id; else the server's communicator number.
    std::uint64_t comm_key = 0;
    // Number of the rendezvous within the communicator; kCommInit: the host that the rank says it
    // is on. Ranks may share a device where they say different ones.
    std::uint64_t rendezvous = 0;
    std::uint64_t link_bytes = 0;    // moved over its link, algorithm factors included
    std::uint32_t participants = 0;  // ranks that must arrive; on kHello the protocol version
    std::uint32_t rank = 0;
    std::int32_t device = 0;  // physical index in the virtual machine
    std::int32_t priority = 0;
    float sm_share = 1.0F;    // part of the multiprocessors the operation can use, (0, 1]
    std::uint32_t flags = 0;  // kNotifyStart, kFill
};

// Send kStarted, and kDone only after the client's kAck. The device goes on meanwhile: after a
// kernel, copy, marker or wait, what follows starts at its nominal time, acknowledged or not, since
// effects run in the order of their notices. Only a collective (for all its ranks) and kClient are
// not over before they are acknowledged.
inline constexpr std::uint32_t kNotifyStart = 1;
// A kernel that only fills memory: the truth log counts it among the copies.
inline constexpr std::uint32_t kFill = 2;

// A rendezvous is one meeting of `participants` ranks of a communicator under one number; its
// transfer begins when the last of them has its operation resident on its device, takes latency +
// link_bytes / bandwidth (as shared), and ends for all at once. An all-reduce is one rendezvous of
// all ranks; a send/recv pair is one of two. Rendezvous numbers of a communicator below 2^32 are
// collectives in issue order, and the operations of one rank and communicator run one after the
// other whatever their streams.

enum class NoticeKind : std::uint32_t {
    kWelcome = 1,  // value = number of devices, as the machine's list counts them; text = settings,
                   // "devices=2 sharing=mps ..."
    kStarted,      // op reached the head of its stream and runs; sent only with kNotifyStart
    kDone,         // op ended at time_ns; status 0, or 1 when aborted; in the order of the stream
    kCommReady,    // value = the communicator's number; status 0, 1: duplicate device, 2: bad rank
                   // or size
    kStaged,  // all ranks' kStarted of this collective are acknowledged: what comes out is settled,
              // and there is time until kDone to make it
    kError,   // text says what was wrong with a request; a sticky device error for the client
};

// time_ns is nominal, CLOCK_MONOTONIC. A notice may arrive up to a few 100 us before it, to make up
// for the time that waking a process takes; a client that shows completion to its program holds it
// until then.
struct Notice {
    NoticeKind kind{};
    std::uint32_t status = 0;
    OpId op = 0;  // for kCommReady: the comm_key that was asked for
    std::uint64_t time_ns = 0;
    std::uint64_t value = 0;
    std::uint32_t rank = 0;
    std::uint32_t reserved = 0;
    char text[88] = {};  // zero-terminated
};

static_assert(std::is_trivially_copyable_v<Request> && sizeof(Request) == 96);
static_assert(std::is_trivially_copyable_v<Notice> && sizeof(Notice) == 128);

// Environment that scripts/simgpu-run sets for the programs it runs.
// Folder of one virtual machine: socket "server", data/, truth.jsonl.
inline constexpr const char* kEnvDir = "SIMGPU_DIR";
// Colon-separated plug-ins besides EXECUTABLE.simgpu.so.
inline constexpr const char* kEnvKernels = "SIMGPU_KERNELS";

}  // namespace simgpu
