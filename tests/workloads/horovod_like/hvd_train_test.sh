#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# hvd_train on the virtual GPU: the losses and parameters of dp_train, whatever is fused and whichever NCCL is inside;
# what libhvd.so shows and needs; refused options.
# Usage: hvd_train_test.sh SIMGPU_RUN DP_TRAIN HVD_TRAIN, with SIMGPU_BUILD set.
set -u

simgpu_run=$1 dp_train=$2 hvd_train=$3
folder=$(dirname "$hvd_train")
# shellcheck source-path=SCRIPTDIR source=../train.sh
. "$(dirname "$0")/../train.sh"

options=(--iterations 20 --warmup 3 --layers 4)
expected=$(train 2 "$dp_train" "${options[@]}")
check 'one line a rank' 2 "$(wc -l <<<"$expected")"
check 'one tensor' "$expected" "$(train 2 "$hvd_train" "${options[@]}")"
check 'fused tensors' "$expected" "$(train 2 "$hvd_train" "${options[@]}" --buckets 4)"
check 'no room to fuse' "$expected" "$(train 2 "$hvd_train" "${options[@]}" --buckets 4 --fusion-mb 0.001)"
check 'overlapped' "$expected" "$(train 2 "$hvd_train" "${options[@]}" --buckets 4 --overlap --comm-mb 0.5)"
check 'rare negotiations' "$expected" "$(train 2 "$hvd_train" "${options[@]}" --buckets 2 --cycle-ms 10)"
check 'shared NCCL' "$expected" "$(train 2 "$hvd_train" "${options[@]}" --buckets 4 --library "$folder/libhvd_shared.so")"
check 'calibration' 2 "$(train 2 "$hvd_train" "${options[@]}" --compute-ms 2 | wc -l)"
check 'three ranks' "$(train 3 "$dp_train" "${options[@]}")" "$(train 3 "$hvd_train" "${options[@]}" --buckets 4)"

# Several tensors that become ready together are packed: their kernel runs on the device.
# shellcheck disable=SC2016
packed=$(SIMGPU_KERNELS='' "$simgpu_run" -- bash -c '
    cp "$1" "$2" "$SIMGPU_DIR/" || exit 1  # without the host versions of its kernels, which are then reported
    for rank in 0 1; do
        timeout 60 "$SIMGPU_DIR/hvd_train" --rank "$rank" --world-size 2 --id-file "$SIMGPU_DIR/id" --buckets 4 \
            --cycle-ms 20 --iterations 3 2>&1 >/dev/null & pids[rank]=$!
    done
    for pid in "${pids[@]}"; do wait "$pid" || exit 1; done' packed "$hvd_train" "$folder/libhvd.so")
[[ $packed == *"'hvd_copies'"* ]] || check 'packing' "...'hvd_copies'..." "$packed"

check 'what libhvd.so shows' \
    'hvd_allreduce_async hvd_error hvd_init hvd_open_coordinator hvd_shutdown hvd_synchronize' \
    "$(nm -D --defined-only "$folder/libhvd.so" | awk '{print $3}' | sort | tr '\n' ' ' | sed 's/ $//')"
check 'NCCL and CUDA that libhvd.so needs' '' \
    "$( { nm -D --undefined-only "$folder/libhvd.so"; readelf -d "$folder/libhvd.so"; } | grep -iE 'nccl|cuda|NEEDED.*libcu')"

refuse() {  # text in the message, status, options...
    local text=$1 status=$2
    shift 2
    local message
    message=$("$hvd_train" "$@" 2>&1)
    check "status of: $*" "$status" $?
    [[ $message == "hvd_train: "*"$text"* ]] || check "message for: $*" "hvd_train: ...$text..." "$message"
}
refuse '--cycle-ms' 2 --cycle-ms -1
refuse '--fusion-mb' 2 --fusion-mb 0
refuse 'nowhere.so' 1 --library "$scratch/nowhere.so"
refuse 'hvd_open_coordinator' 1 --library "$folder/hvd_train.simgpu.so"

all_passed
