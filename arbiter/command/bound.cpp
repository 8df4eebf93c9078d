// SPDX-License-Identifier: Apache-2.0
// The bound: see bound.hpp.
#include "bound.hpp"

#include <algorithm>

namespace crossover::command {
namespace {

std::uint64_t alone_ns(const JobTotals& job) noexcept {
    return job.start_ns + job.compute_ns + job.exposed_ns;
}

}  // namespace

std::uint64_t bound_ns(std::span<const JobTotals> jobs, bool separate_links) noexcept {
    std::uint64_t compute = 0;
    std::uint64_t communicate = 0;
    std::uint64_t longest = 0;
    for (const JobTotals& job : jobs) {
        compute += job.compute_ns;
        communicate += job.communicate_ns;
        longest = std::max(longest, alone_ns(job));
    }
    return std::max({compute, separate_links ? 0 : communicate, longest});
}

std::uint64_t serial_ns(std::span<const JobTotals> jobs) noexcept {
    std::uint64_t sum = 0;
    for (const JobTotals& job : jobs) {
        sum += alone_ns(job);
    }
    return sum;
}

}  // namespace crossover::command
