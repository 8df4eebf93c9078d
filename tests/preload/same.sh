#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# same.sh LIBRARY [--preload OTHER[:OTHER…]] -- command…
# Runs the command bare and with LIBRARY preloaded (before and after what --preload names); output, errors and exit
# status must be equal, and the folder of shared segments must not appear for a command without CUDA.
set -u
library=$1; shift
others=
if [ "$1" = --preload ]; then others=$2; shift 2; fi
[ "$1" = -- ] && shift
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export CROSSOVER_DIR=$work/segments

run() {  # run NAME PRELOAD
    local name=$1 preload=$2
    shift 2
    ( [ -n "$preload" ] && export LD_PRELOAD=$preload; exec "$@" ) >"$work/$name.out" 2>"$work/$name.err" </dev/null
    echo $? >"$work/$name.status"
}
run bare "$others" "$@"
run first "$library${others:+:$others}" "$@"
run last "${others:+$others:}$library" "$@"
failed=0
for name in first last; do
    for part in out err status; do
        if ! cmp -s "$work/bare.$part" "$work/$name.$part"; then
            echo "with the library $name, the $part differs:"
            diff "$work/bare.$part" "$work/$name.$part" | head -20
            failed=1
        fi
    done
done
if [ -e "$CROSSOVER_DIR" ]; then
    echo "the command made $CROSSOVER_DIR"
    failed=1
fi
exit $failed
