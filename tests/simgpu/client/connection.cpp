// SPDX-License-Identifier: Apache-2.0
// Socket and table of operations in flight: opening, sending, waiting. The two threads are in
// executor.cpp.

#include "connection.hpp"

#include <errno.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <thread>
#include <utility>

namespace simgpu {
namespace {

constexpr int kSendBufferBytes = 1 << 20;
constexpr auto kAbortPoll = std::chrono::milliseconds(1);
constexpr auto kExitGrace = std::chrono::seconds(2);
constexpr auto kExitPoll = std::chrono::milliseconds(1);
constexpr time_t kWelcomeTimeoutSeconds = 30;

std::string errno_text(const std::string& what) { return what + ": " + std::strerror(errno); }

}  // namespace

Connection* Connection::open(const std::string& dir, std::string* error) {
    const std::string path = dir + "/server";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (path.size() >= sizeof(address.sun_path)) {
        *error = path + ": path too long for a socket";
        return nullptr;
    }
    std::memcpy(address.sun_path, path.c_str(), path.size() + 1);

    auto connection = std::unique_ptr<Connection>(new Connection);
    connection->fd_ = ::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
    if (connection->fd_ < 0) {
        *error = errno_text("socket");
        return nullptr;
    }
    auto fail = [&](const std::string& why) -> Connection* {
        *error = why;
        ::close(connection->fd_);
        return nullptr;
    };
    if (::connect(connection->fd_, reinterpret_cast<const sockaddr*>(&address), sizeof address) !=
        0)
        return fail(errno_text(path));
    ::setsockopt(connection->fd_, SOL_SOCKET, SO_SNDBUF, &kSendBufferBytes,
                 sizeof kSendBufferBytes);

    Request hello;
    hello.kind = RequestKind::kHello;
    hello.stream = static_cast<std::uint64_t>(::getpid());
    hello.participants = kProtocolVersion;
    if (!connection->send({&hello, 1})) return fail(path + ": server closed the connection");

    const timeval limit{kWelcomeTimeoutSeconds, 0};
    ::setsockopt(connection->fd_, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    Notice welcome;
    ssize_t got = 0;
    do got = ::recv(connection->fd_, &welcome, sizeof welcome, 0);
    while (got < 0 && errno == EINTR);
    if (got != static_cast<ssize_t>(sizeof welcome))
        return fail(path + ": no welcome from the server");
    if (welcome.kind == NoticeKind::kError) return fail(path + ": " + std::string(welcome.text));
    if (welcome.kind != NoticeKind::kWelcome) return fail(path + ": unexpected first notice");
    const timeval forever{0, 0};
    ::setsockopt(connection->fd_, SOL_SOCKET, SO_RCVTIMEO, &forever, sizeof forever);

    connection->device_count_ = static_cast<int>(welcome.value);
    welcome.text[sizeof welcome.text - 1] = '\0';
    connection->settings_ = welcome.text;
    connection->shown_.open(dir);
    Connection* const result = connection.release();  // from here on a thread may hold it
    if (result->start_threads()) return result;
    ::shutdown(result->fd_, SHUT_RDWR);
    *error = "cannot start a thread";
    return nullptr;
}

bool Connection::expect(OpId op, PendingOp pending) {
    const std::lock_guard lock(mutex_);
    if (health() == Health::kLost) return false;
    pending_.emplace(op, std::move(pending));
    return true;
}

bool Connection::send(std::span<const Request> requests) {
    while (!requests.empty()) {
        const auto part = requests.first(std::min(requests.size(), kMaxRecords));
        ssize_t sent = 0;
        do sent = ::send(fd_, part.data(), part.size_bytes(), MSG_NOSIGNAL);
        while (sent < 0 && errno == EINTR);
        if (sent != static_cast<ssize_t>(part.size_bytes())) {
            // The executor sees the end of the connection and fails everything in flight.
            ::shutdown(fd_, SHUT_RDWR);
            return false;
        }
        requests = requests.subspan(part.size());
    }
    return true;
}

bool Connection::complete(OpId op) const {
    const std::lock_guard lock(mutex_);
    return !pending_.contains(op);
}

bool Connection::wait(OpId op) const { return wait_all({&op, 1}); }

bool Connection::wait_all(std::span<const OpId> ops) const {
    std::unique_lock lock(mutex_);
    ++waiters_;
    for (const OpId op : ops)
        changed_.wait(lock, [&] { return !pending_.contains(op) || health() != Health::kGood; });
    --waiters_;
    return health() == Health::kGood;
}

bool Connection::wait_below(const Counter& counter, std::uint32_t limit) const {
    if (counter->load(std::memory_order_relaxed) < limit) return true;
    std::unique_lock lock(mutex_);
    ++waiters_;
    changed_.wait(lock, [&] { return *counter < limit || health() != Health::kGood; });
    --waiters_;
    return health() == Health::kGood;
}

CommStatus Connection::join(std::uint64_t key, std::uint32_t rank, std::uint32_t ranks,
                            std::int32_t device, std::uint64_t host,
                            const volatile std::uint32_t* abort_flag, std::uint64_t* comm) {
    const std::pair id{key, rank};
    std::unique_lock lock(mutex_);
    if (!joins_.try_emplace(id).second) return CommStatus::kBadRank;
    lock.unlock();

    Request request;
    request.kind = RequestKind::kCommInit;
    request.comm_key = key;
    request.rank = rank;
    request.participants = ranks;
    request.device = device;
    request.rendezvous = host;
    const bool sent = send({&request, 1});

    lock.lock();
    auto ready = [&] { return joins_[id].answered || health() != Health::kGood; };
    ++waiters_;
    bool aborted = false;
    while (sent && !ready()) {
        if (abort_flag == nullptr) {
            changed_.wait(lock, ready);
        } else if (__atomic_load_n(abort_flag, __ATOMIC_ACQUIRE) != 0) {  // set by another thread
            aborted = true;
            break;
        } else {
            changed_.wait_for(lock, kAbortPoll, ready);
        }
    }
    --waiters_;
    const Join result = joins_[id];
    joins_.erase(id);  // a late answer finds nobody and leaves the communicator again
    if (aborted) return CommStatus::kAborted;
    if (!result.answered) return CommStatus::kLost;
    if (result.status == 1) return CommStatus::kDuplicateDevice;
    if (result.status != 0) return CommStatus::kBadRank;
    *comm = result.comm;
    return CommStatus::kReady;
}

void Connection::quiesce() {
    stopping_ = true;
    ::shutdown(fd_, SHUT_RDWR);
    // Looked at again and again: a timed lock by the steady clock is pthread_mutex_clocklock, which
    // the thread sanitizer of GCC 12 does not see, so it reports the unlock.
    const auto deadline = std::chrono::steady_clock::now() + kExitGrace;
    std::unique_lock effect(effect_mutex_, std::try_to_lock);
    while (!effect.owns_lock() && std::chrono::steady_clock::now() < deadline) {
        std::this_thread::sleep_for(kExitPoll);
        effect.try_lock();
    }
    if (!shown_.write())
        std::fprintf(stderr, "simgpu: log of what was shown: %s\n", std::strerror(errno));
}

void Connection::drop_in_child() {
    ::close(fd_);
    fd_ = -1;
}

}  // namespace simgpu
