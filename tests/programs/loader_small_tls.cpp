// SPDX-License-Identifier: Apache-2.0
// A library with thread-local storage of the initial-exec kind, of which the loader has little to
// spare.
[[gnu::tls_model("initial-exec")]] static thread_local int value[4] = {1, 2, 3, 4};
extern "C" [[gnu::visibility("default")]] int small_tls(int index) { return value[index]++; }
