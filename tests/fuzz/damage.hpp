// SPDX-License-Identifier: Apache-2.0
// A segment on the heap, whose block ends where it ends, with what a fuzzer wants in it. No
// transitions here.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>

#include "crossover/layout.hpp"
#include "tests/fuzz/input.hpp"

namespace crossover::fuzz {

// The first byte of an input: what the segment is before single places are changed.
enum Base : std::uint8_t { kFresh, kTables, kEverything, kBases };

// Single places are changed in the tables and in the first events only: the rest of the ring is
// more of the same.
inline constexpr std::size_t kPlaces = offsetof(Segment, ring.events) + 64 * sizeof(Event);

inline std::unique_ptr<Segment> fresh_segment() {
    auto segment = std::make_unique<Segment>();
    segment->header.magic = kSegmentMagic;
    segment->header.total_bytes = sizeof(Segment);
    segment->header.version = kLayoutVersion;
    segment->arbitration.round = 1;
    return segment;
}

// kTables: header, jobs and clients are a pattern of the input's, repeated; kEverything: the ring
// as well. Then up to 255 places, each eight bytes.
inline std::unique_ptr<Segment> damaged_segment(Input& input) {
    auto segment = fresh_segment();
    auto* bytes = reinterpret_cast<std::uint8_t*>(segment.get());
    const std::uint8_t base = input.byte() % kBases;
    if (base != kFresh) {
        std::uint8_t pattern[251];  // prime: no two fields of a table get the same bytes throughout
        const std::size_t length = 1 + input.byte() % sizeof pattern;
        input.bytes(pattern, length);
        const std::size_t end = base == kTables ? offsetof(Segment, ring) : sizeof(Segment);
        for (std::size_t i = 0; i < end; ++i) bytes[i] = pattern[i % length];
    }
    for (int places = input.byte(); places > 0; --places) {
        const std::size_t place = input.number<std::uint32_t>() % (kPlaces / 8);
        input.bytes(bytes + place * 8, 8);
    }
    return segment;
}

// Where eight bytes of a field stand, as a seed says it.
inline std::uint32_t place_of(std::size_t offset) { return static_cast<std::uint32_t>(offset / 8); }

}  // namespace crossover::fuzz
