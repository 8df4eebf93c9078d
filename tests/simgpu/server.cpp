// SPDX-License-Identifier: Apache-2.0
// The device server's loop: reads what arrived, carries it out in the order of the calls behind it,
// lets the model catch up with the clock, sends the notices. It waits in epoll only, never on a
// client.
#include "server.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/epoll.h>
#include <sys/file.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "device_list.hpp"

namespace simgpu {
namespace {

constexpr std::size_t kMaxQueued = 65'536;  // notices a client may be behind: 8 MiB
constexpr int kPacketsPerRound = 16;        // of one client, so that others get their turn
constexpr std::uint64_t kFlushNs = 200'000'000;
constexpr std::uint64_t kNsPerSecond = 1'000'000'000;

// Tags of epoll entries; a connection has two, see tag_of().
constexpr std::uint64_t kListener = 0;
constexpr std::uint64_t kTimer = 1;
constexpr std::uint64_t kSignals = 2;
constexpr std::uint64_t kFirstClient = 4;

std::uint64_t tag_of(ClientId id, bool process) {
    return kFirstClient + id * 2 + (process ? 1 : 0);
}

std::uint64_t now_ns() {
    timespec now{};
    clock_gettime(CLOCK_MONOTONIC, &now);
    return static_cast<std::uint64_t>(now.tv_sec) * kNsPerSecond +
           static_cast<std::uint64_t>(now.tv_nsec);
}

std::string errno_text() { return std::strerror(errno); }

}  // namespace

void Fd::reset(int fd) {
    if (fd_ >= 0) close(fd_);
    fd_ = fd;
}

Server::Server(const ServerConfig& config)
    : config_(config),
      engine_(
          config.engine,
          [this](ClientId id, const Notice& notice) {
              const auto found = connections_.find(id);
              if (found != connections_.end()) queue(found->second, notice);
          },
          [this](const TruthRecord& record) {
              if (!config_.truth_log) return;
              if (!log_.pending()) flush_due_ns_ = now_ns() + kFlushNs;
              log_.add(record, log_pids_[record.client]);
          }) {}

Server::~Server() {
    if (listener_.valid()) unlink(socket_path_.c_str());
}

// ---- start ----

bool Server::start(std::string& error) {
    epoll_.reset(epoll_create1(EPOLL_CLOEXEC));
    timer_.reset(timerfd_create(CLOCK_MONOTONIC, TFD_NONBLOCK | TFD_CLOEXEC));
    sigset_t set;
    sigemptyset(&set);
    for (const int signal : {SIGTERM, SIGINT, SIGHUP}) sigaddset(&set, signal);
    sigprocmask(SIG_BLOCK, &set, nullptr);
    signals_.reset(signalfd(-1, &set, SFD_NONBLOCK | SFD_CLOEXEC));
    if (!epoll_.valid() || !timer_.valid() || !signals_.valid()) {
        error = "cannot set up the event loop: " + errno_text();
        return false;
    }
    if (!lock_folder(error)) return false;
    const std::string data = config_.dir + "/data";
    if (mkdir(data.c_str(), 0700) != 0 && errno != EEXIST) {
        error = data + ": " + errno_text();
        return false;
    }
    if (config_.truth_log && !log_.open(config_.dir + "/truth.jsonl")) {
        error = config_.dir + "/truth.jsonl: " + errno_text();
        return false;
    }
    if (!write_device_list(error) || !open_socket(error)) return false;
    if (!watch(listener_.get(), kListener, EPOLLIN) || !watch(timer_.get(), kTimer, EPOLLIN) ||
        !watch(signals_.get(), kSignals, EPOLLIN)) {
        error = "epoll: " + errno_text();
        return false;
    }
    return true;
}

// One server per folder; the lock file carries its process id for whoever wants to stop it.
bool Server::lock_folder(std::string& error) {
    const std::string path = config_.dir + "/server.lock";
    lock_.reset(open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
    if (!lock_.valid()) {
        error = path + ": " + errno_text();
        return false;
    }
    if (flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
        error = "--dir " + config_.dir + ": a server runs there already";
        return false;
    }
    const std::string pid = std::to_string(getpid()) + "\n";
    if (ftruncate(lock_.get(), 0) != 0 || write(lock_.get(), pid.data(), pid.size()) < 0) {
        error = path + ": " + errno_text();
        return false;
    }
    return true;
}

// The machine's folder names its devices, so a machine that starts there again has the same ones.
bool Server::write_device_list(std::string& error) const {
    char* resolved = realpath(config_.dir.c_str(), nullptr);
    const std::string machine = resolved != nullptr ? resolved : config_.dir;
    std::free(resolved);
    const int instances = config_.engine.instances;
    const std::string path = config_.dir + "/" + kDeviceListFile;
    const std::string text = format_device_list(
        make_device_list(machine, config_.engine.devices / std::max(1, instances), instances));
    const Fd file(open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644));
    if (!file.valid() ||
        write(file.get(), text.data(), text.size()) != static_cast<ssize_t>(text.size())) {
        error = path + ": " + errno_text();
        return false;
    }
    return true;
}

bool Server::open_socket(std::string& error) {
    socket_path_ = config_.dir + "/server";
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    if (socket_path_.size() >= sizeof(address.sun_path)) {
        error = fmt::format("--dir {}: the path is longer than {} characters", config_.dir,
                            sizeof(address.sun_path) - sizeof("/server"));
        return false;
    }
    socket_path_.copy(address.sun_path, sizeof(address.sun_path) - 1);
    unlink(socket_path_.c_str());  // of a server that was killed: the lock says that none runs
    Fd listener(socket(AF_UNIX, SOCK_SEQPACKET | SOCK_NONBLOCK | SOCK_CLOEXEC, 0));
    const auto* bound = static_cast<const sockaddr*>(static_cast<const void*>(&address));
    if (!listener.valid() || bind(listener.get(), bound, sizeof(address)) != 0) {
        error = socket_path_ + ": " + errno_text();
        return false;
    }
    listener_ = std::move(listener);
    if (listen(listener_.get(), SOMAXCONN) != 0) {
        error = socket_path_ + ": " + errno_text();
        return false;
    }
    return true;
}

bool Server::watch(int fd, std::uint64_t tag, std::uint32_t events) {
    epoll_event event{};
    event.events = events;
    event.data.u64 = tag;
    return epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

// ---- the loop ----

int Server::run() {
    std::array<epoll_event, 64> events{};
    for (;;) {
        arm_timer();
        const int count =
            epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), wait_ms());
        if (count < 0 && errno != EINTR) {
            std::fprintf(stderr, "simgpu-server: epoll_wait: %s\n", std::strerror(errno));
            return 1;
        }
        for (int i = 0; i < count; ++i) {
            const epoll_event& event = events[static_cast<std::size_t>(i)];
            const std::uint64_t tag = event.data.u64;
            if (tag == kListener) {
                accept_clients();
            } else if (tag == kTimer) {
                std::uint64_t expirations = 0;
                if (read(timer_.get(), &expirations, sizeof(expirations)) > 0) learn_lateness();
            } else if (tag == kSignals) {
                log_.flush();
                return 0;
            } else {
                const ClientId id = (tag - kFirstClient) / 2;
                const auto found = connections_.find(id);
                if (found == connections_.end()) continue;
                if ((tag - kFirstClient) % 2 == 1) {
                    to_drop_.push_back(id);
                    continue;
                }
                if ((event.events & EPOLLOUT) != 0) found->second.writable = true;
                if ((event.events & (EPOLLIN | EPOLLHUP | EPOLLERR)) != 0)
                    receive(id, found->second);
            }
        }
        carry_out_arrivals();
        do {
            engine_.advance(now_ns() + lead_ns_);
            send_all();
            for (std::vector<ClientId> ids; !to_drop_.empty();) {
                ids.swap(to_drop_);
                for (const ClientId id : ids) drop(id);
                send_all();
                ids.clear();
            }
        } while (engine_.next_event_ns() <= now_ns() + lead_ns_);
        if (log_.pending() && now_ns() >= flush_due_ns_) log_.flush();
    }
}

void Server::arm_timer() {
    const std::uint64_t next = engine_.next_event_ns();
    const std::uint64_t at_ns =
        next == kNever ? 0 : std::max<std::uint64_t>(next, lead_ns_ + 1) - lead_ns_;
    if (at_ns == armed_ns_) return;
    itimerspec when{};
    when.it_value.tv_sec = static_cast<time_t>(at_ns / kNsPerSecond);
    when.it_value.tv_nsec = static_cast<long>(at_ns % kNsPerSecond);
    if (timerfd_settime(timer_.get(), TFD_TIMER_ABSTIME, &when, nullptr) == 0) armed_ns_ = at_ns;
}

// A process that sleeps until a given time wakes late: this one, and then, on a busy machine rather
// later, the client that a notice wakes. So the model runs ahead of the clock by three times this
// server's own lateness; clients hold a notice that reaches them early until it is due.
void Server::learn_lateness() {
    constexpr int kSamples = 16;
    const std::uint64_t now = now_ns();
    if (armed_ns_ != 0 && now > armed_ns_) {
        lateness_samples_ = std::min(lateness_samples_ + 1, kSamples);
        lateness_ns_ += (static_cast<double>(now - armed_ns_) - lateness_ns_) / lateness_samples_;
        lead_ns_ = std::min(static_cast<std::uint64_t>(3 * lateness_ns_), config_.max_lead_ns);
    }
    armed_ns_ = 0;
}

int Server::wait_ms() const {
    if (!log_.pending()) return -1;
    const std::uint64_t now = now_ns();
    return flush_due_ns_ <= now ? 0 : static_cast<int>((flush_due_ns_ - now) / 1'000'000 + 1);
}

// ---- from clients ----

void Server::accept_clients() {
    for (;;) {
        Fd socket(accept4(listener_.get(), nullptr, nullptr, SOCK_NONBLOCK | SOCK_CLOEXEC));
        if (!socket.valid()) {
            if (errno == EINTR || errno == ECONNABORTED) continue;
            if (errno != EAGAIN)
                std::fprintf(stderr, "simgpu-server: accept: %s\n", std::strerror(errno));
            return;
        }
        const ClientId id = next_client_++;
        if (!watch(socket.get(), tag_of(id, false), EPOLLIN | EPOLLOUT | EPOLLET)) continue;
        Connection& connection = connections_[id];
        ucred peer{};
        socklen_t size = sizeof(peer);
        if (getsockopt(socket.get(), SOL_SOCKET, SO_PEERCRED, &peer, &size) == 0 && peer.pid > 0) {
            // Where this is not to be had, the end of the connection alone tells that the client
            // has gone.
            connection.process.reset(static_cast<int>(syscall(SYS_pidfd_open, peer.pid, 0)));
            if (connection.process.valid())
                watch(connection.process.get(), tag_of(id, true), EPOLLIN);
            connection.seen_pid = peer.pid;
        }
        connection.socket = std::move(socket);
        receive(id, connection);
    }
}

void Server::receive(ClientId id, Connection& connection) {
    std::array<unsigned char, kMaxRecords * sizeof(Request) + 1> buffer{};
    for (int packet = 0; packet < kPacketsPerRound; ++packet) {
        const ssize_t got = recv(connection.socket.get(), buffer.data(), buffer.size(), 0);
        if (got > 0) {
            take_packet(id, connection, buffer.data(), static_cast<std::size_t>(got));
        } else if (got < 0 && errno == EINTR) {
            continue;
        } else {
            if (got == 0 || errno != EAGAIN) to_drop_.push_back(id);
            return;
        }
    }
    // More may be waiting: an edge-triggered entry reports it again when it is renewed.
    epoll_event event{};
    event.events = EPOLLIN | EPOLLOUT | EPOLLET;
    event.data.u64 = tag_of(id, false);
    epoll_ctl(epoll_.get(), EPOLL_CTL_MOD, connection.socket.get(), &event);
}

void Server::take_packet(ClientId id, Connection& connection, const unsigned char* data,
                         std::size_t size) {
    if (connection.closing) return;
    if (size % sizeof(Request) != 0 || size > kMaxRecords * sizeof(Request)) {
        refuse(connection,
               fmt::format("packet of {} bytes is not 1 to {} whole requests", size, kMaxRecords));
        return;
    }
    const std::uint64_t now = now_ns();
    for (std::size_t at = 0; at < size; at += sizeof(Request)) {
        Request request;
        std::memcpy(&request, data + at, sizeof(request));
        if (request.kind == RequestKind::kHello) {
            hello(id, connection, request);
        } else if (!connection.welcomed) {
            refuse(connection, "the first request of a connection must be a hello");
            connection.closing = true;
        } else {
            const std::uint64_t at_ns =
                request.submit_ns == 0 ? now : std::min(request.submit_ns, now);
            arrivals_.push_back(Arrival{at_ns, id, request});
        }
        if (connection.closing) return;
    }
}

void Server::hello(ClientId id, Connection& connection, const Request& request) {
    constexpr std::uint64_t kMaxPid = 0x7fff'ffff;
    if (connection.welcomed) {
        refuse(connection, "second hello");
        return;
    }
    if (request.participants != kProtocolVersion) {
        refuse(connection, fmt::format("protocol version {}, this server speaks {}",
                                       request.participants, kProtocolVersion));
        connection.closing = true;
        return;
    }
    if (request.stream == 0 || request.stream > kMaxPid) {
        refuse(connection, fmt::format("process id {} not in 1..{}", request.stream, kMaxPid));
        connection.closing = true;
        return;
    }
    connection.pid = static_cast<pid_t>(request.stream);
    connection.welcomed = true;
    // In a PID namespace of its own a process has another number than for whoever reads the log.
    log_pids_[id] = connection.seen_pid > 0 ? connection.seen_pid : connection.pid;
    engine_.add_client(id);
    Notice notice{};
    notice.kind = NoticeKind::kWelcome;
    notice.time_ns = now_ns();
    notice.value = static_cast<std::uint64_t>(config_.engine.devices);
    settings_text(config_.engine).copy(notice.text, sizeof(notice.text) - 1);
    queue(connection, notice);
}

void Server::refuse(Connection& connection, const std::string& why) {
    Notice notice{};
    notice.kind = NoticeKind::kError;
    notice.time_ns = now_ns();
    why.copy(notice.text, sizeof(notice.text) - 1);
    queue(connection, notice);
}

// In the order in which the programs made the calls, as far as they have arrived: so a process that
// got the processor late does not make another one's operations late.
void Server::carry_out_arrivals() {
    // A client's own order stands, whatever times it claims.
    std::map<ClientId, std::uint64_t> latest;
    for (Arrival& arrival : arrivals_) {
        std::uint64_t& last = latest[arrival.client];
        arrival.at_ns = last = std::max(last, arrival.at_ns);
    }
    std::stable_sort(arrivals_.begin(), arrivals_.end(),
                     [](const Arrival& a, const Arrival& b) { return a.at_ns < b.at_ns; });
    for (const Arrival& arrival : arrivals_)
        engine_.handle(arrival.client, arrival.request, arrival.at_ns);
    arrivals_.clear();
}

// ---- to clients ----

void Server::queue(Connection& connection, const Notice& notice) {
    // One over the limit marks the client as too slow; send_queued() drops it.
    if (connection.out.size() - connection.sent <= kMaxQueued) connection.out.push_back(notice);
}

void Server::send_all() {
    for (auto& [id, connection] : connections_) {
        if (!connection.out.empty()) {
            send_queued(id, connection);
        } else if (connection.closing) {
            to_drop_.push_back(id);
        }
    }
}

void Server::send_queued(ClientId id, Connection& connection) {
    std::vector<Notice>& out = connection.out;
    while (connection.writable && connection.sent < out.size()) {
        const std::size_t count = std::min(out.size() - connection.sent, kMaxRecords);
        const ssize_t wrote = send(connection.socket.get(), out.data() + connection.sent,
                                   count * sizeof(Notice), MSG_NOSIGNAL | MSG_DONTWAIT);
        if (wrote >= 0) {
            connection.sent += count;
        } else if (errno == EAGAIN) {
            connection.writable = false;
        } else if (errno != EINTR) {
            to_drop_.push_back(id);
            out.clear();
            connection.sent = 0;
            return;
        }
    }
    if (connection.sent == out.size()) {
        out.clear();
        connection.sent = 0;
    } else if (connection.sent > kMaxRecords * 16) {
        out.erase(out.begin(), out.begin() + static_cast<std::ptrdiff_t>(connection.sent));
        connection.sent = 0;
    }
    if (out.size() - connection.sent > kMaxQueued) {
        std::fprintf(stderr,
                     "simgpu-server: process %d does not read its notices (%zu behind): dropped\n",
                     static_cast<int>(connection.pid), out.size() - connection.sent);
        to_drop_.push_back(id);
    } else if (connection.closing) {
        to_drop_.push_back(id);
    }
}

void Server::drop(ClientId id) {
    const auto found = connections_.find(id);
    if (found == connections_.end()) return;
    connections_.erase(found);
    engine_.remove_client(id, now_ns());
    log_pids_.erase(id);
}

}  // namespace simgpu
