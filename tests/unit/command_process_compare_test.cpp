// SPDX-License-Identifier: Apache-2.0
// `crossover compare` and the starting of several programs, with processes that play training jobs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <filesystem>
#include <nlohmann/json.hpp>

#include "command.hpp"
#include "command_shell.hpp"
#include "processes.hpp"

namespace crossover::command {
namespace {

using Words = std::vector<std::string>;

constexpr std::uint64_t kMinute = 60'000'000'000;
constexpr std::uint64_t kPollNs = 5'000'000;

Words compare_words(const ScratchFolder& folder, const Words& options, const Words& a,
                    const Words& b) {
    Words words{
        CX_TEST_PROGRAM,         "compare",      "--library",           CX_TEST_LIBRARY, "--json",
        folder.path() + "/json", "--output-dir", folder.path() + "/out"};
    words.insert(words.end(), options.begin(), options.end());
    words.push_back("--");
    words.insert(words.end(), a.begin(), a.end());
    words.push_back("--");
    words.insert(words.end(), b.begin(), b.end());
    return words;
}

TEST(Compare, MeasuresWhatTheJobsTellOfThemselves) {
    ScratchFolder folder;
    const Said said = run_program_of(
        compare_words(folder, {"--rounds", "2"}, {CX_TEST_PLAYER, "20", "20000", "10000", "0"},
                      {CX_TEST_PLAYER, "20", "10000", "20000", "0"}),
        {"CROSSOVER_LOG=none"});
    ASSERT_EQ(said.exit_status(), 0) << said.err;
    EXPECT_NE(said.out.find("bound T*"), std::string::npos) << said.out;
    const nlohmann::json json = nlohmann::json::parse(content_of(folder.path() + "/json"));
    ASSERT_EQ(json.at("modes").size(), 3U);
    ASSERT_EQ(json.at("jobs").size(), 2U);
    double bound = 0;
    double communicate = 0;
    double compute = 0;
    for (const auto& job : json.at("jobs")) {
        const auto& alone = job.at("alone");
        EXPECT_EQ(alone.at("clients"), 1);
        const double c = alone.at("compute_seconds");
        const double e = alone.at("exposed_seconds");
        const double s = alone.at("start_seconds");
        // Sleeping takes at least as long as asked for; a player exposes all of its communication.
        EXPECT_GE(e, job.at("name") == "A" ? 0.2 : 0.4);
        EXPECT_GE(c, job.at("name") == "A" ? 0.4 : 0.2);
        EXPECT_DOUBLE_EQ(alone.at("communicate_seconds").get<double>(), e);
        bound = std::max(bound, s + c + e);
        communicate += e;
        compute += c;
        EXPECT_EQ(job.at("alone_seconds").size(), 2U);
        EXPECT_EQ(job.at("crossover").at("turns"), 20);
        EXPECT_EQ(job.at("crossover").at("crossings"), 20);
        EXPECT_EQ(job.at("command")[0], CX_TEST_PLAYER);
    }
    EXPECT_NEAR(json.at("bound_seconds").get<double>(), std::max({bound, communicate, compute}),
                1e-6);
    for (const char* file : {"1-alone-A", "2-alone-B", "1-uncoordinated-A", "2-crossover-B"}) {
        EXPECT_EQ(content_of(folder.path() + "/out/" + file + ".txt"), "player: 20 iterations\n")
            << file;
    }
}

TEST(Compare, TellsWhichCommandFailedAndItsLastLines) {
    ScratchFolder folder;
    const Said said =
        run_program_of(compare_words(folder, {}, {CX_TEST_PLAYER, "1", "1000", "1000", "0"},
                                     {"sh", "-c", "seq 1 30; echo the reason >&2; exit 5"}),
                       {"CROSSOVER_LOG=none"});
    EXPECT_EQ(said.exit_status(), 1);
    EXPECT_NE(
        said.err.find("crossover compare: job B (alone) ended with exit status 5; output in "),
        std::string::npos)
        << said.err;
    EXPECT_TRUE(said.err.ends_with("\n    29\n    30\n    the reason\n")) << said.err;
    EXPECT_EQ(said.err.find("\n    2\n"), std::string::npos) << "only the last lines";
    EXPECT_EQ(said.out, "");
}

TEST(Compare, DoubtsProgramsThatUseNoDevice) {
    ScratchFolder folder;
    const Said said =
        run_program_of(compare_words(folder, {}, {"true"}, {"true"}), {"CROSSOVER_LOG=none"});
    EXPECT_EQ(said.exit_status(), 0) << said.err;
    EXPECT_NE(said.err.find("job A used no device"), std::string::npos) << said.err;
    EXPECT_EQ(said.out.find("bound"), std::string::npos) << said.out;
}

TEST(Compare, AnInterruptEndsTheCommandsToo) {
    ScratchFolder folder;
    const std::string pid_file = folder.path() + "/pid";
    Started compare(
        compare_words(folder, {}, {"sh", "-c", "echo $$ > " + pid_file + "; exec sleep 1000"},
                      {"true"}),
        {"CROSSOVER_LOG=none"});
    while (content_of(pid_file).find('\n') == std::string::npos) {
        ::usleep(2000);  // the test's watchdog bounds it
    }
    const pid_t command = std::stoi(content_of(pid_file));
    ASSERT_EQ(::kill(compare.pid(), SIGTERM), 0);
    const Said said = compare.collect();
    EXPECT_EQ(said.exit_status(), 128 + SIGTERM);
    EXPECT_NE(said.err.find("ended by signal 15"), std::string::npos) << said.err;
    EXPECT_EQ(::kill(command, 0), -1) << "still running";
}

Program shell(const ScratchFolder& folder, const std::string& name, const std::string& script) {
    return {name, {"sh", "-c", script}, Environment::of_process(), folder.path() + "/" + name};
}

TEST(RunTogether, RunsAllAtOnce) {
    ScratchFolder folder;
    // Each waits for the other's sign: only side by side do they end.
    const auto script = [&folder](const std::string& own, const std::string& other) {
        return ": > " + folder.path() + "/" + own + ".sign; while [ ! -e " + folder.path() + "/" +
               other + ".sign ]; do sleep 0.01; done";
    };
    std::vector<Program> programs{shell(folder, "a", script("a", "b")),
                                  shell(folder, "b", script("b", "a"))};
    std::size_t polls = 0;
    const auto outcomes = run_together(programs, kMinute, kPollNs, [&polls] { ++polls; });
    ASSERT_EQ(outcomes.size(), 2U);
    EXPECT_GT(polls, 0U);
    for (const Outcome& outcome : outcomes) {
        EXPECT_GT(outcome.end_ns, outcome.begin_ns);
    }
}

std::string fault_of(std::vector<Program> programs, std::uint64_t longest_ns) {
    try {
        run_together(programs, longest_ns, kPollNs, [] {});
    } catch (const Failure& failure) {
        return failure.what();
    }
    return "no fault";
}

TEST(RunTogether, OneFailureEndsTheOthers) {
    ScratchFolder folder;
    const std::string pid_file = folder.path() + "/pid";
    const std::string fault =
        fault_of({shell(folder, "long", "echo $$ > " + pid_file + "; exec sleep 1000"),
                  shell(folder, "short",
                        "while [ ! -s " + pid_file + " ]; do sleep 0.01; done; kill -KILL $$")},
                 kMinute);
    EXPECT_TRUE(fault.starts_with("short ended with signal 9 (Killed); output in ")) << fault;
    EXPECT_EQ(::kill(std::stoi(content_of(pid_file)), 0), -1) << "still running";
}

TEST(RunTogether, AProgramThatCannotStartIsNamed) {
    ScratchFolder folder;
    Program program = shell(folder, "x", "");
    program.command = {"/no/such/program"};
    EXPECT_EQ(fault_of({program}, kMinute),
              "x: cannot start /no/such/program: No such file or directory");
}

TEST(RunTogether, TheLimitEndsAProgramThatIgnoresSigterm) {
    ScratchFolder folder;
    const std::string fault = fault_of(
        {shell(folder, "deaf", "trap '' TERM; while :; do sleep 0.05; done")}, 1'000'000'000);
    EXPECT_TRUE(fault.starts_with("not finished after 1 s (--limit-s)")) << fault;
}

}  // namespace
}  // namespace crossover::command
