// SPDX-License-Identifier: Apache-2.0
// Pairing by Boost's maximum weighted matching.
#include "plan_pairs.hpp"

#include <boost/graph/adjacency_list.hpp>
#include <boost/graph/maximum_weighted_matching.hpp>
#include <cmath>
#include <cstdint>

#ifdef __SANITIZE_ADDRESS__
#include <sanitizer/lsan_interface.h>
#endif

namespace crossover::command {

std::vector<std::pair<std::size_t, std::size_t>> best_pairs(
    const std::vector<std::vector<double>>& gain) {
    using Weight = boost::property<boost::edge_weight_t, std::int64_t>;
    using Graph = boost::adjacency_list<boost::vecS, boost::vecS, boost::undirectedS,
                                        boost::no_property, Weight>;
    constexpr double kParts = 1e9;  // whole numbers: the algorithm compares sums of weights
    Graph graph(gain.size());
    for (std::size_t i = 0; i < gain.size(); ++i) {
        for (std::size_t j = i + 1; j < gain.size(); ++j) {
            if (gain[i][j] > 0) {
                boost::add_edge(i, j, static_cast<std::int64_t>(std::llround(gain[i][j] * kParts)),
                                graph);
            }
        }
    }
    if (boost::num_edges(graph) == 0) {
        return {};  // Boost would double the least of all numbers
    }
    std::vector<boost::graph_traits<Graph>::vertex_descriptor> mate(gain.size());
    {
#ifdef __SANITIZE_ADDRESS__
        const __lsan::ScopedDisabler no_fault_of_ours;  // Boost's blossoms keep each other alive
#endif
        boost::maximum_weighted_matching(graph, mate.data());
    }
    std::vector<std::pair<std::size_t, std::size_t>> pairs;
    for (std::size_t i = 0; i < mate.size(); ++i) {
        if (mate[i] != boost::graph_traits<Graph>::null_vertex() && i < mate[i]) {
            pairs.emplace_back(i, mate[i]);
        }
    }
    return pairs;
}

}  // namespace crossover::command
