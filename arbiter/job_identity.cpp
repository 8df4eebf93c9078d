// SPDX-License-Identifier: Apache-2.0
// The table of launchers. A launcher is one row; no code per launcher.
#include "arbiter/job_identity.hpp"

#include <stdio.h>
#include <sys/stat.h>

#include <algorithm>
#include <cstring>

#include "arbiter/hash.hpp"

namespace crossover {
namespace {

constexpr std::size_t kMaxVariables = 3;

struct Variable {
    const char* name = nullptr;
    bool required = true;
    bool in_key = true;           // else it only has to be there
    const char* unset = nullptr;  // a value that means "not set"
    bool is_address = false;      // of a host, perhaps with ":" and a port
};

struct Source {
    IdentitySource source;
    const char* label;  // goes into the key, so that equal ids of two launchers differ
    Variable variables[kMaxVariables];
};

constexpr Source kSources[] = {
    {IdentitySource::kNamed, "CROSSOVER_JOB", {{"CROSSOVER_JOB"}, {}, {}}},
    {IdentitySource::kTorchrun,
     "torchrun",
     {{"TORCHELASTIC_RUN_ID", true, true, "none"},
      {"MASTER_ADDR", false, true, nullptr, true},
      {"MASTER_PORT", false}}},
    {IdentitySource::kMaster,
     "master",
     {{"MASTER_ADDR", true, true, nullptr, true}, {"MASTER_PORT"}, {"WORLD_SIZE", true, false}}},
    {IdentitySource::kHorovod,
     "horovod",
     {{"HOROVOD_GLOO_RENDEZVOUS_ADDR", true, true, nullptr, true},
      {"HOROVOD_GLOO_RENDEZVOUS_PORT"},
      {}}},
    {IdentitySource::kPmix, "pmix", {{"PMIX_NAMESPACE"}, {}, {}}},
    {IdentitySource::kOpenMpi, "openmpi", {{"OMPI_MCA_ess_base_jobid"}, {}, {}}},
    {IdentitySource::kPmi, "pmi", {{"PMI_JOBID"}, {}, {}}},
    {IdentitySource::kPmi, "hydra", {{"PMI_PORT", true, true, nullptr, true}, {}, {}}},
    {IdentitySource::kPals, "pals", {{"PALS_APID"}, {}, {}}},
    {IdentitySource::kFlux, "flux", {{"FLUX_JOB_ID"}, {}, {}}},
    {IdentitySource::kSlurm, "slurm", {{"SLURM_JOB_ID"}, {"SLURM_STEP_ID"}, {}}},
};

const char* value_of(const Variable& variable, EnvironmentLookup lookup) noexcept {
    const char* value = lookup(variable.name);
    if (value == nullptr || value[0] == '\0') return nullptr;
    if (variable.unset != nullptr && std::strcmp(value, variable.unset) == 0) return nullptr;
    return value;
}

std::uint64_t add_to_key(std::uint64_t key, const char* text) noexcept {
    return hash_bytes(text, std::strlen(text) + 1, key);  // with the zero: "a","bc" is not "ab","c"
}

bool begins(const char* text, const char* with) noexcept {
    return std::strncmp(text, with, std::strlen(with)) == 0;
}

bool is_loopback(const char* address) noexcept {
    return begins(address, "127.") || begins(address, "::1") || begins(address, "[::1]") ||
           std::strcmp(address, "localhost") == 0 || begins(address, "localhost:");
}

// A loopback address means something within one network namespace only: in two containers it is the
// same text and two jobs. 0 where the system does not tell.
std::uint64_t own_network() noexcept {
    struct stat info {};
    if (stat("/proc/self/ns/net", &info) != 0) return 0;
    const std::uint64_t parts[] = {info.st_dev, info.st_ino};
    return hash_bytes(reinterpret_cast<const char*>(parts), sizeof parts);
}

bool try_source(const Source& source, EnvironmentLookup lookup, JobIdentity& identity) noexcept {
    JobIdentity made;
    made.key = hash_bytes(source.label, std::strlen(source.label) + 1);
    char text[256] = {};
    std::size_t used = 0;
    for (const Variable& variable : source.variables) {
        if (variable.name == nullptr) break;
        const char* value = value_of(variable, lookup);
        if (value == nullptr && variable.required) return false;
        if (!variable.in_key) continue;
        made.key = add_to_key(made.key, value != nullptr ? value : "");
        if (variable.is_address && value != nullptr && is_loopback(value)) {
            const std::uint64_t network = own_network();
            made.key =
                hash_bytes(reinterpret_cast<const char*>(&network), sizeof network, made.key);
        }
        if (value == nullptr) continue;
        const int length =
            snprintf(text + used, sizeof text - used, "%s%s", used == 0 ? "" : ":", value);
        if (length > 0) used = std::min(used + static_cast<std::size_t>(length), sizeof text - 1);
    }
    // The end of a long name tells runs apart, its beginning is the host's.
    const std::size_t room = sizeof made.name - 1;
    const char* shown = used > room ? text + used - room : text;
    std::memcpy(made.name, shown, std::min(used, room));
    identity = made;
    return true;
}

}  // namespace

const char* identity_source_name(IdentitySource source) noexcept {
    for (const Source& row : kSources) {
        if (row.source == source) return row.label;
    }
    return "none";
}

IdentitySource identity_from_environment(EnvironmentLookup lookup, JobIdentity& identity) noexcept {
    for (const Source& source : kSources) {
        if (try_source(source, lookup, identity)) return source.source;
    }
    return IdentitySource::kNone;
}

JobIdentity identity_from_bytes(const void* bytes, std::size_t size, const char* name) noexcept {
    JobIdentity identity;
    identity.key = hash_bytes(static_cast<const char*>(bytes), size);
    if (name != nullptr) {
        std::strncpy(identity.name, name, sizeof identity.name - 1);
    } else {
        snprintf(identity.name, sizeof identity.name, "job-%08llx",
                 static_cast<unsigned long long>(identity.key >> 32));
    }
    return identity;
}

}  // namespace crossover
