#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# guest_asan.sh LIBRARY ASAN_RUNTIME GUEST KERNELS
# A program built with the address sanitizer, the library preloaded behind the sanitizer's runtime, alone and beside
# another job: the right result and not a word of the sanitizer's.
set -u
library=$1 runtime=$2 guest=$3
export SIMGPU_KERNELS=$4 ASAN_OPTIONS=detect_leaks=0
failed=0

expect_right() {
    local said
    if ! said=$(LD_PRELOAD=$runtime:$library CROSSOVER_JOB=guest "$guest" "${@:2}" 2>&1) || [ "$said" != "$1" ]; then
        echo "${*:2}: '$said' instead of '$1'"
        failed=1
    fi
}

expect_right "value 20" steps 20
coproc peer { LD_PRELOAD=$runtime:$library CROSSOVER_JOB=peer exec "$guest" loop 1000 2>&1; }
read -r ready <&"${peer[0]}"
[ "$ready" = ready ] || { echo "the peer says '$ready'"; failed=1; }
expect_right "value 20" steps 20
expect_right "value 160" threads 8
expect_right "bad 0, result right" forks 25
to_peer=${peer[1]}
exec {to_peer}>&-
wait
exit $failed
