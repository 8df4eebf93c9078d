// SPDX-License-Identifier: Apache-2.0
// A timeline as one HTML file that needs nothing else: an inline SVG that shows the alternation
// without any script, a little script to pan and zoom, and the shares in words. Pure.
#pragma once

#include <iosfwd>
#include <string>

#include "timeline.hpp"

namespace crossover::command {

struct PageLimits {
    std::uint64_t longest_ns = 120'000'000'000;  // SVG coordinates are single precision
    std::size_t most_intervals = 100'000;        // what a browser still moves smoothly
    std::size_t turns_in_view = 8;               // shown at first; the rest is a drag away
};

void write_page(std::ostream& out, const Timeline& timeline, const PageLimits& limits = {});

// Text with the characters that HTML gives a meaning replaced.
std::string escaped(const std::string& text);

// Distance of the axis' ticks in ns: 1, 2 or 5 times a power of ten, with at most `most` ticks in
// the span.
std::uint64_t tick_ns(std::uint64_t span_ns, std::size_t most);

}  // namespace crossover::command
