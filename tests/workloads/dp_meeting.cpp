// SPDX-License-Identifier: Apache-2.0
// Meeting of the ranks; see dp_meeting.hpp. Knows neither CUDA nor NCCL.
#include "dp_meeting.hpp"

#include <fcntl.h>
#include <netdb.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <string>
#include <thread>

namespace dp {
namespace {

using Clock = std::chrono::steady_clock;
constexpr auto kPause = std::chrono::milliseconds(20);

[[noreturn]] void give_up(const std::string& message) {
    std::fprintf(stderr, "%s: %s\n", program_invocation_short_name, message.c_str());
    std::exit(1);
}

std::string error_text() { return std::strerror(errno); }

class Deadline {
  public:
    explicit Deadline(double seconds)
        : end_(Clock::now() + std::chrono::duration_cast<Clock::duration>(
                                  std::chrono::duration<double>(seconds))) {}
    bool passed() const { return Clock::now() >= end_; }
    int left_ms() const {
        const auto left = std::chrono::ceil<std::chrono::milliseconds>(end_ - Clock::now()).count();
        return left > 0 ? static_cast<int>(left) : 0;
    }

  private:
    Clock::time_point end_;
};

bool wait_for(int socket, short events, const Deadline& deadline) {
    pollfd entry{socket, events, 0};
    int ready = 0;
    do {
        ready = poll(&entry, 1, deadline.left_ms());
    } while (ready < 0 && errno == EINTR);
    return ready > 0;
}

bool send_all(int socket, const void* data, std::size_t bytes) {
    std::size_t done = 0;
    while (done < bytes) {
        const ssize_t step =
            send(socket, static_cast<const char*>(data) + done, bytes - done, MSG_NOSIGNAL);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(step);
    }
    return true;
}

bool receive_all(int socket, void* data, std::size_t bytes, const Deadline& deadline) {
    std::size_t done = 0;
    while (done < bytes) {
        if (!wait_for(socket, POLLIN, deadline)) {
            return false;
        }
        const ssize_t step = recv(socket, static_cast<char*>(data) + done, bytes - done, 0);
        if (step < 0 && errno == EINTR) {
            continue;
        }
        if (step <= 0) {
            return false;
        }
        done += static_cast<std::size_t>(step);
    }
    return true;
}

addrinfo* resolve(const Options& options) {
    addrinfo hints{};
    hints.ai_family = AF_UNSPEC;
    hints.ai_socktype = SOCK_STREAM;
    addrinfo* result = nullptr;
    const std::string port = std::to_string(options.master_port);
    const int error = getaddrinfo(options.master_address.c_str(), port.c_str(), &hints, &result);
    if (error != 0) {
        give_up("MASTER_ADDR '" + options.master_address + "': " + gai_strerror(error));
    }
    return result;
}

std::string place(const Options& options) {
    return options.master_address + " port " + std::to_string(options.master_port);
}

void serve(const Options& options, const void* data, std::size_t bytes, const Deadline& deadline) {
    addrinfo* const address = resolve(options);
    const int listener = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const int on = 1;
    if (listener < 0 || setsockopt(listener, SOL_SOCKET, SO_REUSEADDR, &on, sizeof(on)) != 0 ||
        bind(listener, address->ai_addr, address->ai_addrlen) != 0 ||
        listen(listener, options.world_size) != 0) {
        give_up("cannot listen on " + place(options) + ": " + error_text());
    }
    freeaddrinfo(address);
    for (int served = 1; served < options.world_size;) {
        if (!wait_for(listener, POLLIN, deadline)) {
            give_up("only " + std::to_string(served) + " of " + std::to_string(options.world_size) +
                    " ranks came to " + place(options));
        }
        const int client = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
        if (client >= 0) {
            served += send_all(client, data, bytes) ? 1 : 0;
            close(client);
        }
    }
    close(listener);
}

void ask(const Options& options, void* data, std::size_t bytes, const Deadline& deadline) {
    addrinfo* const address = resolve(options);
    bool received = false;
    // Rank 0 may start later than we do.
    while (!received) {
        const int server = socket(address->ai_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
        if (server < 0) {
            give_up("socket: " + error_text());
        }
        received = connect(server, address->ai_addr, address->ai_addrlen) == 0 &&
                   receive_all(server, data, bytes, deadline);
        close(server);
        if (!received && deadline.passed()) {
            give_up("rank 0 did not answer on " + place(options));
        }
        if (!received) {
            std::this_thread::sleep_for(kPause);
        }
    }
    freeaddrinfo(address);
}

void write_file(const Options& options, const void* data, std::size_t bytes) {
    // Complete before it has its name, so that nobody reads half of it.
    const std::string draft = options.id_file + ".draft";
    const int file = open(draft.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    const bool written = file >= 0 && write(file, data, bytes) == static_cast<ssize_t>(bytes);
    if (!written || close(file) != 0 || link(draft.c_str(), options.id_file.c_str()) != 0) {
        const std::string reason = error_text();
        unlink(draft.c_str());
        give_up("--id-file '" + options.id_file +
                "' must be a new file in a writable folder: " + reason);
    }
    unlink(draft.c_str());
}

void read_file(const Options& options, void* data, std::size_t bytes, const Deadline& deadline) {
    while (true) {
        const int file = open(options.id_file.c_str(), O_RDONLY | O_CLOEXEC);
        if (file >= 0) {
            const bool complete = read(file, data, bytes) == static_cast<ssize_t>(bytes);
            close(file);
            if (!complete) {
                give_up("--id-file '" + options.id_file + "' is not from this job");
            }
            return;
        }
        if (deadline.passed()) {
            give_up("rank 0 did not write --id-file '" + options.id_file + "'");
        }
        std::this_thread::sleep_for(kPause);
    }
}

}  // namespace

void share_from_rank_zero(const Options& options, void* data, std::size_t bytes) {
    if (options.world_size == 1) {
        return;
    }
    const Deadline deadline(options.timeout_s);
    if (!options.id_file.empty()) {
        options.rank == 0 ? write_file(options, data, bytes)
                          : read_file(options, data, bytes, deadline);
    } else {
        options.rank == 0 ? serve(options, data, bytes, deadline)
                          : ask(options, data, bytes, deadline);
    }
}

void forget_meeting(const Options& options) {
    if (options.world_size > 1 && !options.id_file.empty()) {
        unlink(options.id_file.c_str());
    }
}

}  // namespace dp
