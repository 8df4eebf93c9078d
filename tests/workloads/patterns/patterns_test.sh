#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# One pattern on the virtual GPU: the same losses and parameters bare, with the library preloaded, and beside a job of
# its kind with both preloaded; those of dp_train where it computes the same.
# Usage: patterns_test.sh SIMGPU_RUN PATTERNS DP_TRAIN LIBRARY NAME, with SIMGPU_BUILD set.
set -u

simgpu_run=$1 patterns=$2 dp_train=$3 name=$5
export preloaded=$4
# shellcheck source-path=SCRIPTDIR source=../train.sh
. "$(dirname "$0")/../train.sh"

options=(--iterations 14 --warmup 3 --layers 4 --buckets 2 --hidden 32 --compute-ms 4 --burn-per-ms 25000 --comm-mb 0.4)
mine=(--pattern "$name" "${options[@]}")
ranks=2 devices=2
[[ $name == one_process_two_devices ]] && ranks=1
[[ $name == ranks_share_device ]] && devices=1
export ranks
machine=("$simgpu_run" --devices "$devices" --link-gbps 1)

# Both ways of reading the loss: every iteration, and only at the end, when the CPU runs ahead.
for every in 1 0; do
    mine=(--pattern "$name" "${options[@]}" --sync-every "$every")
    # shellcheck disable=SC2016
    "${machine[@]}" -- bash -c 'job bare "$ranks" "$@"' job "$patterns" "${mine[@]}"
    check 'status, bare' 0 $?
    bare=$(reported bare "$ranks")
    check 'one line a rank' "$ranks" "$(wc -l <<<"$bare")"

    # shellcheck disable=SC2016
    "${machine[@]}" -- bash -c '
        export LD_PRELOAD=$preloaded CROSSOVER_LOG=info
        job alone "$ranks" "$@" 2>/dev/null' job "$patterns" "${mine[@]}"
    check 'status, preloaded' 0 $?
    check 'preloaded' "$bare" "$(reported alone "$ranks")"

    # shellcheck disable=SC2016
    "${machine[@]}" -- bash -c '
        export LD_PRELOAD=$preloaded CROSSOVER_LOG=info
        CROSSOVER_JOB=a job a "$ranks" "$@" 2>/dev/null & first=$!
        CROSSOVER_JOB=b job b "$ranks" "$@" 2>/dev/null & second=$!
        wait "$first" && wait "$second"' job "$patterns" "${mine[@]}"
    check 'status, beside its like' 0 $?
    for job in a b; do
        check "job $job beside its like" "$bare" "$(reported "$job" "$ranks")"
        for ((rank = 0; rank < ranks; ++rank)); do
            # Else nothing was tested.
            grep -q "job $job joined device" "$scratch/$job.$rank.errors" ||
                check "rank $rank of job $job" 'joined a device' "$(cat "$scratch/$job.$rank.errors")"
        done
    done
done

# What the arithmetic must come to, whatever the order of calls.
losses=$(cut -d' ' -f1 <<<"$bare")
check 'all ranks end with one loss' 1 "$(sort -u <<<"$losses" | wc -l)"
case $name in
    pipeline)
        # One stage with all layers does the same sums.
        check 'one stage' "$(head -1 <<<"$losses")" "$(train 1 "$patterns" "${mine[@]}" | cut -d' ' -f1)" ;;
    tensor_parallel)
        # Sums are parted, so rounded, otherwise.
        whole=$(train 1 "$patterns" "${mine[@]}" | cut -d' ' -f1)
        python3 -c 'import math, sys; sys.exit(not math.isclose(*map(float, sys.argv[1:3]), rel_tol=1e-3))' \
            "$whole" "$(head -1 <<<"$losses")" || check 'not split' "$whole" "$losses" ;;
    ddp_no_sync)
        check 'one micro-batch' "$(train 2 "$dp_train" "${options[@]}")" \
            "$(train 2 "$patterns" "${mine[@]}" --micro-batches 1)" ;;
    one_process_two_devices)
        check 'dp_train' "$(train 2 "$dp_train" "${options[@]}" | head -1)" "$bare" ;;
    *) check 'dp_train' "$(train 2 "$dp_train" "${options[@]}")" "$bare" ;;
esac

all_passed
