// SPDX-License-Identifier: Apache-2.0
// A library to preload in tests of `crossover run`. It only marks, for a program that looks, that
// it is there; it is not the product's library.

#if defined(__GNUC__)
__attribute__((visibility("default")))
#endif
extern const int crossover_test_preloaded;
const int crossover_test_preloaded = 1;
