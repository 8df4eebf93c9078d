// SPDX-License-Identifier: Apache-2.0
#include "control.hpp"

#include <arpa/inet.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <stdexcept>
#include <thread>

namespace hvd {
namespace {

using Clock = std::chrono::steady_clock;

[[noreturn]] void fail(const std::string& what) {
    throw std::runtime_error(what + ": " + std::strerror(errno));
}

void send_all(int socket, const void* data, std::size_t bytes) {
    const char* at = static_cast<const char*>(data);
    while (bytes > 0) {
        const ssize_t step = send(socket, at, bytes, MSG_NOSIGNAL);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step <= 0) {
            fail("a rank is gone");
        }
        at += step;
        bytes -= static_cast<std::size_t>(step);
    }
}

void receive_all(int socket, void* data, std::size_t bytes) {
    char* at = static_cast<char*>(data);
    while (bytes > 0) {
        const ssize_t step = recv(socket, at, bytes, 0);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step <= 0) {
            errno = step == 0 ? ECONNRESET : errno;
            fail("a rank is gone");
        }
        at += step;
        bytes -= static_cast<std::size_t>(step);
    }
}

// Messages are a length and that many bytes; inside, numbers and strings one after the other.
class Writer {
  public:
    void number(std::uint64_t value) {
        const auto* const bytes = reinterpret_cast<const char*>(&value);
        buffer_.append(bytes, sizeof value);
    }
    void text(const std::string& value) {
        number(value.size());
        buffer_ += value;
    }
    void send(int socket) const {
        const std::uint64_t size = buffer_.size();
        std::string message(reinterpret_cast<const char*>(&size), sizeof size);
        message += buffer_;
        send_all(socket, message.data(), message.size());
    }

  private:
    std::string buffer_;
};

class Reader {
  public:
    explicit Reader(int socket) {
        std::uint64_t size = 0;
        receive_all(socket, &size, sizeof size);
        buffer_.resize(size);
        receive_all(socket, buffer_.data(), size);
    }
    std::uint64_t number() {
        std::uint64_t value = 0;
        std::memcpy(&value, take(sizeof value), sizeof value);
        return value;
    }
    std::string text() {
        const std::uint64_t size = number();
        return {take(size), size};
    }

  private:
    const char* take(std::size_t bytes) {
        if (bytes > buffer_.size() - at_) {
            throw std::runtime_error("a rank sent an incomplete message");
        }
        const char* const here = buffer_.data() + at_;
        at_ += bytes;
        return here;
    }
    std::string buffer_;
    std::size_t at_ = 0;
};

void prepare(int socket) {
    const int on = 1;
    setsockopt(socket, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
}

}  // namespace

Control::~Control() {
    for (const int peer : peers_) {
        close(peer);
    }
    if (listener_ >= 0) {
        close(listener_);
    }
}

int Control::listen() {
    listener_ = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_in address{};
    address.sin_family = AF_INET;
    socklen_t size = sizeof address;
    if (listener_ < 0 || bind(listener_, reinterpret_cast<sockaddr*>(&address), size) != 0 ||
        ::listen(listener_, SOMAXCONN) != 0 ||
        getsockname(listener_, reinterpret_cast<sockaddr*>(&address), &size) != 0) {
        fail("cannot listen for the other ranks");
    }
    return ntohs(address.sin_port);
}

void Control::connect(int rank, int size, const std::string& address, int port, double timeout_s) {
    rank_ = rank;
    size_ = size;
    const auto end = Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                        std::chrono::duration<double>(timeout_s));
    const auto late = [&] { return Clock::now() >= end; };
    if (rank == 0) {
        peers_.assign(static_cast<std::size_t>(size) - 1, -1);
        for (int met = 1; met < size;) {
            pollfd entry{listener_, POLLIN, 0};
            if (poll(&entry, 1, 100) <= 0) {
                if (late()) {
                    errno = ETIMEDOUT;
                    fail("only " + std::to_string(met) + " ranks came");
                }
                continue;
            }
            const int peer = accept4(listener_, nullptr, nullptr, SOCK_CLOEXEC);
            if (peer < 0) {
                continue;
            }
            prepare(peer);
            std::uint64_t from = 0;
            receive_all(peer, &from, sizeof from);
            if (from == 0 || from >= static_cast<std::uint64_t>(size) || peers_[from - 1] >= 0) {
                throw std::runtime_error("a rank came twice, or does not belong here");
            }
            peers_[from - 1] = peer;
            ++met;
        }
        return;
    }
    addrinfo hints{};
    hints.ai_family = AF_INET;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* found = nullptr;
    if (getaddrinfo(address.c_str(), std::to_string(port).c_str(), &hints, &found) != 0) {
        throw std::runtime_error("cannot resolve " + address);
    }
    int server = -1;
    while (server < 0) {
        server = socket(found->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (server >= 0 && ::connect(server, found->ai_addr, found->ai_addrlen) != 0) {
            close(server);
            server = -1;
        }
        if (server < 0 && late()) {
            freeaddrinfo(found);
            fail("rank 0 does not answer");
        }
        if (server < 0) {
            std::this_thread::sleep_for(std::chrono::milliseconds(20));
        }
    }
    freeaddrinfo(found);
    prepare(server);
    peers_.push_back(server);
    const auto own = static_cast<std::uint64_t>(rank);
    send_all(server, &own, sizeof own);
}

void Control::note(const Request& request) {
    Pending& pending = pending_[request.name];
    if (pending.ranks++ == 0) {
        pending.bytes = request.bytes;
        order_.push_back(request.name);
    } else if (pending.bytes != request.bytes) {
        throw std::runtime_error("the ranks disagree about the size of " + request.name);
    }
}

Decision Control::decide(bool stop, std::uint64_t fusion_bytes) {
    Decision decision;
    decision.stop = stop;
    std::uint64_t fused = 0;
    std::deque<std::string> left;
    for (const std::string& name : order_) {
        const Pending pending = pending_[name];
        if (pending.ranks < size_) {
            left.push_back(name);
            continue;
        }
        if (decision.groups.empty() || fused + pending.bytes > fusion_bytes) {
            decision.groups.emplace_back();
            fused = 0;
        }
        decision.groups.back().push_back(name);
        fused += pending.bytes;
        pending_.erase(name);
    }
    order_ = std::move(left);
    return decision;
}

Decision Control::negotiate(const std::vector<Request>& ready, bool stop,
                            std::uint64_t fusion_bytes) {
    Decision decision;
    if (rank_ == 0) {
        for (const Request& request : ready) {
            note(request);
        }
        for (const int peer : peers_) {
            Reader reader(peer);
            stop = reader.number() != 0 || stop;
            for (std::uint64_t left = reader.number(); left > 0; --left) {
                Request request;
                request.name = reader.text();
                request.bytes = reader.number();
                note(request);
            }
        }
        decision = decide(stop, fusion_bytes);
        Writer writer;
        writer.number(decision.stop ? 1 : 0);
        writer.number(decision.groups.size());
        for (const auto& group : decision.groups) {
            writer.number(group.size());
            for (const std::string& name : group) {
                writer.text(name);
            }
        }
        for (const int peer : peers_) {
            writer.send(peer);
        }
        return decision;
    }
    Writer writer;
    writer.number(stop ? 1 : 0);
    writer.number(ready.size());
    for (const Request& request : ready) {
        writer.text(request.name);
        writer.number(request.bytes);
    }
    writer.send(peers_[0]);
    Reader reader(peers_[0]);
    decision.stop = reader.number() != 0;
    decision.groups.resize(reader.number());
    for (auto& group : decision.groups) {
        group.resize(reader.number());
        for (std::string& name : group) {
            name = reader.text();
        }
    }
    return decision;
}

void Control::broadcast(void* data, std::size_t bytes) {
    if (rank_ != 0) {
        receive_all(peers_[0], data, bytes);
        return;
    }
    for (const int peer : peers_) {
        send_all(peer, data, bytes);
    }
}

void Control::sum(float* data, std::size_t count) {
    const std::size_t bytes = count * sizeof(float);
    if (rank_ != 0) {
        send_all(peers_[0], data, bytes);
        receive_all(peers_[0], data, bytes);
        return;
    }
    std::vector<float> theirs(count);
    for (const int peer : peers_) {
        receive_all(peer, theirs.data(), bytes);
        for (std::size_t i = 0; i < count; ++i) {
            data[i] += theirs[i];
        }
    }
    broadcast(data, bytes);
}

}  // namespace hvd
