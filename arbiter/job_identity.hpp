// SPDX-License-Identifier: Apache-2.0
// Which job a process belongs to, from its environment: the same answer in every rank on every
// node. A loopback address counts together with the network namespace that it belongs to; apart
// from that no system call. No allocation. The communicator's id is another source; who has it
// calls identity_from_bytes().
#pragma once

#include <cstddef>
#include <cstdint>

#include "arbiter/client.hpp"
#include "arbiter/options.hpp"

namespace crossover {

enum class IdentitySource : std::uint32_t {
    kNone = 0,  // the environment does not tell
    kNamed,     // CROSSOVER_JOB
    kTorchrun,  // TORCHELASTIC_RUN_ID, unless "none", with MASTER_ADDR and MASTER_PORT where set
    kMaster,    // MASTER_ADDR, MASTER_PORT and WORLD_SIZE: PyTorch's own rendezvous, DeepSpeed, …
    kHorovod,   // HOROVOD_GLOO_RENDEZVOUS_ADDR and _PORT
    kPmix,      // PMIX_NAMESPACE: Open MPI 5 and 4, srun --mpi=pmix
    kOpenMpi,   // OMPI_MCA_ess_base_jobid: Open MPI 4 and older
    kPmi,       // PMI_JOBID, or hydra's PMI_PORT
    kPals,      // PALS_APID: Cray
    kFlux,      // FLUX_JOB_ID
    kSlurm,     // SLURM_JOB_ID and SLURM_STEP_ID
};

// "CROSSOVER_JOB", "torchrun", …: for people.
const char* identity_source_name(IdentitySource source) noexcept;

// The first source in the order above that is set. It goes from the framework's own rendezvous to
// the machine's: inside one Slurm step or MPI job several runs may be started, and mpirun below
// Slurm gives its daemons steps that differ from node to node. On kNone `identity` is unchanged.
IdentitySource identity_from_environment(EnvironmentLookup lookup, JobIdentity& identity) noexcept;

// Of bytes that are the same on every rank (a communicator's unique id). `name` nullptr: made from
// the key.
JobIdentity identity_from_bytes(const void* bytes, std::size_t size, const char* name) noexcept;

}  // namespace crossover
