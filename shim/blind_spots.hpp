// SPDX-License-Identifier: Apache-2.0
// Finds what of the process calls CUDA past this library: libraries opened with RTLD_DEEPBIND,
// which bind to the real functions before ours, and namespaces made by dlmopen(), which we are not
// in. Neither can be caught from here; it can be said. No CUDA header, no policy.
#pragma once

namespace crossover {

// Says at the level `info`, once for each kind in the life of the process, what passes us. Looks
// through the references of all loaded libraries: a matter of milliseconds, so not for launches.
// Any thread.
void report_blind_spots() noexcept;

}  // namespace crossover
