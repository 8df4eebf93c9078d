// SPDX-License-Identifier: Apache-2.0
// Follows the segments of a folder for the commands: opens new ones read-only, keeps those that
// were opened (a mapping outlives the name that the last client removed), tells those it cannot
// read.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "arbiter/segment.hpp"
#include "crossover/status.hpp"

namespace crossover::command {

struct SegmentFault {
    std::string path;
    Status status = Status::kOk;
};

struct OpenSegment {
    std::string instance;  // unique in this process, also for the next segment of the same device
    MappedSegment mapping;
    // Asks first whether the file is still as long as it was; zeros take the place of one that is
    // not, and the next refresh() forgets it.
    const Segment& segment() const noexcept;
};

class SegmentFolder {
  public:
    // `dir`: --dir, or empty for CROSSOVER_DIR, or the user's private folder where that is unset
    // too. Throws UsageError for a path that is not absolute or too long.
    explicit SegmentFolder(const std::string& dir);

    // Looks for new segments and forgets those whose name has gone. Throws Failure when the folder
    // is there but not to be trusted. A missing folder holds no segment.
    void refresh();
    // After refresh(): what is open, and what could not be opened.
    const std::vector<std::shared_ptr<OpenSegment>>& segments() const noexcept { return segments_; }
    const std::vector<SegmentFault>& faults() const noexcept { return faults_; }

  private:
    std::string dir_;
    std::vector<std::shared_ptr<OpenSegment>> segments_;
    std::vector<SegmentFault> faults_;
    std::uint64_t opened_ = 0;
};

}  // namespace crossover::command
