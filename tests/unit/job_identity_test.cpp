// SPDX-License-Identifier: Apache-2.0
// Which job an environment tells, launcher by launcher, and which one wins.
#include "arbiter/job_identity.hpp"

#include <gtest/gtest.h>

#include <map>
#include <set>
#include <string>

#include "arbiter/hash.hpp"

namespace crossover {
namespace {

using Variables = std::map<std::string, std::string>;
Variables environment;

char* look_up(const char* name) {
    const auto found = environment.find(name);
    return found == environment.end() ? nullptr : found->second.data();
}

IdentitySource identify(const Variables& variables, JobIdentity& identity) {
    environment = variables;
    return identity_from_environment(look_up, identity);
}

struct Case {
    const char* name;
    Variables variables;
    IdentitySource source;
    const char* job_name;
};

const Variables kTorchrun = {{"TORCHELASTIC_RUN_ID", "7f3c"},
                             {"MASTER_ADDR", "node1"},
                             {"MASTER_PORT", "29500"},
                             {"WORLD_SIZE", "8"}};

Variables with(Variables variables, const Variables& more) {
    for (const auto& [name, value] : more) variables[name] = value;
    return variables;
}

class Identity : public testing::TestWithParam<Case> {};

TEST_P(Identity, FollowsTheTable) {
    const Case& row = GetParam();
    JobIdentity identity;
    EXPECT_EQ(identify(row.variables, identity), row.source);
    EXPECT_STREQ(identity.name, row.job_name);
    EXPECT_EQ(identity.key == 0, row.source == IdentitySource::kNone);
}

INSTANTIATE_TEST_SUITE_P(
    Table, Identity,
    testing::Values(
        Case{"nothing", {}, IdentitySource::kNone, ""},
        Case{"named", with(kTorchrun, {{"CROSSOVER_JOB", "bert"}}), IdentitySource::kNamed, "bert"},
        Case{"empty_name_is_none", with(kTorchrun, {{"CROSSOVER_JOB", ""}}),
             IdentitySource::kTorchrun, "7f3c:node1:29500"},
        Case{"torchrun", kTorchrun, IdentitySource::kTorchrun, "7f3c:node1:29500"},
        Case{"torchrun_without_master",
             {{"TORCHELASTIC_RUN_ID", "7f3c"}},
             IdentitySource::kTorchrun,
             "7f3c"},
        Case{"torchrun_default_id", with(kTorchrun, {{"TORCHELASTIC_RUN_ID", "none"}}),
             IdentitySource::kMaster, "node1:29500"},
        Case{"master",
             {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}, {"WORLD_SIZE", "2"}},
             IdentitySource::kMaster,
             "node1:1234"},
        Case{"master_alone_is_no_job",
             {{"MASTER_ADDR", "node1"}, {"MASTER_PORT", "1234"}},
             IdentitySource::kNone,
             ""},
        Case{"horovod_gloo",
             {{"HOROVOD_GLOO_RENDEZVOUS_ADDR", "10.0.0.1"},
              {"HOROVOD_GLOO_RENDEZVOUS_PORT", "4711"},
              {"HOROVOD_RANK", "3"}},
             IdentitySource::kHorovod,
             "10.0.0.1:4711"},
        Case{"open_mpi_5",
             {{"PMIX_NAMESPACE", "prterun-node1-4242@1"}, {"PMIX_RANK", "3"}},
             IdentitySource::kPmix,
             "prterun-node1-4242@1"},
        Case{"open_mpi_4",
             {{"PMIX_NAMESPACE", "1234567169"}, {"OMPI_MCA_ess_base_jobid", "1234567169"}},
             IdentitySource::kPmix,
             "1234567169"},
        Case{"open_mpi_3",
             {{"OMPI_MCA_ess_base_jobid", "1234567169"}},
             IdentitySource::kOpenMpi,
             "1234567169"},
        Case{"pmi2", {{"PMI_JOBID", "77.0"}, {"PMI_FD", "9"}}, IdentitySource::kPmi, "77.0"},
        Case{"hydra",
             {{"PMI_PORT", "node1:40001"}, {"PMI_ID", "3"}},
             IdentitySource::kPmi,
             "node1:40001"},
        Case{"pals", {{"PALS_APID", "a-b-c"}}, IdentitySource::kPals, "a-b-c"},
        Case{"flux", {{"FLUX_JOB_ID", "f2x"}}, IdentitySource::kFlux, "f2x"},
        Case{"slurm",
             {{"SLURM_JOB_ID", "99"}, {"SLURM_STEP_ID", "4"}, {"SLURM_PROCID", "3"}},
             IdentitySource::kSlurm,
             "99:4"},
        Case{"slurm_without_step", {{"SLURM_JOB_ID", "99"}}, IdentitySource::kNone, ""},
        Case{"mpirun_below_slurm",
             {{"PMIX_NAMESPACE", "j1"}, {"SLURM_JOB_ID", "99"}, {"SLURM_STEP_ID", "4"}},
             IdentitySource::kPmix,
             "j1"},
        Case{"horovodrun_over_mpi",
             {{"HOROVOD_GLOO_RENDEZVOUS_ADDR", "h"},
              {"HOROVOD_GLOO_RENDEZVOUS_PORT", "1"},
              {"PMIX_NAMESPACE", "j1"}},
             IdentitySource::kHorovod,
             "h:1"}),
    [](const testing::TestParamInfo<Case>& row) { return row.param.name; });

TEST(IdentityKey, IsTheSameOnEveryRankAndDiffersBetweenRuns) {
    JobIdentity rank0, rank1, other;
    identify(with(kTorchrun, {{"RANK", "0"}, {"LOCAL_RANK", "0"}}), rank0);
    identify(with(kTorchrun, {{"RANK", "5"}, {"LOCAL_RANK", "1"}}), rank1);
    EXPECT_EQ(rank0.key, rank1.key);
    for (const Variables& change :
         {Variables{{"MASTER_PORT", "29501"}}, Variables{{"MASTER_ADDR", "n2"}},
          Variables{{"TORCHELASTIC_RUN_ID", "8"}}}) {
        identify(with(kTorchrun, change), other);
        EXPECT_NE(other.key, rank0.key) << change.begin()->first;
    }
}

TEST(IdentityKey, TellsSourcesAndBoundariesApart) {
    std::set<std::uint64_t> keys;
    JobIdentity identity;
    const Variables all[] = {
        {{"CROSSOVER_JOB", "5"}},
        {{"PMIX_NAMESPACE", "5"}},
        {{"OMPI_MCA_ess_base_jobid", "5"}},
        {{"FLUX_JOB_ID", "5"}},
        {{"SLURM_JOB_ID", "1"}, {"SLURM_STEP_ID", "23"}},
        {{"SLURM_JOB_ID", "12"}, {"SLURM_STEP_ID", "3"}},
    };
    for (const Variables& variables : all) {
        identify(variables, identity);
        keys.insert(identity.key);
    }
    EXPECT_EQ(keys.size(), std::size(all));
}

TEST(IdentityKey, IsAFixedFunctionOfTheBytes) {
    // Nodes with other builds must agree: these values may never change.
    EXPECT_EQ(hash_bytes("", 0), 0xefd01f60ba992926U);
    EXPECT_EQ(hash_bytes("crossover", 9), 0xa523b4d109e0b574U);
}

TEST(IdentityKey, SpreadsSimilarIdsOverTheWholeRange) {
    // Keys decide the order, so consecutive ids must not always come in the same one.
    int rising = 0;
    std::uint64_t last = 0;
    for (int i = 0; i < 1000; ++i) {
        const std::string id = std::to_string(1000 + i);
        const std::uint64_t key = hash_bytes(id.data(), id.size());
        rising += key > last ? 1 : 0;
        last = key;
    }
    EXPECT_GT(rising, 400);
    EXPECT_LT(rising, 600);
}

TEST(IdentityName, KeepsTheEndOfALongId) {
    JobIdentity identity;
    const std::string id = std::string(300, 'h') + "-run-17";
    EXPECT_EQ(identify({{"CROSSOVER_JOB", std::string(40, 'h') + "-run-17"}}, identity),
              IdentitySource::kNamed);
    EXPECT_EQ(std::string(identity.name), std::string(40, 'h') + "-run-17");
    identify({{"PMIX_NAMESPACE", std::string(90, 'h') + "-run-17"}}, identity);
    EXPECT_EQ(std::string(identity.name), std::string(40, 'h') + "-run-17");
    JobIdentity longer;
    identify({{"PMIX_NAMESPACE", id}}, longer);
    JobIdentity other;
    identify({{"PMIX_NAMESPACE", id + "8"}}, other);
    EXPECT_NE(longer.key, other.key) << "the key is of all of it";
    EXPECT_LT(std::string(longer.name).size(), kJobNameBytes);
}

TEST(IdentityFromBytes, NamesAndKeys) {
    const unsigned char id[128] = {1, 2, 3};
    unsigned char other[128] = {1, 2, 3};
    other[127] = 1;
    const JobIdentity made = identity_from_bytes(id, sizeof id, nullptr);
    EXPECT_NE(made.key, 0U);
    EXPECT_EQ(made.key, identity_from_bytes(id, sizeof id, "x").key);
    EXPECT_NE(made.key, identity_from_bytes(other, sizeof other, nullptr).key);
    EXPECT_EQ(std::string(made.name).rfind("job-", 0), 0U);
    EXPECT_EQ(std::string(identity_from_bytes(id, sizeof id, std::string(99, 'n').c_str()).name),
              std::string(kJobNameBytes - 1, 'n'));
}

TEST(IdentitySourceName, IsForPeople) {
    EXPECT_STREQ(identity_source_name(IdentitySource::kNone), "none");
    EXPECT_STREQ(identity_source_name(IdentitySource::kTorchrun), "torchrun");
}

}  // namespace
}  // namespace crossover
