#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Runs a fuzz target from its seeds, which stay as they are: what libFuzzer adds goes into a folder that begins empty,
# so a run with the same -seed and -runs is the same run. No target is listed here.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: run.sh FOLDER TARGET [libFuzzer option...]   FOLDER: tests/fuzz of a build folder" >&2
    exit 2
fi
folder=$1 target=$2
shift 2
if [ ! -x "$folder/${target}_fuzz" ]; then
    echo "run.sh: there is no ${target}_fuzz in '$folder'" >&2
    exit 2
fi
if [ -z "$(ls "$folder/seeds/$target" 2>/dev/null)" ]; then
    echo "run.sh: there are no seeds in '$folder/seeds/$target'; build fuzz_corpora" >&2
    exit 2
fi
rm -rf "$folder/new/$target"
mkdir -p "$folder/new/$target" "$folder/found/$target"
UBSAN_OPTIONS=print_stacktrace=1 "$folder/${target}_fuzz" -max_len=1536 -timeout=120 -rss_limit_mb=2048 \
    -artifact_prefix="$folder/found/$target/" "$@" "$folder/new/$target" "$folder/seeds/$target"
