// SPDX-License-Identifier: Apache-2.0
// The data plane of a communicator: shared files in the virtual machine's data folder through which
// ranks hand each other their inputs. Timing is the device server's business; nothing here waits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

namespace simgpu::nccl {

// Collectives use two buffers per rank in turn. Buffer k % 2 may be rewritten for collective k + 2
// because the device server runs a communicator's collectives one after the other and every client
// handles notices in order: whoever starts k + 1 has finished reading k. Point-to-point messages
// have one file each, which the receiver removes. All calls come from one thread at a time (the
// driver's executor).
class Exchange {
  public:
    Exchange(std::string folder, std::uint64_t key, int rank, int ranks);
    ~Exchange();
    Exchange(const Exchange&) = delete;
    Exchange& operator=(const Exchange&) = delete;

    // This rank's buffer for collective `number`, at least `bytes` long, tagged with what the rank
    // believes it is doing. Null and errno when the file cannot be made.
    void* own(std::uint64_t number, std::size_t bytes, std::uint64_t signature);
    // The buffer of `rank` for the same collective. Null when it is not there, too short, or tagged
    // otherwise: the ranks called different collectives.
    const void* peer(int rank, std::uint64_t number, std::size_t bytes, std::uint64_t signature);

    // Message `sequence` from this rank to `to`. False and errno on failure.
    bool send(int to, std::uint64_t sequence, const void* data, std::size_t bytes);
    // Message `sequence` from `from`; false when it is not there or its size differs.
    bool receive(int from, std::uint64_t sequence, void* data, std::size_t bytes);

  private:
    struct Mapping {
        unsigned char* address = nullptr;
        std::size_t bytes = 0;
    };
    static constexpr int kSlots = 2;

    Mapping& slot(int rank, std::uint64_t number);
    std::string buffer_path(int rank, std::uint64_t number) const;
    std::string departures_path() const;
    // How many ranks have left, this one included; 0 when that cannot be told.
    int count_departure() const;
    std::string message_path(int from, int to, std::uint64_t sequence) const;

    std::string prefix_;
    int rank_;
    std::vector<Mapping> mappings_;  // kSlots per rank
};

}  // namespace simgpu::nccl
