// SPDX-License-Identifier: Apache-2.0
// The device server: sockets and the clock around the timed model. What the model does with a
// request is decided in engine_*.cpp.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "config.hpp"
#include "engine.hpp"
#include "truth_log.hpp"

namespace simgpu {

// A file descriptor that closes itself.
class Fd {
  public:
    explicit Fd(int fd = -1) : fd_(fd) {}
    ~Fd() { reset(); }
    Fd(Fd&& other) noexcept : fd_(other.release()) {}
    Fd& operator=(Fd&& other) noexcept {
        if (this != &other) reset(other.release());
        return *this;
    }
    int get() const { return fd_; }
    bool valid() const { return fd_ >= 0; }
    int release() {
        const int fd = fd_;
        fd_ = -1;
        return fd;
    }
    void reset(int fd = -1);

  private:
    int fd_;
};

// Single-threaded: everything runs inside run().
class Server {
  public:
    explicit Server(const ServerConfig& config);
    ~Server();
    Server(const Server&) = delete;
    Server& operator=(const Server&) = delete;

    // Takes the machine's folder and opens the socket. On failure false, with one line in `error`.
    bool start(std::string& error);

    // Serves until SIGTERM, SIGINT or SIGHUP, or until epoll itself fails; the exit status.
    int run();

  private:
    struct Connection {
        Fd socket;
        Fd process;  // readable once the client process has ended, whoever inherited its socket
        pid_t pid = 0;       // as the client says
        pid_t seen_pid = 0;  // as the kernel tells here, 0 where it does not
        bool welcomed = false;
        bool closing = false;  // ends once what is queued has been sent, or could not be
        bool writable = true;  // false: waits for EPOLLOUT
        std::vector<Notice> out;
        std::size_t sent = 0;
    };
    struct Arrival {
        std::uint64_t at_ns;
        ClientId client;
        Request request;
    };

    bool lock_folder(std::string& error);
    bool write_device_list(std::string& error) const;
    bool open_socket(std::string& error);
    bool watch(int fd, std::uint64_t tag, std::uint32_t events);
    void accept_clients();
    void receive(ClientId id, Connection& connection);
    void take_packet(ClientId id, Connection& connection, const unsigned char* data,
                     std::size_t size);
    void hello(ClientId id, Connection& connection, const Request& request);
    void refuse(Connection& connection, const std::string& why);
    void carry_out_arrivals();
    void queue(Connection& connection, const Notice& notice);
    void send_all();
    void send_queued(ClientId id, Connection& connection);
    void drop(ClientId id);
    void arm_timer();
    void learn_lateness();
    int wait_ms() const;

    ServerConfig config_;
    TruthLog log_;
    Engine engine_;
    std::map<ClientId, Connection> connections_;
    std::map<ClientId, pid_t> log_pids_;  // also of those just gone
    std::vector<Arrival> arrivals_;
    std::vector<ClientId> to_drop_;
    ClientId next_client_ = 1;
    std::uint64_t armed_ns_ = 0;
    int lateness_samples_ = 0;
    double lateness_ns_ = 0;     // how late the timer wakes this process, smoothed
    std::uint64_t lead_ns_ = 0;  // how far the model runs ahead of the clock
    std::uint64_t flush_due_ns_ = 0;
    std::string socket_path_;
    Fd lock_;
    Fd listener_;
    Fd epoll_;
    Fd timer_;
    Fd signals_;
};

}  // namespace simgpu
