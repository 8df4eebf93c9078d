#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# dp_train on the virtual GPU: the same losses and parameters on all ranks, over repeated runs and whatever the
# arrangement of its communication; its file of measurements; refused options.
# Usage: dp_train_test.sh SIMGPU_RUN DP_TRAIN, with SIMGPU_BUILD set.
set -u

simgpu_run=$1
export dp_train=$2
# shellcheck source-path=SCRIPTDIR source=train.sh
. "$(dirname "$0")/train.sh"

options=(--iterations 20 --warmup 3 --layers 4)
first=$(train 2 "$dp_train" "${options[@]}")
check 'one line a rank' 2 "$(wc -l <<<"$first")"
check 'both ranks end alike' 1 "$(sort -u <<<"$first" | wc -l)"
check 'a second run' "$first" "$(train 2 "$dp_train" "${options[@]}")"
check 'overlapped buckets' "$first" "$(train 2 "$dp_train" "${options[@]}" --overlap --buckets 4)"
check 'padded gradients' "$first" "$(train 2 "$dp_train" "${options[@]}" --comm-mb 0.5 --buckets 2 --overlap)"
check 'no synchronisation' "$first" "$(train 2 "$dp_train" "${options[@]}" --sync-every 0)"
check 'extra device time' "$first" "$(train 2 "$dp_train" "${options[@]}" --compute-ms 3 --burn-per-ms 25000)"
other=$(train 2 "$dp_train" "${options[@]}" --seed 2)
[[ $other != "$first" ]] || check 'another seed' 'another result' 'the same'
check 'three ranks end alike' 1 "$(train 3 "$dp_train" "${options[@]}" | sort -u | wc -l)"

train 2 "$dp_train" "${options[@]}" --json "$scratch/out.json" --compute-ms 2 >/dev/null
python3 - "$scratch/out.json" <<'END' || check 'measurements' 'as asked' 'otherwise'
import json, sys
got = json.load(open(sys.argv[1]))
losses = [float(text) for text in got["losses"]]
assert len(losses) == 23 and len(got["iteration_ms"]) == 20, "counts"
assert losses[-1] < losses[0], "it learns"
assert got["start_ns"] < got["measured_ns"] < got["end_ns"], "times"
assert min(got["iteration_ms"]) >= 2.0 and got["mean_iteration_ms"] >= 2.0, "device time asked for"
assert got["burn_per_ms"] > 0 and got["gradient_bytes"] > 0, "sizes"
END

# Over TCP, rank 0 last; and not before the time asked for.
# shellcheck disable=SC2016
"$simgpu_run" -- bash -c '
    export WORLD_SIZE=2 MASTER_ADDR=127.0.0.1
    MASTER_PORT=$(python3 -c "import socket; s = socket.socket(); s.bind((\"127.0.0.1\", 0)); print(s.getsockname()[1])")
    export MASTER_PORT
    at=$(python3 -c "import time; print(time.monotonic_ns() + 700000000)")
    RANK=1 timeout 60 "$dp_train" "$@" >"$scratch/tcp.1" & pid=$!
    RANK=0 timeout 60 "$dp_train" "$@" --start-at-ns "$at" --json "$scratch/out.json" >"$scratch/tcp.0" || exit 1
    wait "$pid" || exit 1
    python3 -c "import json, sys; sys.exit(json.load(open(sys.argv[1]))[\"start_ns\"] < int(sys.argv[2]))" \
        "$scratch/out.json" "$at"' train "${options[@]}"
check 'meeting over TCP, start time' 0 $?
check 'the same by TCP' "$(head -1 <<<"$first")" \
    "$(sed -n 's/^rank 1 loss \([^ ]*\) parameters \([^ ]*\) .*/\1 \2/p' "$scratch/tcp.1")"

refuse() {  # text in the message, options...
    local text=$1
    shift
    local message
    message=$("$dp_train" "$@" 2>&1)
    check "status of: $*" 2 $?
    check "lines for: $*" 1 "$(wc -l <<<"$message")"
    [[ $message == *"$text"* ]] || check "message for: $*" "...$text..." "$message"
}
refuse '--iterations' --iterations 0
refuse 'buckets' --layers 2 --buckets 3
refuse 'rank 2 of 2' --rank 2 --world-size 2
refuse 'meeting point' --world-size 2
refuse '--bogus' --bogus
RANK=x refuse 'RANK' --iterations 1
# Without a driver: one line and status 1.
message=$(env -u SIMGPU_DIR LD_LIBRARY_PATH="$SIMGPU_BUILD/tests/simgpu/lib" "$dp_train" 2>&1)
check 'status without a device' 1 $?
check 'message without a device' 'dp_train: cudaGetDeviceCount: no CUDA-capable device is detected (cudaErrorNoDevice)' \
    "$message"

all_passed
