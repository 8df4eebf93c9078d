// SPDX-License-Identifier: Apache-2.0
// How the ranks agree, over TCP, on which tensors to sum next and in which order, and how they hand
// each other what is on the CPU: rank 0 coordinates, everybody takes part in every round. No CUDA,
// no NCCL, no thread of its own.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <string>
#include <vector>

namespace hvd {

struct Request {
    std::string name;
    std::uint64_t bytes = 0;
};

struct Decision {
    bool stop = false;                             // some rank wants to end
    std::vector<std::vector<std::string>> groups;  // each fused into one sum
};

// One thread at a time. Failures are std::runtime_error.
class Control {
  public:
    ~Control();
    // A port to be reached at; rank 0.
    int listen();
    void connect(int rank, int size, const std::string& address, int port, double timeout_s);
    // One round: what this rank has become ready to sum; the same decision on every rank.
    Decision negotiate(const std::vector<Request>& ready, bool stop, std::uint64_t fusion_bytes);
    // Rank 0's bytes, on every rank.
    void broadcast(void* data, std::size_t bytes);
    // Sums data on the CPU over the ranks in place, in the order of the ranks. Waits for all.
    void sum(float* data, std::size_t count);

  private:
    void note(const Request& request);
    Decision decide(bool stop, std::uint64_t fusion_bytes);

    int rank_ = 0;
    int size_ = 1;
    int listener_ = -1;
    std::vector<int> peers_;  // rank 0: of ranks 1, 2, ...; others: of rank 0
    // Rank 0: ranks that are ready, by tensor, and the tensors in the order in which they came up.
    struct Pending {
        int ranks = 0;
        std::uint64_t bytes = 0;
    };
    std::map<std::string, Pending> pending_;
    std::deque<std::string> order_;
};

}  // namespace hvd
