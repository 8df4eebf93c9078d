// SPDX-License-Identifier: Apache-2.0
// The decision about MPS: see mps.hpp.
#include "mps.hpp"

namespace crossover::command {

std::optional<MpsChoice> parse_mps_choice(const std::string& text) {
    if (text == "auto") return MpsChoice::kAuto;
    if (text == "on") return MpsChoice::kOn;
    if (text == "off") return MpsChoice::kOff;
    return std::nullopt;
}

MpsPlan plan_mps(const MpsFacts& facts, MpsChoice choice) {
    // Without turns the automatic choice changes nothing about the program.
    if (choice == MpsChoice::kOff || facts.virtual_gpu ||
        (choice == MpsChoice::kAuto && !facts.takes_turns)) {
        return {};
    }
    if (!facts.pipe_variable.empty()) {
        if (facts.pipe_answers) return {MpsWay::kThere, {}};
        return {MpsWay::kNone, "CUDA_MPS_PIPE_DIRECTORY is " + facts.pipe_variable +
                                   " and no MPS daemon answers there"};
    }
    if (facts.default_answers && facts.default_foreign_user.empty()) {
        return {MpsWay::kThere, {}};
    }
    if (!facts.default_foreign_user.empty()) {
        return {MpsWay::kNone, std::string("the MPS daemon at ") + kDefaultMpsPipe +
                                   " belongs to user " + facts.default_foreign_user +
                                   ", and a GPU serves one user's daemon at a time"};
    }
    if (facts.wsl) {
        return {MpsWay::kNone, "there is no MPS on Windows Subsystem for Linux"};
    }
    if (!facts.has_control) {
        return {MpsWay::kNone, "nvidia-cuda-mps-control is not on PATH"};
    }
    if (facts.mig) {
        return {MpsWay::kNone,
                "a MIG instance needs an MPS daemon of its own: start one with "
                "CUDA_VISIBLE_DEVICES naming it, and set CUDA_MPS_PIPE_DIRECTORY"};
    }
    if (facts.folder.empty()) {
        return {MpsWay::kNone, "no folder for the MPS daemon: " + facts.folder_fault};
    }
    if (facts.folder.size() > kLongestMpsFolder) {
        return {MpsWay::kNone, "the path " + facts.folder +
                                   " is too long for the MPS daemon's sockets; give a --dir of at "
                                   "most 60 bytes"};
    }
    return {MpsWay::kPrivate, {}};
}

std::string mps_missing_line(const std::string& why_not) {
    return "going on without MPS (" + why_not +
           "): jobs that share a GPU are then time-sliced, a waiting collective burns its slices, "
           "and a turn gains next to nothing; --mps=off silences this";
}

}  // namespace crossover::command
