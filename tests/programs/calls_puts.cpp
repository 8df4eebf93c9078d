// SPDX-License-Identifier: Apache-2.0
// Calls puts(), which next_preload wraps.
#include <cstdio>

int main() {
    std::puts("hello");
    return 0;
}
