// SPDX-License-Identifier: Apache-2.0
// Life cycle of a communicator; see comm.hpp. No data of collectives here.
#include "comm.hpp"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <unordered_map>

#include "device.hpp"
#include "profiler.hpp"
#include "report.hpp"

using simgpu::nccl::device;
using simgpu::nccl::fail;
using simgpu::nccl::mix;

namespace {

// The host that this process says it is on: this machine, or what NCCL_HOSTID says. As the vendor's
// library, read once; ranks on one device are refused only where they say the same. With
// NCCL_MULTI_RANK_GPU_ENABLE, of 2.30.3 and later, each rank counts as a host of its own.
std::uint64_t host(int rank) {
    static const std::uint64_t named = [] {
        std::uint64_t hash = 0;
        const char* const text = std::getenv("NCCL_HOSTID");
        for (const char* at = text ? text : ""; *at != '\0'; ++at) {
            hash = mix(hash, static_cast<unsigned char>(*at));
        }
        return hash;
    }();
    static const bool several = [] {
        const char* const text = std::getenv("NCCL_MULTI_RANK_GPU_ENABLE");
        return NCCL_VERSION_CODE >= NCCL_VERSION(2, 30, 3) && text && std::strcmp(text, "1") == 0;
    }();
    return several ? mix(named, static_cast<std::uint64_t>(rank) + 1) : named;
}

ncclResult_t join_result(int status, const ncclComm& comm) {
    switch (status) {
        case SIMGPU_OK:
            return ncclSuccess;
        case SIMGPU_DUPLICATE_DEVICE:
            return fail(ncclInvalidUsage,
                        "Duplicate GPU detected: rank %d and another rank both on CUDA device %d",
                        comm.rank(), comm.device());
        case SIMGPU_BAD_RANK:
            return fail(ncclInvalidUsage,
                        "rank %d of %d is taken already, or the ranks disagree about the size",
                        comm.rank(), comm.ranks());
        case SIMGPU_ABORTED:
            return fail(ncclInternalError, "initialisation of rank %d was aborted", comm.rank());
        case SIMGPU_INVALID:
            return fail(ncclInvalidArgument, "rank %d of %d on device %d cannot be", comm.rank(),
                        comm.ranks(), comm.device());
        default:
            return fail(ncclSystemError, "rank %d has no connection to the device server",
                        comm.rank());
    }
}

}  // namespace

ncclComm::ncclComm(std::uint64_t key, int rank, int ranks, int device, bool blocking)
    : key_(key),
      rank_(rank),
      ranks_(ranks),
      device_(device),
      blocking_(blocking),
      sent_(static_cast<std::size_t>(ranks)),
      received_(static_cast<std::size_t>(ranks)) {}

ncclComm::~ncclComm() { leave(); }

ncclResult_t ncclComm::join() {
    const simgpu::nccl::Device* const driver = ::device();
    if (!driver) {
        return ncclUnhandledCudaError;
    }
    const char* const folder = driver->data_directory();
    if (!folder) {
        return fail(ncclSystemError, "the virtual GPU has no data folder");
    }
    exchange_ = std::make_unique<simgpu::nccl::Exchange>(folder, key_, rank_, ranks_);
    if (ranks_ > 1) {
        const int status = driver->comm_init(key_, static_cast<std::uint32_t>(rank_),
                                             static_cast<std::uint32_t>(ranks_), device_,
                                             host(rank_), &abort_flag_, &number_);
        const ncclResult_t result = join_result(status, *this);
        if (result != ncclSuccess) {
            return result;
        }
    }
    profiler_ = simgpu::nccl::CommProfiler::open(key_, rank_, ranks_);
    const std::lock_guard lock(mutex_);
    joined_ = true;
    return ncclSuccess;
}

// A communicator that lives only for the moment in which all ranks are in it.
ncclResult_t ncclComm::meet(std::uint64_t key) {
    if (ranks_ == 1) {
        return ncclSuccess;
    }
    std::uint64_t number = 0;
    const int status = ::device()->comm_init(key, static_cast<std::uint32_t>(rank_),
                                             static_cast<std::uint32_t>(ranks_), device_,
                                             host(rank_), &abort_flag_, &number);
    const ncclResult_t result = join_result(status, *this);
    if (result == ncclSuccess) {
        ::device()->comm_destroy(number, static_cast<std::uint32_t>(rank_));
    }
    return result;
}

ncclResult_t ncclComm::gather(std::uint64_t salt, const std::vector<int>& mine,
                              std::vector<std::vector<int>>* all) {
    const std::uint64_t before = mix(mix(key_, salt), 0x6265666f72652121);
    const std::uint64_t after = mix(mix(key_, salt), 0x6166746572212121);
    const auto path = [&](int rank) {
        char name[64];
        std::snprintf(name, sizeof(name), "/nccl-%016llx.%d",
                      static_cast<unsigned long long>(before), rank);
        return std::string(::device()->data_directory()) + name;
    };
    const std::string own = path(rank_);
    std::FILE* file = std::fopen(own.c_str(), "wbe");
    if (!file) {
        return fail(ncclSystemError, "cannot write %s", own.c_str());
    }
    const bool written = std::fwrite(mine.data(), sizeof(int), mine.size(), file) == mine.size();
    if (std::fclose(file) != 0 || !written) {
        unlink(own.c_str());
        return fail(ncclSystemError, "cannot write %s", own.c_str());
    }
    ncclResult_t result = meet(before);
    all->assign(static_cast<std::size_t>(ranks_), std::vector<int>(mine.size()));
    for (int rank = 0; rank < ranks_ && result == ncclSuccess; ++rank) {
        std::vector<int>& values = (*all)[static_cast<std::size_t>(rank)];
        file = std::fopen(path(rank).c_str(), "rbe");
        if (!file || std::fread(values.data(), sizeof(int), values.size(), file) != values.size()) {
            result = fail(ncclSystemError, "cannot read %s", path(rank).c_str());
        }
        if (file) {
            std::fclose(file);
        }
    }
    // Nobody's file goes before everybody has read it.
    if (result == ncclSuccess) {
        result = meet(after);
    }
    unlink(own.c_str());
    return result;
}

ncclResult_t ncclComm::async_result() const {
    const ncclResult_t error = async_error_.load();
    if (error != ncclSuccess) {
        return error;
    }
    const std::lock_guard lock(mutex_);
    return jobs_ > 0 ? ncclInProgress : ncclSuccess;
}

ncclResult_t ncclComm::usable() const {
    const ncclResult_t state = async_result();
    if (state == ncclInProgress) {
        return fail(ncclInvalidArgument,
                    "communicator used before its previous operation returned ncclSuccess");
    }
    if (state != ncclSuccess) {
        return fail(state, "communicator used after an asynchronous error");
    }
    if (finalized_) {
        return fail(ncclInvalidUsage, "communicator used after ncclCommFinalize");
    }
    const std::lock_guard lock(mutex_);
    if (revoked_) {
        return fail(ncclInvalidUsage, "communicator used after it was revoked");
    }
    return joined_ ? ncclSuccess
                   : fail(ncclInvalidArgument, "communicator used before its initialisation");
}

void ncclComm::set_async_error(ncclResult_t error) {
    ncclResult_t none = ncclSuccess;
    async_error_.compare_exchange_strong(none, error);
}

void ncclComm::job_begins() {
    const std::lock_guard lock(mutex_);
    ++jobs_;
}

void ncclComm::job_ends() {
    const std::lock_guard lock(mutex_);
    --jobs_;
    idle_.notify_all();
}

bool ncclComm::begin(bool collective, std::uint64_t* number, const std::vector<int>& sends,
                     const std::vector<int>& receives, std::vector<std::uint64_t>* send_sequences,
                     std::vector<std::uint64_t>* receive_sequences) {
    const std::lock_guard lock(mutex_);
    if (!joined_ || revoked_ || leaving_) {
        return false;
    }
    if (collective) {
        *number = next_collective_++;
    }
    for (const int peer : sends) {
        send_sequences->push_back(sent_[static_cast<std::size_t>(peer)]++);
    }
    for (const int peer : receives) {
        receive_sequences->push_back(received_[static_cast<std::size_t>(peer)]++);
    }
    ++in_flight_;
    return true;
}

void ncclComm::end() {
    bool tell = false;
    {
        const std::lock_guard lock(mutex_);
        --in_flight_;
        tell = leaving_ && leaves_now();
        idle_.notify_all();
    }
    if (tell) {
        leave_server();
    }
}

void ncclComm::drain() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return jobs_ == 0 && in_flight_ == 0; });
}

void ncclComm::drain_operations() {
    std::unique_lock lock(mutex_);
    idle_.wait(lock, [&] { return in_flight_ == 0; });
}

void ncclComm::revoke() {
    bool tell = false;
    {
        const std::lock_guard lock(mutex_);
        tell = joined_ && ranks_ > 1 && !revoked_ && !left_;
        revoked_ = true;
    }
    __atomic_store_n(&abort_flag_, 1, __ATOMIC_RELEASE);  // the driver waits for it
    if (tell) {
        ::device()->comm_abort(number_, static_cast<std::uint32_t>(rank_));
    }
}

void ncclComm::leave() {
    bool tell = false;
    {
        const std::lock_guard lock(mutex_);
        leaving_ = true;
        tell = leaves_now();
    }
    if (tell) {
        leave_server();
    }
}

bool ncclComm::leaves_now() {
    const bool tell = joined_ && !left_ && in_flight_ == 0 && ranks_ > 1;
    left_ = left_ || in_flight_ == 0;
    return tell;
}

void ncclComm::leave_server() {
    ::device()->comm_destroy(number_, static_cast<std::uint32_t>(rank_));
}

ncclRedOp_t ncclComm::add_operator(const UserOperator& op) {
    const std::lock_guard lock(mutex_);
    std::size_t index = 0;
    while (index < operators_.size() && operators_[index]) {
        ++index;
    }
    if (index == operators_.size()) {
        operators_.emplace_back();
    }
    operators_[index] = op;
    return static_cast<ncclRedOp_t>(static_cast<std::size_t>(ncclNumOps) + index);
}

bool ncclComm::remove_operator(ncclRedOp_t op) {
    const std::lock_guard lock(mutex_);
    const std::size_t index = static_cast<std::size_t>(op) - ncclNumOps;
    if (op < ncclNumOps || index >= operators_.size() || !operators_[index]) {
        return false;
    }
    operators_[index].reset();
    return true;
}

std::optional<ncclComm::UserOperator> ncclComm::find_operator(ncclRedOp_t op) const {
    const std::lock_guard lock(mutex_);
    const std::size_t index = static_cast<std::size_t>(op) - ncclNumOps;
    return op >= ncclNumOps && index < operators_.size() ? operators_[index] : std::nullopt;
}

namespace simgpu::nccl {
namespace {

struct Handles {
    std::mutex mutex;
    std::unordered_map<ncclComm_t, Comm> comms;
};

Handles& handles() {
    // Never destroyed: a program may hold communicators until after our exit handlers.
    static Handles* const instance = new Handles;
    return *instance;
}

}  // namespace

void publish(const Comm& comm) {
    const std::lock_guard lock(handles().mutex);
    handles().comms[comm.get()] = comm;
}

Comm find_comm(ncclComm_t handle) {
    const std::lock_guard lock(handles().mutex);
    const auto found = handles().comms.find(handle);
    return found == handles().comms.end() ? nullptr : found->second;
}

void withdraw(ncclComm_t handle) {
    Comm last;  // destroyed after the lock is released
    const std::lock_guard lock(handles().mutex);
    const auto found = handles().comms.find(handle);
    if (found != handles().comms.end()) {
        last = std::move(found->second);
        handles().comms.erase(found);
    }
}

std::uint64_t mix(std::uint64_t key, std::uint64_t value) {
    std::uint64_t state = key ^ (value + 0x9e3779b97f4a7c15 + (key << 6) + (key >> 2));
    state = (state ^ (state >> 30)) * 0xbf58476d1ce4e5b9;
    state = (state ^ (state >> 27)) * 0x94d049bb133111eb;
    return state ^ (state >> 31);
}

}  // namespace simgpu::nccl
