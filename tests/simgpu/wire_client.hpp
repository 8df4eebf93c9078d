// SPDX-License-Identifier: Apache-2.0
// A client of the device server for tests and benchmarks: the bare protocol, no CUDA and no data.
// Programs under test use the virtual GPU's libcuda.so.1 instead.
#pragma once

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <ctime>
#include <deque>
#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "protocol.hpp"

namespace simgpu {

// CLOCK_MONOTONIC, ns.
inline std::uint64_t monotonic_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * 1'000'000'000 +
           static_cast<std::uint64_t>(now.tv_nsec);
}

// Not thread-safe. Every wait is bounded; failures throw std::runtime_error.
class WireClient {
  public:
    // Connects to the server in `dir`, without a hello.
    explicit WireClient(const std::string& dir) {
        sockaddr_un address{};
        address.sun_family = AF_UNIX;
        const std::string path = dir + "/server";
        if (path.size() >= sizeof(address.sun_path))
            throw std::runtime_error(path + ": too long for a socket");
        path.copy(address.sun_path, sizeof(address.sun_path) - 1);
        fd_ = socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0);
        const auto* generic = static_cast<const sockaddr*>(static_cast<const void*>(&address));
        if (fd_ < 0 || connect(fd_, generic, sizeof(address)) != 0) {
            const std::string why = std::strerror(errno);
            if (fd_ >= 0) close(fd_);
            throw std::runtime_error(path + ": " + why);
        }
    }
    ~WireClient() { close(fd_); }
    WireClient(const WireClient&) = delete;
    WireClient& operator=(const WireClient&) = delete;

    int fd() const { return fd_; }

    // Says hello and returns the welcome.
    Notice hello() {
        Request request;
        request.kind = RequestKind::kHello;
        request.stream = static_cast<std::uint64_t>(getpid());
        request.participants = kProtocolVersion;
        send(request);
        return expect(NoticeKind::kWelcome, 0);
    }

    void send(const Request& request) { send_bytes(&request, sizeof(request)); }

    // At most kMaxRecords.
    void send(const std::vector<Request>& requests) {
        send_bytes(requests.data(), requests.size() * sizeof(Request));
    }

    void send_bytes(const void* data, std::size_t size) {
        if (::send(fd_, data, size, MSG_NOSIGNAL) != static_cast<ssize_t>(size)) {
            throw std::runtime_error(std::string("send: ") + std::strerror(errno));
        }
    }

    void create_stream(std::uint64_t stream, int device, int priority = 0) {
        Request request;
        request.kind = RequestKind::kStreamCreate;
        request.stream = stream;
        request.device = device;
        request.priority = priority;
        send(request);
    }

    // Joins a communicator and returns its number, once all ranks have.
    std::uint64_t join(std::uint64_t key, std::uint32_t ranks, std::uint32_t rank, int device) {
        Request request;
        request.kind = RequestKind::kCommInit;
        request.comm_key = key;
        request.participants = ranks;
        request.rank = rank;
        request.device = device;
        send(request);
        return expect(NoticeKind::kCommReady, key).value;
    }

    // A new operation, stamped with the time; the caller completes and sends it.
    Request operation(OpKind kind, std::uint64_t stream, std::uint64_t cost_ns = 0) {
        Request request;
        request.kind = RequestKind::kSubmit;
        request.op_kind = kind;
        request.op = ++last_op_;
        request.stream = stream;
        request.cost_ns = cost_ns;
        request.submit_ns = monotonic_ns();
        return request;
    }

    // The next notice, nothing if none came within `timeout`; throws if the server hung up.
    std::optional<Notice> next(std::chrono::milliseconds timeout = kTimeout) {
        const auto deadline = std::chrono::steady_clock::now() + timeout;
        while (received_.empty()) {
            const auto left = std::chrono::duration_cast<std::chrono::milliseconds>(
                deadline - std::chrono::steady_clock::now());
            pollfd wait{fd_, POLLIN, 0};
            const int ready =
                poll(&wait, 1, static_cast<int>(std::max<std::int64_t>(left.count(), 0)));
            if (ready == 0) return std::nullopt;
            if (ready < 0 && errno != EINTR)
                throw std::runtime_error(std::string("poll: ") + std::strerror(errno));
            if (ready > 0) receive();
        }
        const Notice notice = received_.front();
        received_.pop_front();
        return notice;
    }

    // Acknowledges a started operation.
    void ack(OpId op) {
        Request request;
        request.kind = RequestKind::kAck;
        request.op = op;
        request.submit_ns = monotonic_ns();
        send(request);
    }

    // Reads on, acknowledging what starts, until a notice of this kind and operation, and returns
    // at its time (the server sends it a little early); any kError meanwhile throws, other notices
    // are dropped.
    Notice expect(NoticeKind kind, OpId op) {
        for (;;) {
            const std::optional<Notice> notice = next();
            if (!notice)
                throw std::runtime_error("no notice of kind " +
                                         std::to_string(static_cast<int>(kind)));
            if (notice->kind == NoticeKind::kStarted) ack(notice->op);
            if (notice->kind == kind && notice->op == op) {
                hold_until(notice->time_ns);
                return *notice;
            }
            if (notice->kind == NoticeKind::kError) throw std::runtime_error(notice->text);
        }
    }

    static constexpr std::chrono::milliseconds kTimeout{20'000};

  private:
    // Waits for the last stretch, shorter than a sleep can be. Bounded: no server runs ahead
    // further.
    static void hold_until(std::uint64_t time_ns) {
        constexpr std::uint64_t kMostNs = 10'000'000;
        const std::uint64_t latest_ns = monotonic_ns() + kMostNs;
        for (std::uint64_t now_ns = monotonic_ns(); now_ns < std::min(time_ns, latest_ns);)
            now_ns = monotonic_ns();
    }

    void receive() {
        std::array<Notice, kMaxRecords> buffer;
        const ssize_t got = recv(fd_, buffer.data(), sizeof(buffer), 0);
        if (got == 0) throw std::runtime_error("the server hung up");
        if (got < 0) throw std::runtime_error(std::string("recv: ") + std::strerror(errno));
        const auto count = static_cast<std::size_t>(got) / sizeof(Notice);
        received_.insert(received_.end(), buffer.begin(),
                         buffer.begin() + static_cast<std::ptrdiff_t>(count));
    }

    int fd_ = -1;
    OpId last_op_ = 0;
    std::deque<Notice> received_;
};

}  // namespace simgpu
