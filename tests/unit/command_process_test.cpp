// SPDX-License-Identifier: Apache-2.0
// `crossover` as users start it: exit statuses and signals of `run`, help texts, bad options, and
// status and trace of processes that play training jobs.
#include <gtest/gtest.h>
#include <signal.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <set>

#include "command_shell.hpp"
#include "crossover/layout.hpp"

namespace crossover::command {
namespace {

using Words = std::vector<std::string>;

constexpr const char* kProgram = CX_TEST_PROGRAM;
constexpr const char* kLibrary = CX_TEST_LIBRARY;

Words run_words(const Words& options, const Words& command) {
    Words words{kProgram, "run", "--library", kLibrary};
    words.insert(words.end(), options.begin(), options.end());
    // A daemon of this machine is no part of these tests.
    if (std::find_if(options.begin(), options.end(), [](const std::string& option) {
            return option.starts_with("--mps");
        }) == options.end()) {
        words.push_back("--mps=off");
    }
    words.push_back("--");
    words.insert(words.end(), command.begin(), command.end());
    return words;
}

Said run_of(const Words& command, const Words& with = {"CROSSOVER_LOG=none"}) {
    return run_program_of(run_words({}, command), with);
}

TEST(Run, ExitStatusIsTheCommands) {
    EXPECT_EQ(run_of({"sh", "-c", "exit 0"}).exit_status(), 0);
    EXPECT_EQ(run_of({"sh", "-c", "exit 7"}).exit_status(), 7);
    EXPECT_EQ(run_of({"sh", "-c", "exit 255"}).exit_status(), 255);
}

TEST(Run, SignalsAreTheCommands) {
    EXPECT_EQ(run_of({"sh", "-c", "kill -TERM $$"}).signal(), SIGTERM);
    // What is sent to the process that was started reaches the command, since it became it.
    ScratchFolder folder;
    const std::string ready = folder.path() + "/ready";
    Started started(run_words({}, {"sh", "-c",
                                   "trap 'echo caught; exit 9' USR1; : > " + ready +
                                       "; while :; do sleep 0.02; done"}),
                    {"CROSSOVER_LOG=none"});
    while (!std::filesystem::exists(ready)) {
        ::usleep(2000);  // the test's watchdog bounds it
    }
    ASSERT_EQ(::kill(started.pid(), SIGUSR1), 0);
    const Said said = started.collect();
    EXPECT_EQ(said.exit_status(), 9);
    EXPECT_EQ(said.out, "caught\n");
}

TEST(Run, OutputsAreTheCommandsAlone) {
    const Said said = run_of({"sh", "-c", "echo out; echo err >&2; cat"}, {"CROSSOVER_LOG=none"});
    EXPECT_EQ(said.out, "out\n");
    EXPECT_EQ(said.err, "err\n");
}

TEST(Run, CommandsThatCannotRunHaveTheShellsStatuses) {
    const Said missing = run_of({"/no/such/program"});
    EXPECT_EQ(missing.exit_status(), 127);
    EXPECT_EQ(missing.err, "crossover run: /no/such/program: command not found\n");
    EXPECT_EQ(run_of({"no-such-program-in-path"}).exit_status(), 127);
    const Said folder = run_of({"/"});
    EXPECT_EQ(folder.exit_status(), 126);
    EXPECT_EQ(folder.err, "crossover run: /: Permission denied\n");
}

TEST(Run, SetsThePreloadTheOptionsAndAName) {
    const Said said = run_program_of(
        run_words({"--lease-ms", "77", "--log", "none"},
                  {"sh", "-c", "echo \"$LD_PRELOAD|$CROSSOVER_LEASE_MS|$CROSSOVER_JOB|$KEPT\""}),
        {"KEPT=yes"});
    EXPECT_EQ(said.exit_status(), 0) << said.err;
    const std::string begin = std::string(kLibrary) + "|77|sh-";
    EXPECT_TRUE(said.out.starts_with(begin)) << said.out;
    EXPECT_EQ(said.out.size(), begin.size() + 6 + std::string("|yes\n").size()) << said.out;

    const Said named = run_program_of(
        run_words({"--job", "mine"}, {"sh", "-c", "echo $CROSSOVER_JOB"}), {"CROSSOVER_LOG=none"});
    EXPECT_EQ(named.out, "mine\n");
}

TEST(Run, TheLibraryIsInTheCommand) {
    const Said said = run_of({"grep", "-c", kLibrary, "/proc/self/maps"});
    EXPECT_EQ(said.exit_status(), 0) << said.err;
    EXPECT_GT(std::atoi(said.out.c_str()), 0) << said.out;
}

TEST(Run, RunInRunPreloadsOnce) {
    Words inner = run_words({}, {"sh", "-c", "echo $LD_PRELOAD"});
    const Said said = run_of(inner);
    EXPECT_EQ(said.out, std::string(kLibrary) + "\n") << said.err;
}

TEST(Run, ALaterDoubleDashIsTheCommands) {
    EXPECT_EQ(run_of({"printf", "%s ", "a", "--", "b"}).out, "a -- b ");
}

TEST(Run, SaysOnceThatMpsIsMissing) {
    const Words with{"CUDA_MPS_PIPE_DIRECTORY=/no/such/folder"};
    const Words automatic = run_words({"--mps=auto"}, {"true"});
    const Said said = run_program_of(automatic, with);
    EXPECT_EQ(said.exit_status(), 0);
    EXPECT_TRUE(
        said.err.starts_with("crossover run: going on without MPS (CUDA_MPS_PIPE_DIRECTORY "
                             "is /no/such/folder and no MPS daemon answers there)"))
        << said.err;
    EXPECT_EQ(said.err.find('\n'), said.err.size() - 1) << "one line";
    EXPECT_EQ(run_program_of(automatic, {with[0], "SIMGPU_DIR=/x"}).err, "");
    EXPECT_EQ(run_program_of(run_words({"--mps", "off"}, {"true"}), with).err, "");
    const Said refused = run_program_of(run_words({"--mps=on"}, {"echo", "started"}), with);
    EXPECT_EQ(refused.exit_status(), 2);
    EXPECT_EQ(refused.out, "");
    EXPECT_EQ(refused.err,
              "crossover run: --mps on: CUDA_MPS_PIPE_DIRECTORY is /no/such/folder and no MPS "
              "daemon answers there\n");
}

struct Mistake {
    Words words;
    std::string line;
};

TEST(Mistakes, AreOneLineAndStatusTwo) {
    const Mistake mistakes[] = {
        {{}, "crossover: no command; `crossover --help` lists them\n"},
        {{"jump"}, "crossover: 'jump' is not a command; `crossover --help` lists them\n"},
        {{"run"}, "crossover run: no command; usage: crossover-run [options] -- command...\n"},
        {{"run", "--"},
         "crossover run: no command; usage: crossover-run [options] -- command...\n"},
        {{"run", "true"}, "crossover run: 'true' is not expected here; see --help\n"},
        {{"run", "--mode", "x", "--", "true"},
         "crossover run: --mode: 'x' is not allowed; allowed: off|on|observe; see --help\n"},
        {{"run", "--mps", "yes", "--", "true"},
         "crossover run: --mps: 'yes' is not allowed; allowed: auto|on|off; see --help\n"},
        {{"mps-keep"},
         "crossover mps-keep: needs the folder of an MPS daemon that crossover-run started\n"},
        {{"run", "--library", "/no/lib.so", "--", "true"},
         "crossover run: --library '/no/lib.so' is not a readable file\n"},
        {{"compare", "--", "a"},
         "crossover compare: 1 commands; allowed: 2 to 8; usage: crossover-run compare [options] "
         "-- A... -- "
         "B...\n"},
        {{"compare", "--", "a", "--"},
         "crossover compare: an empty command; usage: crossover-run compare [options] -- A... -- "
         "B...\n"},
        {{"compare", "--rounds", "0", "--", "a", "--", "b"},
         "crossover compare: --rounds: '0' is not a whole number from 1 to 1000; see --help\n"},
        {{"compare", "--json", "/no/folder/x", "--", "a", "--", "b"},
         "crossover compare: --json '/no/folder/x' cannot be written\n"},
        {{"status", "--dir", "relative"},
         "crossover status: --dir 'relative' is not an absolute path of at most 255 bytes\n"},
        {{"trace", "--seconds", "x"},
         "crossover trace: --seconds: 'x' is not a whole number from 1 to 86400; see --help\n"},
        {{"trace", "--format", "png"},
         "crossover trace: --format: 'png' is not one of perfetto|html|both; see --help\n"},
        {{"trace", "--job", "A=1"}, "crossover trace: --job requires --from-truth; see --help\n"},
        {{"trace", "--from-truth", "/no/file"},
         "crossover trace: --from-truth '/no/file' cannot be read\n"},
        {{"plan"}, "crossover plan: file is required; see --help\n"},
        {{"plan", "/no/file"}, "crossover plan: '/no/file' cannot be read\n"},
        {{"plan", "/dev/null"}, "crossover plan: '/dev/null' is no JSON (at byte 1)\n"},
        {{"plan", "--devices", "17", "/dev/null"},
         "crossover plan: --devices: '17' is not a whole number from 1 to 16; see --help\n"},
    };
    for (const Mistake& mistake : mistakes) {
        Words words{kProgram};
        words.insert(words.end(), mistake.words.begin(), mistake.words.end());
        const Said said = run_program_of(words);
        EXPECT_EQ(said.exit_status(), 2) << mistake.line;
        EXPECT_EQ(said.err, mistake.line);
        EXPECT_EQ(said.out, "") << mistake.line;
    }
    const Said environment = run_of({"true"}, {"CROSSOVER_IDLE_GRACE_US=1"});
    EXPECT_EQ(environment.exit_status(), 2);
    EXPECT_NE(environment.err.find("CROSSOVER_IDLE_GRACE_US"), std::string::npos)
        << environment.err;
    EXPECT_EQ(environment.err.find('\n'), environment.err.size() - 1) << "one line";
}

// The texts are kept as files; CROSSOVER_UPDATE_GOLDEN=1 writes them anew.
TEST(Help, IsAsKept) {
    for (const std::string name : {"", "run", "compare", "status", "trace", "plan"}) {
        Words words{kProgram, name, "--help"};
        std::erase(words, "");
        const Said said = run_program_of(words);
        EXPECT_EQ(said.exit_status(), 0);
        EXPECT_EQ(said.err, "");
        const std::string file =
            std::string(CX_TEST_GOLDEN) + "/" + (name.empty() ? "crossover" : name) + ".txt";
        const char* update = std::getenv("CROSSOVER_UPDATE_GOLDEN");
        if (update != nullptr && std::string(update) == "1") {
            std::ofstream(file) << said.out;
        }
        EXPECT_EQ(said.out, content_of(file)) << file;
    }
    EXPECT_TRUE(run_program_of({kProgram, "--version"}).out.starts_with("crossover "));
}

TEST(Plan, PredictsAllJobsTogetherOrTheBestPairs) {
    ScratchFolder folder;
    const std::string jobs = folder.path() + "/jobs.json";
    const std::string out = folder.path() + "/plan.json";
    std::ofstream(jobs) << R"({"jobs": [{"name": "a", "compute_ms": 40, "communicate_ms": 20},
        {"name": "b", "steps": [{"compute_ms": 20, "communicate_ms": 10},
                                {"compute_ms": 20, "communicate_ms": 10}]},
        {"name": "c", "compute_ms": 30, "communicate_ms": 30}]})";
    const auto groups_of = [&](const Words& options) {
        Words words{kProgram, "plan", "--handover-us", "0", "--separate-links", "--json", out};
        words.insert(words.end(), options.begin(), options.end());
        words.push_back(jobs);
        const Said said = run_program_of(words);
        EXPECT_EQ(said.exit_status(), 0) << said.err;
        EXPECT_NE(said.out.find("speed"), std::string::npos) << said.out;
        return nlohmann::json::parse(content_of(out)).at("groups");
    };
    const auto together = groups_of({"--together", "--nodes", "2"});
    ASSERT_EQ(together.size(), 1U);
    EXPECT_EQ(together[0].at("devices"), 4);
    EXPECT_NEAR(together[0].at("bound_ms").get<double>(), 110, 0.01);
    ASSERT_EQ(together[0].at("jobs").size(), 3U);
    double used = 0;  // of a device
    const double compute_ms[] = {40, 40, 30};
    for (std::size_t i = 0; i < 3; ++i) {
        const auto& job = together[0].at("jobs")[i];
        EXPECT_NEAR(job.at("alone_ms").get<double>(), 60, 0.01);
        used += compute_ms[i] / job.at("together_ms").get<double>();
    }
    EXPECT_NEAR(used, 1, 0.01) << "without hand-overs the device always computes";
    EXPECT_NEAR(together[0].at("device_busy").get<double>(), 1, 0.05) << "but at the start";
    const auto pairs = groups_of({});
    ASSERT_EQ(pairs.size(), 2U);
    EXPECT_EQ(pairs[0].at("jobs").size(), 2U);
    EXPECT_EQ(pairs[1].at("jobs").size(), 1U);
}

TEST(Help, IsWrittenOrItIsNoSuccess) {
    const Said said = run_program_of({"sh", "-c", std::string(kProgram) + " --help > /dev/full"});
    EXPECT_EQ(said.exit_status(), 1);
    EXPECT_EQ(said.err, "crossover: cannot write to standard output\n");
}

TEST(Wrapper, FindsTheProgramAndPassesEverythingOn) {
    const std::string build =
        "CROSSOVER_BUILD=" + std::filesystem::path(kProgram).parent_path().parent_path().string();
    const Said said = run_program_of({CX_TEST_WRAPPER, "--library", kLibrary, "--log", "none", "--",
                                      "sh", "-c", "echo \"$1\"; exit 4", "sh", "two  words"},
                                     {build});
    EXPECT_EQ(said.exit_status(), 4) << said.err;
    EXPECT_EQ(said.out, "two  words\n");
    EXPECT_EQ(run_program_of({CX_TEST_WRAPPER, "compare", "--help"}, {build}).out,
              run_program_of({kProgram, "compare", "--help"}).out);
    const Said missing =
        run_program_of({CX_TEST_WRAPPER, "--", "true"}, {"CROSSOVER_BUILD=/no/such"});
    EXPECT_EQ(missing.exit_status(), 2);
    EXPECT_NE(missing.err.find("/no/such/bin/crossover is missing"), std::string::npos)
        << missing.err;
}

TEST(Wrapper, WorksInstalledBesideTheProgramAndThroughALink) {
    ScratchFolder folder;
    std::filesystem::create_directories(folder.path() + "/bin");
    std::filesystem::create_directories(folder.path() + "/lib");
    std::filesystem::copy_file(kProgram, folder.path() + "/bin/crossover");
    std::filesystem::copy_file(CX_TEST_WRAPPER, folder.path() + "/bin/crossover-run");
    std::filesystem::create_symlink("bin/crossover-run", folder.path() + "/link");
    const Words words{folder.path() + "/link", "--", "sh", "-c", "echo $LD_PRELOAD"};
    const Said missing = run_program_of(words, {"CROSSOVER_LOG=none"});
    EXPECT_EQ(missing.exit_status(), 2);
    EXPECT_NE(missing.err.find("libcrossover.so is missing: looked for " + folder.path() + "/lib/"),
              std::string::npos)
        << missing.err;
    std::filesystem::copy_file(kLibrary, folder.path() + "/lib/libcrossover.so");
    const Said said = run_program_of(words, {"CROSSOVER_LOG=none"});
    EXPECT_EQ(said.out, folder.path() + "/lib/libcrossover.so\n") << said.err;
}

Words player(const std::string& job, const std::string& iterations) {
    return run_words({"--job", job}, {CX_TEST_PLAYER, iterations, "20000", "15000", "0"});
}

TEST(Status, ShowsProcessesThatShareADevice) {
    ScratchFolder folder;
    const Words with{"CROSSOVER_DIR=" + folder.path(), "CROSSOVER_LOG=none"};
    const Words status{kProgram, "status", "--dir", folder.path()};
    EXPECT_EQ(run_program_of(status).out, "no jobs\n");
    Started first(player("first", "100000"), with);
    Started second(player("second", "100000"), with);
    nlohmann::json device;
    for (;;) {  // the test's watchdog bounds it
        const Said said = run_program_of({kProgram, "status", "--json"}, with);
        ASSERT_EQ(said.exit_status(), 0) << said.err;
        const nlohmann::json json = nlohmann::json::parse(said.out);
        if (!json.at("devices").empty()) {
            device = json.at("devices")[0];
            if (device.at("clients").size() == 2 && device.at("turn_count") > 5) {
                break;
            }
        }
        ::usleep(10'000);
    }
    std::set<std::string> jobs;
    std::set<int> pids;
    for (const auto& client : device.at("clients")) {
        jobs.insert(client.at("job"));
        pids.insert(client.at("pid").get<int>());
        EXPECT_EQ(client.at("mode"), "on");
    }
    EXPECT_EQ(jobs, (std::set<std::string>{"first", "second"}));
    EXPECT_EQ(pids, (std::set<int>{first.pid(), second.pid()}));
    const Said table = run_program_of(status);
    EXPECT_NE(table.out.find("first"), std::string::npos) << table.out;
    EXPECT_NE(table.out.find("second"), std::string::npos) << table.out;
}

TEST(Status, TellsSegmentsThatCannotBeRead) {
    ScratchFolder folder;
    const std::string path = folder.path() + "/GPU-00000000-0000-0000-0000-000000000009.v" +
                             std::to_string(kLayoutVersion);
    std::ofstream(path) << "rubbish";
    const Said said = run_program_of({kProgram, "status", "--dir", folder.path()});
    EXPECT_EQ(said.exit_status(), 1);
    EXPECT_EQ(said.out, "");
    EXPECT_TRUE(said.err.starts_with("crossover status: " + path + ": ")) << said.err;
    EXPECT_EQ(said.err.find('\n'), said.err.size() - 1) << said.err;
}

TEST(Trace, FollowsJobsToTheirEnd) {
    ScratchFolder folder;
    const Words with{"CROSSOVER_DIR=" + folder.path(), "CROSSOVER_LOG=none"};
    const std::string prefix = folder.path() + "/picture";
    Started trace({kProgram, "trace", "--until-end", "--output", prefix}, with);
    Started first(player("first", "30"), with);
    Started second(player("second", "30"), with);
    EXPECT_EQ(first.collect().exit_status(), 0);
    EXPECT_EQ(second.collect().exit_status(), 0);
    const Said said = trace.collect();
    ASSERT_EQ(said.exit_status(), 0) << said.err;
    EXPECT_EQ(said.out, prefix + ".json\n" + prefix + ".html\n");
    EXPECT_EQ(said.err, "") << "nothing lost";
    const nlohmann::json json = nlohmann::json::parse(content_of(prefix + ".json"));
    std::map<int, std::string> lanes;
    std::map<std::string, std::size_t> slices;
    for (const auto& event : json.at("traceEvents")) {
        if (event.at("name") == "thread_name") {
            lanes[event.at("tid")] = event.at("args").at("name");
        } else if (event.at("ph") == "X") {
            ++slices[lanes[event.at("tid")]];
        }
    }
    for (const std::string job : {"first", "second"}) {
        EXPECT_EQ(slices[job + ": compute"], 30U);
        EXPECT_EQ(slices[job + ": communication window"], 30U);
        EXPECT_EQ(slices[job + ": collective in flight"], 30U);
    }
    EXPECT_GE(slices["whose turn"], 60U);
    const std::string page = content_of(prefix + ".html");
    EXPECT_NE(page.find("first only communicates"), std::string::npos);
    EXPECT_NE(page.find("second computes"), std::string::npos);
}

TEST(Trace, AnInterruptEndsTheRecordingAndWritesIt) {
    ScratchFolder folder;
    const Words with{"CROSSOVER_DIR=" + folder.path(), "CROSSOVER_LOG=none"};
    Started job(player("only", "100000"), with);
    while (run_program_of({kProgram, "status"}, with).out == "no jobs\n") {
        ::usleep(10'000);  // the test's watchdog bounds it
    }
    const std::string prefix = folder.path() + "/picture";
    Started trace({kProgram, "trace", "--seconds", "3600", "--format", "html", "--output", prefix},
                  with);
    ::usleep(700'000);
    ASSERT_EQ(::kill(trace.pid(), SIGINT), 0);
    const Said said = trace.collect();
    EXPECT_EQ(said.exit_status(), 0) << said.err;
    EXPECT_EQ(said.out, prefix + ".html\n");
    EXPECT_NE(content_of(prefix + ".html").find("only computes"), std::string::npos);
}

TEST(Trace, WithoutAnyJobSaysSo) {
    ScratchFolder folder;
    const Said said = run_program_of({kProgram, "trace", "--until-end", "--wait-seconds", "1",
                                      "--dir", folder.path(), "--output", folder.path() + "/x"});
    EXPECT_EQ(said.exit_status(), 1);
    EXPECT_EQ(said.err, "crossover trace: no job came within 1 s (--wait-seconds)\n");
    EXPECT_FALSE(std::filesystem::exists(folder.path() + "/x.json"));
}

}  // namespace
}  // namespace crossover::command
