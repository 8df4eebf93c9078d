// SPDX-License-Identifier: Apache-2.0
// Copies and fills as units of work: ranges, cost, effect. The exported functions are in
// copy_api.cpp and memset_api.cpp.
#pragma once

#include "memory.hpp"
#include "stream.hpp"

namespace simgpu {

// A box of bytes at a place in memory; one row and one layer for a plain copy.
struct Place {
    std::byte* base = nullptr;
    std::size_t pitch = 0;  // bytes from row to row
    std::size_t layer = 0;  // bytes from layer to layer
};
struct Box {
    std::size_t width = 0;  // bytes
    std::size_t height = 1;
    std::size_t depth = 1;
};

enum class Side {
    kHost,
    kDevice,
    kAny
};  // what a call says about a pointer; kAny: unified, anything goes

// One copy. `synchronous`: returns when the data is there, as far as the call of that kind does.
CUresult copy(CUstream handle, DefaultStream meaning, Side to, Place destination, Side from,
              Place source, Box box, bool synchronous);

// A copy and a fill as graph nodes need them.
Work copy_work(Place destination, Place source, Box box, bool crosses_bus);
Work fill_work(Place destination, Box box, std::uint32_t value, std::size_t element);

// Bytes from the first to the last of a box at a place; false when that overflows.
bool extent(const Place& place, const Box& box, std::size_t* bytes);

}  // namespace simgpu
