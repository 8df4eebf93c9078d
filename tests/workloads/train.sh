# shellcheck shell=bash
# SPDX-License-Identifier: Apache-2.0
# To be sourced by the tests of training programs: runs jobs on the virtual GPU and compares what their ranks report.
# Expects $simgpu_run; sets $scratch (gone at the end) and $failures. No program, option or expectation belongs here.
scratch=$(mktemp -d)
export scratch
trap 'rm -rf "$scratch"' EXIT
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT PMIX_NAMESPACE
failures=0

check() {  # what, expected, got
    [[ $2 == "$3" ]] && return
    echo "FAILED: $1: expected '$2', got '$3'"
    failures=$((failures + 1))
}

# On a machine that is there: starts the ranks of a job and waits for them; their output goes to $scratch/NAME.RANK,
# what they say on standard error to $scratch/NAME.RANK.errors and to ours.
job() {  # name, ranks, program, options...
    local name=$1 ranks=$2 program=$3 rank pid status=0
    local -a pids=()
    shift 3
    for ((rank = 0; rank < ranks; ++rank)); do
        timeout 60 "$program" --rank "$rank" --world-size "$ranks" --id-file "$SIMGPU_DIR/$name.id" "$@" \
            >"$scratch/$name.$rank" 2>"$scratch/$name.$rank.errors" &
        pids+=($!)
    done
    for pid in "${pids[@]}"; do wait "$pid" || status=$?; done
    for ((rank = 0; rank < ranks; ++rank)); do cat "$scratch/$name.$rank.errors" >&2; done
    return "$status"
}
export -f job

# What a job's ranks reported: one line each, "LOSS PARAMETERS", in rank order.
reported() {  # name, ranks
    local rank
    for ((rank = 0; rank < $2; ++rank)); do
        sed -n 's/^rank [0-9]* loss \([^ ]*\) parameters \([^ ]*\) .*/\1 \2/p' "$scratch/$1.$rank"
    done
}

# A job alone on a machine with a device a rank.
train() {  # ranks, program, options...
    # shellcheck disable=SC2016,SC2154
    "$simgpu_run" --devices "$1" -- bash -c 'job alone "$@"' job "$@" || echo "exit status $?"
    reported alone "$1"
}

# For the end of a test.
all_passed() {
    ((failures == 0)) && echo 'all passed'
    exit $((failures > 0))
}
