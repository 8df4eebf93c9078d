// SPDX-License-Identifier: Apache-2.0
// The folder of segments as the commands see it: see segments.hpp.
#include "segments.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>

#include "command.hpp"
#include "crossover/options.hpp"

namespace crossover::command {

const Segment& OpenSegment::segment() const noexcept {
    if (!mapping.whole()) mapping.blank();
    return *mapping.view();
}

SegmentFolder::SegmentFolder(const std::string& dir) : dir_(dir) {
    const char* which = "--dir";
    if (dir_.empty()) {
        const char* configured = std::getenv("CROSSOVER_DIR");
        dir_ = configured == nullptr ? "" : configured;
        which = "CROSSOVER_DIR";
    }
    if (!dir_.empty() && (dir_.front() != '/' || dir_.size() >= sizeof(Options{}.dir))) {
        throw UsageError(fmt::format("{} '{}' is not an absolute path of at most {} bytes", which,
                                     dir_, sizeof(Options{}.dir) - 1));
    }
}

void SegmentFolder::refresh() {
    faults_.clear();
    Folder folder;
    const Status status = choose_folder(dir_.c_str(), false, folder);
    std::vector<SegmentFile> files;
    if (status == Status::kOk) {
        files = list_segments(folder);
    } else if (status != Status::kNotFound) {
        throw Failure(fmt::format("{}: {}", folder.path, status_text(status)));
    }
    std::erase_if(segments_, [](const std::shared_ptr<OpenSegment>& open) {
        return !open->mapping.is_named() || open->segment().header.magic != kSegmentMagic;
    });
    for (const SegmentFile& file : files) {
        if (std::any_of(segments_.begin(), segments_.end(),
                        [&file](const auto& open) { return file.path == open->mapping.path(); })) {
            continue;
        }
        auto open = std::make_shared<OpenSegment>();
        const Status opened = open_read_only(folder, file.path.c_str(), open->mapping);
        if (opened == Status::kOk && open->mapping.view() != nullptr) {
            open->instance = fmt::format("{}#{}", file.path, ++opened_);
            segments_.push_back(std::move(open));
        } else if (opened != Status::kNotFound && opened != Status::kNotReady) {
            // Gone again, or still being made: the next look will tell.
            faults_.push_back({file.path, opened});
        }
    }
}

}  // namespace crossover::command
