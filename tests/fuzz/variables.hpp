// SPDX-License-Identifier: Apache-2.0
// The environment variables that the library reads, in the order in which environment_fuzz takes
// their values from an input. Shared with the seeds, no behaviour.
#pragma once

#include <cstddef>

namespace crossover::fuzz {

inline constexpr const char* kNames[] = {
#define CX_CHOICE(field, default_value, environment, choices, text) environment,
#define CX_NUMBER(field, default_value, environment, minimum, maximum, text) environment,
#define CX_TEXT(field, environment, longest, text) environment,
#include "crossover/options.def"
#undef CX_CHOICE
#undef CX_NUMBER
#undef CX_TEXT
    "TORCHELASTIC_RUN_ID",
    "MASTER_ADDR",
    "MASTER_PORT",
    "WORLD_SIZE",
    "HOROVOD_GLOO_RENDEZVOUS_ADDR",
    "HOROVOD_GLOO_RENDEZVOUS_PORT",
    "PMIX_NAMESPACE",
    "OMPI_MCA_ess_base_jobid",
    "PMI_JOBID",
    "PMI_PORT",
    "PALS_APID",
    "FLUX_JOB_ID",
    "SLURM_JOB_ID",
    "SLURM_STEP_ID",
};
inline constexpr std::size_t kVariables = sizeof kNames / sizeof kNames[0];

}  // namespace crossover::fuzz
