// SPDX-License-Identifier: Apache-2.0
// The decision about MPS, for every kind of machine. What the daemon does is tested in
// tests/launchers.
#include "mps.hpp"

#include <gtest/gtest.h>

namespace crossover::command {
namespace {

MpsFacts able() {
    MpsFacts facts;
    facts.has_control = true;
    facts.folder = "/dev/shm/crossover-7/mps-7";
    return facts;
}

std::string why_not(const MpsFacts& facts, MpsChoice choice = MpsChoice::kAuto) {
    const MpsPlan plan = plan_mps(facts, choice);
    EXPECT_EQ(plan.way, MpsWay::kNone);
    return plan.why_not;
}

TEST(MpsChoiceText, HasThreeValues) {
    EXPECT_EQ(parse_mps_choice("auto"), MpsChoice::kAuto);
    EXPECT_EQ(parse_mps_choice("on"), MpsChoice::kOn);
    EXPECT_EQ(parse_mps_choice("off"), MpsChoice::kOff);
    EXPECT_EQ(parse_mps_choice("ON"), std::nullopt);
    EXPECT_EQ(parse_mps_choice(""), std::nullopt);
}

TEST(MpsPlan, StartsAPrivateDaemonWhereNothingIsThere) {
    EXPECT_EQ(plan_mps(able(), MpsChoice::kAuto).way, MpsWay::kPrivate);
    EXPECT_EQ(plan_mps(able(), MpsChoice::kOn).way, MpsWay::kPrivate);
}

TEST(MpsPlan, IsNothingAndSaysNothingWhereItIsNotDue) {
    EXPECT_EQ(why_not(able(), MpsChoice::kOff), "");
    MpsFacts facts = able();
    facts.virtual_gpu = true;
    EXPECT_EQ(why_not(facts), "");
    EXPECT_EQ(why_not(facts, MpsChoice::kOn), "");
    facts = able();
    facts.takes_turns = false;
    EXPECT_EQ(why_not(facts), "");
    EXPECT_EQ(plan_mps(facts, MpsChoice::kOn).way, MpsWay::kPrivate);
}

TEST(MpsPlan, UsesTheDaemonThatTheUserNamed) {
    MpsFacts facts = able();
    facts.pipe_variable = "/run/mps";
    facts.default_answers = true;
    EXPECT_NE(why_not(facts).find("/run/mps"), std::string::npos) << "and no other one";
    facts.pipe_answers = true;
    EXPECT_EQ(plan_mps(facts, MpsChoice::kAuto).way, MpsWay::kThere);
    facts.has_control = false;  // somebody else's business
    EXPECT_EQ(plan_mps(facts, MpsChoice::kOn).way, MpsWay::kThere);
}

TEST(MpsPlan, UsesTheDaemonAtTheDefaultPlace) {
    MpsFacts facts = able();
    facts.default_answers = true;
    EXPECT_EQ(plan_mps(facts, MpsChoice::kAuto).way, MpsWay::kThere);
    facts.mig = true;  // whoever started it chose the instance
    EXPECT_EQ(plan_mps(facts, MpsChoice::kAuto).way, MpsWay::kThere);
}

TEST(MpsPlan, NamesWhatStandsAgainstIt) {
    MpsFacts facts = able();
    facts.default_foreign_user = "eve";
    EXPECT_NE(why_not(facts).find("belongs to user eve"), std::string::npos);
    facts = able();
    facts.has_control = false;
    EXPECT_EQ(why_not(facts), "nvidia-cuda-mps-control is not on PATH");
    facts = able();
    facts.wsl = true;
    EXPECT_NE(why_not(facts).find("Windows Subsystem"), std::string::npos);
    facts = able();
    facts.mig = true;
    EXPECT_NE(why_not(facts).find("MIG"), std::string::npos);
    facts = able();
    facts.folder.clear();
    facts.folder_fault = "/x cannot be used";
    EXPECT_NE(why_not(facts).find("/x cannot be used"), std::string::npos);
    facts = able();
    facts.folder = "/" + std::string(kLongestMpsFolder, 'f');
    EXPECT_NE(why_not(facts).find("too long"), std::string::npos);
    facts.folder.pop_back();
    EXPECT_EQ(plan_mps(facts, MpsChoice::kAuto).way, MpsWay::kPrivate);
}

TEST(MpsLine, SaysWhatItMeans) {
    const std::string line = mps_missing_line("no such tool");
    EXPECT_TRUE(line.starts_with("going on without MPS (no such tool): jobs that share a GPU"));
    EXPECT_EQ(line.find('\n'), std::string::npos);
}

}  // namespace
}  // namespace crossover::command
