// SPDX-License-Identifier: Apache-2.0
// Command lines: splitting, the option table as options, one line for each mistake.
#include "arguments.hpp"

#include <gtest/gtest.h>

#include "arbiter/options_text.hpp"

namespace crossover::command {
namespace {

using Words = std::vector<std::string>;

std::string fault_of(const Words& words, Settings* settings = nullptr) {
    CLI::App app("text", "name");
    set_usage(app, "name");
    Settings own;
    add_table_options(app, settings == nullptr ? own : *settings);
    std::uint64_t number = 0;
    add_number(app, "--rounds", number, 1, 10, "rounds");
    try {
        parse(app, words);
    } catch (const UsageError& error) {
        EXPECT_EQ(error.exit_status(), 2);
        EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos) << "one line";
        return error.what();
    }
    return "";
}

TEST(Arguments, AreSplitAtDashes) {
    const Words words{"--json", "x", "--", "a", "-b", "--", "c"};
    EXPECT_EQ(split_at_dashes(words), (std::vector<Words>{{"--json", "x"}, {"a", "-b"}, {"c"}}));
    EXPECT_EQ(split_at_dashes(Words{}), (std::vector<Words>{{}}));
    EXPECT_EQ(split_at_dashes(Words{"--"}), (std::vector<Words>{{}, {}}));
}

TEST(Arguments, EveryRowOfTheTableIsAnOption) {
    for (const OptionRow& row : option_rows()) {
        Settings settings;
        const std::string value = row.default_value.empty() ? "/x" : row.default_value;
        EXPECT_EQ(fault_of({row.flag, value}, &settings), "") << row.flag;
        ASSERT_EQ(settings.size(), 1U) << row.flag;
        EXPECT_EQ(settings[0].first, row.environment);
        EXPECT_EQ(settings[0].second, value);
    }
}

TEST(Arguments, AMistakeNamesTheOptionAndWhatIsAllowed) {
    EXPECT_EQ(fault_of({"--mode", "maybe"}),
              "--mode: 'maybe' is not allowed; allowed: off|on|observe; see --help");
    EXPECT_EQ(fault_of({"--mode="}), "--mode: 1 required off|on|observe missing; see --help");
    EXPECT_EQ(fault_of({"--lease-ms", "10001"}),
              "--lease-ms: '10001' is not allowed; allowed: 0 to 10000; see --help");
    EXPECT_EQ(fault_of({"--idle-grace-us", "-5"}),
              "--idle-grace-us: '-5' is not allowed; allowed: 100 to 10000000; see --help");
    EXPECT_EQ(fault_of({"--job", std::string(48, 'x')}),
              "--job: '" + std::string(48, 'x') +
                  "' is not allowed; allowed: at most 47 bytes; see --help");
    EXPECT_EQ(fault_of({"--nothing"}), "'--nothing' is no option; see --help");
    EXPECT_EQ(fault_of({"word"}), "'word' is not expected here; see --help");
    EXPECT_EQ(fault_of({"--rounds", "0"}),
              "--rounds: '0' is not a whole number from 1 to 10; see --help");
    EXPECT_EQ(fault_of({"--rounds", "1x"}),
              "--rounds: '1x' is not a whole number from 1 to 10; see --help");
    EXPECT_EQ(fault_of({"--rounds", "99999999999999999999"}),
              "--rounds: '99999999999999999999' is not a whole number from 1 to 10; see --help");
    EXPECT_EQ(fault_of({"--rounds"}), "--rounds: 1 required NUMBER missing; see --help");
}

TEST(Arguments, RowsCanBeLeftOut) {
    CLI::App app("text", "name");
    Settings settings;
    add_table_options(app, settings, {"CROSSOVER", "CROSSOVER_JOB"});
    EXPECT_THROW(parse(app, {"--mode", "on"}), UsageError);
    EXPECT_THROW(parse(app, {"--job", "x"}), UsageError);
    EXPECT_TRUE(parse(app, {"--lease-ms", "7"}));
}

}  // namespace
}  // namespace crossover::command
