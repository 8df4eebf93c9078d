// SPDX-License-Identifier: Apache-2.0
// Outcomes of operations on a segment. A fault never ends the host process: its caller goes on
// ungated.
#pragma once

#include <cstdint>

namespace crossover {

enum class Status : std::uint32_t {
    kOk = 0,
    kNotFound,      // no segment of that device
    kNotReady,      // its creator has not finished within the wait
    kWrongVersion,  // another layout
    kCorrupt,       // magic, size or content is not a segment's
    kForeign,       // owner, mode or type of folder or file is not trusted
    kNoSpace,       // shared memory or disk is full
    kAccess,        // no permission, or read-only
    kFull,          // no free job or client slot
    kSystem,        // any other refusal of the operating system
    kTimedOut,
    kDetached,   // the client is not (or no longer) attached
    kGivenUp,    // a fault was found in the segment: its clients move to a new one
    kCut,        // the segment's file was cut short while in use
    kRemoved,    // the segment's file lost its name while in use
    kElsewhere,  // the segment lies in shared memory that this process cannot reach
};

constexpr const char* status_text(Status status) noexcept {
    switch (status) {
        case Status::kOk:
            return "ok";
        case Status::kNotFound:
            return "no segment of this device";
        case Status::kNotReady:
            return "segment is still being made";
        case Status::kWrongVersion:
            return "segment has another layout version";
        case Status::kCorrupt:
            return "content is not a segment's";
        case Status::kForeign:
            return "folder or file belongs to somebody else or is open to others";
        case Status::kNoSpace:
            return "no space left";
        case Status::kAccess:
            return "no permission";
        case Status::kFull:
            return "all job or client slots are taken";
        case Status::kSystem:
            return "refused by the operating system";
        case Status::kTimedOut:
            return "timed out";
        case Status::kDetached:
            return "not attached";
        case Status::kGivenUp:
            return "segment was given up after a fault";
        case Status::kCut:
            return "segment's file was cut short while in use";
        case Status::kRemoved:
            return "segment's file was removed while in use";
        case Status::kElsewhere:
            return "segment is in shared memory of another IPC namespace";
    }
    return "unknown";
}

}  // namespace crossover
