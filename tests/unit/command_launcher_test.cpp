// SPDX-License-Identifier: Apache-2.0
// What launchers are told about the preload, over command lines.
#include <gtest/gtest.h>

#include <algorithm>

#include "run_launcher.hpp"

namespace crossover::command {
namespace {

using Words = std::vector<std::string>;

Environment launched() {
    return Environment({"PATH=/bin", "LD_PRELOAD=/o/libcrossover.so:/b.so", "CROSSOVER_JOB=j",
                        "CROSSOVER=on", "CROSSOVER_DIR=/d", "CROSSOVERS=x",
                        "CUDA_MPS_PIPE_DIRECTORY=/d/mps-0/pipe"});
}

Words passed(const Words& command, Launcher launcher) {
    const Forwarding result = forward_to_ranks(command, launched(), launcher);
    EXPECT_EQ(result.fault, "");
    return result.command;
}

TEST(LauncherName, TellsTheFamily) {
    EXPECT_EQ(launcher_by("/opt/bin/horovodrun", "", ""), Launcher::kPassesOn);
    EXPECT_EQ(launcher_by("srun", "", ""), Launcher::kSrun);
    EXPECT_EQ(launcher_by("torchrun", "", ""), Launcher::kOther);
    EXPECT_EQ(launcher_by("python", "", "Open MPI"), Launcher::kOther);
    EXPECT_EQ(launcher_by("orterun", "", ""), Launcher::kOpenMpi);
    EXPECT_EQ(launcher_by("mpiexec.hydra", "", ""), Launcher::kHydra);
    EXPECT_EQ(launcher_by("mpirun", "/usr/bin/orterun", ""), Launcher::kOpenMpi);
    EXPECT_EQ(launcher_by("mpirun", "/usr/bin/mpiexec.hydra", ""), Launcher::kHydra);
    EXPECT_EQ(launcher_by("mpirun", "/usr/bin/prterun", ""), Launcher::kOpenMpi);
    EXPECT_EQ(launcher_by("mpiexec", "/x/mpiexec", "mpiexec (OpenRTE) 4.1.4\n"),
              Launcher::kOpenMpi);
    EXPECT_EQ(launcher_by("mpirun", "/x/mpirun", "mpirun (Open MPI) 5.0.1\n"), Launcher::kOpenMpi);
    EXPECT_EQ(launcher_by("mpiexec", "/x/mpiexec", "HYDRA build details:\n"), Launcher::kHydra);
    EXPECT_EQ(launcher_by("mpirun", "/x/mpirun", "Intel(R) MPI Library for Linux* OS"),
              Launcher::kHydra);
    EXPECT_EQ(launcher_by("mpirun", "/x/mpirun", "?"), Launcher::kOther);
}

TEST(OpenMpi, PassesThePreloadAndTheOptionsOnce) {
    EXPECT_EQ(passed({"mpirun", "-np", "4", "a"}, Launcher::kOpenMpi),
              (Words{"mpirun", "-x", "LD_PRELOAD", "-x", "CROSSOVER", "-x", "CROSSOVER_DIR", "-x",
                     "CROSSOVER_JOB", "-np", "4", "a"}));
    const Words once = passed({"mpirun", "-np", "4", "a"}, Launcher::kOpenMpi);
    EXPECT_EQ(passed(once, Launcher::kOpenMpi), once);
}

TEST(OpenMpi, TheUsersOwnWordsStand) {
    EXPECT_EQ(passed({"mpirun", "-x", "CROSSOVER_JOB=mine", "-x", "CROSSOVER", "-x",
                      "LD_PRELOAD=/u.so", "-x", "CROSSOVER_DIR", "a"},
                     Launcher::kOpenMpi),
              (Words{"mpirun", "-x", "CROSSOVER_JOB=mine", "-x", "CROSSOVER", "-x",
                     "LD_PRELOAD=/o/libcrossover.so:/u.so", "-x", "CROSSOVER_DIR", "a"}));
}

TEST(OpenMpi, AListOfVariablesTakesNoOther) {
    const Words command{"mpirun", "--mca", "mca_base_env_list", "A;B", "a"};
    const Forwarding result = forward_to_ranks(command, launched(), Launcher::kOpenMpi);
    EXPECT_EQ(result.command, command);
    EXPECT_NE(result.fault.find("mca_base_env_list"), std::string::npos);
    Environment environment = launched();
    environment.set("OMPI_MCA_mca_base_env_list", "A");
    EXPECT_NE(forward_to_ranks({"mpirun", "a"}, environment, Launcher::kOpenMpi).fault, "");
}

TEST(Hydra, SetsThemForAllRanks) {
    EXPECT_EQ(passed({"mpiexec", "-n", "2", "a"}, Launcher::kHydra),
              (Words{"mpiexec", "-genv", "LD_PRELOAD", "/o/libcrossover.so:/b.so", "-genv",
                     "CROSSOVER", "on", "-genv", "CROSSOVER_DIR", "/d", "-genv", "CROSSOVER_JOB",
                     "j", "-n", "2", "a"}));
    const Words own =
        passed({"mpiexec", "-genv", "LD_PRELOAD", "/u.so", "-env", "LD_PRELOAD", "/v.so", "a"},
               Launcher::kHydra);
    EXPECT_EQ(Words(own.end() - 7, own.end()),
              (Words{"-genv", "LD_PRELOAD", "/o/libcrossover.so:/u.so", "-env", "LD_PRELOAD",
                     "/o/libcrossover.so:/v.so", "a"}));
    EXPECT_EQ(std::count(own.begin(), own.end(), "LD_PRELOAD"), 2);
}

TEST(Srun, PassesEverythingOnUnlessToldOtherwise) {
    const auto same = [](const Words& command) {
        EXPECT_EQ(passed(command, Launcher::kSrun), command);
    };
    same({"srun", "-n2", "a"});
    same({"srun", "--export=ALL", "a"});
    same({"srun", "--export=ALL,X=1", "a"});
    EXPECT_EQ(passed({"srun", "--export=NONE", "a"}, Launcher::kSrun),
              (Words{"srun", "--export=LD_PRELOAD,CROSSOVER,CROSSOVER_DIR,CROSSOVER_JOB", "a"}));
    EXPECT_EQ(passed({"srun", "--export", "PATH,CROSSOVER_JOB=k", "a"}, Launcher::kSrun),
              (Words{"srun", "--export", "PATH,CROSSOVER_JOB=k,LD_PRELOAD,CROSSOVER,CROSSOVER_DIR",
                     "a"}));
    Environment environment = launched();
    environment.set("SLURM_EXPORT_ENV", "NONE");
    EXPECT_EQ(forward_to_ranks({"srun", "a"}, environment, Launcher::kSrun)
                  .environment.get("SLURM_EXPORT_ENV"),
              "LD_PRELOAD,CROSSOVER,CROSSOVER_DIR,CROSSOVER_JOB");
}

TEST(OtherLaunchers, AreLeftAlone) {
    for (const Launcher launcher : {Launcher::kOther, Launcher::kPassesOn}) {
        const Words command{"x", "-x", "LD_PRELOAD=/u.so", "--export=NONE", "a"};
        EXPECT_EQ(passed(command, launcher), command);
    }
}

TEST(Hosts, AreSeenInTheCommandLine) {
    const auto several = [](const Words& command, Launcher launcher) {
        return forward_to_ranks(command, launched(), launcher).several_hosts;
    };
    EXPECT_TRUE(several({"mpirun", "-H", "a,b", "x"}, Launcher::kOpenMpi));
    EXPECT_TRUE(several({"mpirun", "--hostfile", "f", "x"}, Launcher::kOpenMpi));
    EXPECT_TRUE(several({"horovodrun", "-H", "a:1,b:1", "x"}, Launcher::kPassesOn));
    EXPECT_TRUE(several({"srun", "--nodes=2", "x"}, Launcher::kSrun));
    EXPECT_FALSE(several({"mpirun", "-np", "2", "x"}, Launcher::kOpenMpi));
    EXPECT_FALSE(several({"mpirun", "-N", "2", "x"}, Launcher::kOpenMpi)) << "ranks a node";
    EXPECT_FALSE(several({"srun", "-N", "1", "x"}, Launcher::kSrun));
    EXPECT_FALSE(several({"horovodrun", "-H", "localhost:2", "x"}, Launcher::kPassesOn));
    EXPECT_TRUE(several({"horovodrun", "-H", "localhost:2,b:2", "x"}, Launcher::kPassesOn));
    EXPECT_TRUE(several({"mpirun", "--host=a", "x"}, Launcher::kOpenMpi));
    EXPECT_FALSE(several({"python", "-H", "x"}, Launcher::kOther));
}

}  // namespace
}  // namespace crossover::command
