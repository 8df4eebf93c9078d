// SPDX-License-Identifier: Apache-2.0
// The number of this process without a system call. Nothing else belongs here.
#pragma once

#include <sys/types.h>

namespace crossover {

// getpid(), remembered in memory that the kernel zeroes in every child of a fork, by whatever call
// it was made. Any thread.
pid_t process_id() noexcept;

}  // namespace crossover
