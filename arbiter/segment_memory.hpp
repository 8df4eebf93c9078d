// SPDX-License-Identifier: Apache-2.0
// System V shared memory for segments: made, found, mapped, and the locator that leads to it. It is
// marked for removal as soon as it is mapped, so that it goes with its last process whatever ends
// that one. For segment.cpp only. No files, no names, no turns; what maps may throw nothing out.
#pragma once

#include <boost/interprocess/mapped_region.hpp>
#include <cstdint>

#include "arbiter/segment.hpp"

namespace crossover {

// The IPC namespace of this process; 0 where the system does not tell.
std::uint64_t ipc_namespace() noexcept;

// Fresh zero memory, readable and writable as the folder's files are. kSystem where this system or
// its limits do not give it: a file will do.
Status make_memory(const Folder& folder, boost::interprocess::mapped_region& mapping,
                   int& memory) noexcept;

// The memory that a sound locator leads to.
//   kNotFound   it is gone, or this is another one by now
//   kForeign    its owner or mode is not trusted in this folder
//   kElsewhere  it may be in use where this process cannot reach it: in another IPC namespace, or
//               this process is not let
//   kSystem     no room in the address space
Status map_memory(const Folder& folder, const Locator& locator, bool writable,
                  boost::interprocess::mapped_region& mapping) noexcept;

// Memory of this folder and device that somebody has mapped and nobody has ended.
Status find_memory(const Folder& folder, const DeviceUuid& device,
                   boost::interprocess::mapped_region& mapping, int& memory) noexcept;

Locator locator_of(const Segment& segment, int memory) noexcept;
// Of any 64 bytes. kCorrupt, kWrongVersion or kOk.
Status check_locator(const Locator& locator) noexcept;
// Reads one from a file of exactly its size. False if it is not sound.
bool read_locator(int file, Locator& locator) noexcept;

}  // namespace crossover
