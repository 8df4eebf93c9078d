// SPDX-License-Identifier: Apache-2.0
// The environment parser: defaults, every row's range, and the exact line of every kind of mistake.
#include "arbiter/options.hpp"

#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>

#include "arbiter/options_text.hpp"
#include "arbiter/policy.hpp"

namespace crossover {
namespace {

std::map<std::string, std::string> environment;

char* look_up(const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.data();
}

class OptionsTest : public testing::Test {
  protected:
    void SetUp() override { environment.clear(); }

    // "" when accepted.
    std::string parse(std::map<std::string, std::string> variables) {
        environment = std::move(variables);
        char error[256] = "";
        const bool accepted = parse_environment(look_up, options_, error, sizeof error);
        EXPECT_EQ(accepted, error[0] == '\0');
        return error;
    }

    Options options_;
};

TEST_F(OptionsTest, DefaultsStandWhenNothingIsSet) {
    options_.lease_ms = 77;
    EXPECT_EQ(parse({}), "");
    EXPECT_EQ(options_.mode, 1U);
    EXPECT_STREQ(options_.job, "");
    EXPECT_STREQ(options_.dir, "");
    EXPECT_EQ(options_.lease_ms, 0U);
    EXPECT_EQ(options_.weight, 0U);
    EXPECT_EQ(options_.min_window_us, 300U);
    EXPECT_EQ(options_.gate, static_cast<std::uint32_t>(GateKind::kCpu));
    EXPECT_EQ(options_.idle_grace_us, 5000U);
    EXPECT_EQ(options_.log, 1U);
}

TEST_F(OptionsTest, EmptyIsUnset) {
    EXPECT_EQ(parse({{"CROSSOVER", ""}, {"CROSSOVER_LEASE_MS", ""}, {"CROSSOVER_JOB", ""}}), "");
    EXPECT_EQ(options_.mode, 1U);
}

TEST_F(OptionsTest, TakesGoodValues) {
    EXPECT_EQ(parse({{"CROSSOVER", "observe"},
                     {"CROSSOVER_JOB", "resnet a"},
                     {"CROSSOVER_DIR", "/srv/crossover"},
                     {"CROSSOVER_LEASE_MS", "10000"},
                     {"CROSSOVER_WEIGHT", "1000"},
                     {"CROSSOVER_MIN_WINDOW_US", "0"},
                     {"CROSSOVER_IDLE_GRACE_US", "000100"},
                     {"CROSSOVER_LOG", "debug"}}),
              "");
    EXPECT_EQ(options_.mode, static_cast<std::uint32_t>(Mode::kObserve));
    EXPECT_STREQ(options_.job, "resnet a");
    EXPECT_STREQ(options_.dir, "/srv/crossover");
    EXPECT_EQ(options_.lease_ms, 10000U);
    EXPECT_EQ(options_.weight, 1000U);
    EXPECT_EQ(options_.min_window_us, 0U);
    EXPECT_EQ(options_.idle_grace_us, 100U);
    EXPECT_EQ(options_.log, static_cast<std::uint32_t>(LogLevel::kDebug));
    EXPECT_EQ(parse({{"CROSSOVER", "off"}}), "");
    EXPECT_EQ(options_.mode, static_cast<std::uint32_t>(Mode::kOff));
}

TEST_F(OptionsTest, NamesTheBadVariableAndWhatIsAllowed) {
    EXPECT_EQ(parse({{"CROSSOVER", "maybe"}}),
              "CROSSOVER is 'maybe'; allowed: one of off|on|observe");
    EXPECT_EQ(parse({{"CROSSOVER", "o"}}), "CROSSOVER is 'o'; allowed: one of off|on|observe");
    EXPECT_EQ(parse({{"CROSSOVER", "ON"}}), "CROSSOVER is 'ON'; allowed: one of off|on|observe");
    EXPECT_EQ(parse({{"CROSSOVER", "off|on"}}),
              "CROSSOVER is 'off|on'; allowed: one of off|on|observe");
    for (const std::string bad : {"12x", "-1", "+1", " 1", "1 ", "0x10", "1.5", "10001",
                                  "18446744073709551617", "99999999999999999999999999"}) {
        EXPECT_EQ(parse({{"CROSSOVER_LEASE_MS", bad}}),
                  "CROSSOVER_LEASE_MS is '" + bad + "'; allowed: a whole number from 0 to 10000");
    }
    for (const std::string bad : {"1001", "-2", "heavy", "1.5"}) {
        EXPECT_EQ(parse({{"CROSSOVER_WEIGHT", bad}}),
                  "CROSSOVER_WEIGHT is '" + bad + "'; allowed: a whole number from 0 to 1000");
    }
    EXPECT_EQ(parse({{"CROSSOVER_IDLE_GRACE_US", "99"}}),
              "CROSSOVER_IDLE_GRACE_US is '99'; allowed: a whole number from 100 to 10000000");
    EXPECT_EQ(parse({{"CROSSOVER_DIR", "shared"}}),
              "CROSSOVER_DIR is 'shared'; allowed: an absolute path");
    EXPECT_EQ(parse({{"CROSSOVER_JOB", "a\nb"}}),
              "CROSSOVER_JOB is 'a?b'; allowed: at most 47 bytes without control characters");
}

TEST_F(OptionsTest, TextsAreAsLongAsTheRowSays) {
    EXPECT_EQ(parse({{"CROSSOVER_JOB", std::string(47, 'j')}}), "");
    EXPECT_EQ(std::string(options_.job), std::string(47, 'j'));
    EXPECT_EQ(parse({{"CROSSOVER_JOB", std::string(48, 'j')}}),
              "CROSSOVER_JOB is '" + std::string(48, 'j') +
                  "'; allowed: at most 47 bytes without control characters");
    EXPECT_EQ(parse({{"CROSSOVER_DIR", "/" + std::string(299, 'd')}}),
              "CROSSOVER_DIR is '/" + std::string(63, 'd') +
                  "...'; allowed: at most 255 bytes without control characters")
        << "a long value is cut in the message";
}

TEST_F(OptionsTest, ABadValueChangesNothing) {
    ASSERT_EQ(parse({{"CROSSOVER_LEASE_MS", "70"}}), "");
    EXPECT_NE(parse({{"CROSSOVER_LEASE_MS", "80"}, {"CROSSOVER_LOG", "loud"}}), "");
    EXPECT_EQ(options_.lease_ms, 70U);
}

TEST_F(OptionsTest, TheMessageFitsAnyBuffer) {
    environment = {{"CROSSOVER", "maybe"}};
    char error[12] = "";
    EXPECT_FALSE(parse_environment(look_up, options_, error, sizeof error));
    EXPECT_STREQ(error, "CROSSOVER i");
}

TEST(OptionRows, SayWhatTheParserDoes) {
    const std::vector<OptionRow> rows = option_rows();
    std::set<std::string> names;
    std::set<std::string> flags;
    for (const OptionRow& option : rows) {
        SCOPED_TRACE(option.environment);
        names.insert(option.environment);
        flags.insert(option.flag);
        EXPECT_FALSE(option.text.empty());
        EXPECT_EQ(option.flag.rfind("--", 0), 0U);
        // A choice's values and every default are accepted.
        std::vector<std::string> values = option.choices;
        if (!option.default_value.empty()) values.push_back(option.default_value);
        for (const std::string& value : values) {
            environment = {{option.environment, value}};
            Options options;
            char error[256] = "";
            EXPECT_TRUE(parse_environment(look_up, options, error, sizeof error)) << error;
        }
    }
    EXPECT_EQ(names.size(), rows.size());
    EXPECT_EQ(flags.size(), rows.size());
    EXPECT_EQ(names.count("CROSSOVER"), 1U);
    EXPECT_EQ(flags.count("--mode"), 1U);
    EXPECT_EQ(flags.count("--min-window-us"), 1U);
}

TEST(OptionRows, TheLargestWeightIsThePolicys) {
    environment = {{"CROSSOVER_WEIGHT", std::to_string(kMaxWeight)}};
    Options options;
    char error[256] = "";
    EXPECT_TRUE(parse_environment(look_up, options, error, sizeof error)) << error;
    environment = {{"CROSSOVER_WEIGHT", std::to_string(kMaxWeight + 1)}};
    EXPECT_FALSE(parse_environment(look_up, options, error, sizeof error));
}

TEST(OptionRows, MarkdownHasARowForEach) {
    const std::string table = options_markdown();
    const auto rows = option_rows();
    EXPECT_EQ(static_cast<std::size_t>(std::count(table.begin(), table.end(), '\n')),
              rows.size() + 2);
    EXPECT_NE(table.find("| `CROSSOVER` | `--mode` | off\\|on\\|observe | `on` |"),
              std::string::npos);
    EXPECT_NE(table.find("| `CROSSOVER_LEASE_MS` | `--lease-ms` | 0 to 10000 | `0` |"),
              std::string::npos);
    EXPECT_NE(table.find("| `CROSSOVER_DIR` | `--dir` | at most 255 bytes | empty |"),
              std::string::npos);
}

}  // namespace
}  // namespace crossover
