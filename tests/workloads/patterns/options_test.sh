#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# What `patterns` says about its patterns and to settings that do not suit them; needs no device.
# Usage: options_test.sh PATTERNS
set -u

patterns=$1
# shellcheck source-path=SCRIPTDIR source=../train.sh
. "$(dirname "$0")/../train.sh"

check '--list' "$(sed -n 's/^PATTERN(\([a-z_]*\),.*/\1/p' "$(dirname "$0")/patterns.def")" \
    "$("$patterns" --list | awk '{print $1}')"

refuse() {  # text in the message, options...
    local text=$1 message
    shift
    message=$("$patterns" "$@" 2>&1)
    check "status of: $*" 2 $?
    check "lines for: $*" 1 "$(wc -l <<<"$message")"
    [[ $message == "patterns: "*"$text"* ]] || check "message for: $*" "patterns: ...$text..." "$message"
}
two=(--world-size 2 --rank 0 --id-file "$scratch/id")
refuse '--pattern' --iterations 1
refuse '--pattern' --pattern ddp
refuse '--micro-batches' --pattern pipeline --micro-batches 0
refuse 'multiples of the 2 ranks' --pattern tensor_parallel --hidden 33 "${two[@]}"
refuse 'at least one a rank, 2' --pattern pipeline --layers 1 "${two[@]}"
refuse 'one process' --pattern one_process_two_devices "${two[@]}"

all_passed
