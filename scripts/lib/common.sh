# SPDX-License-Identifier: Apache-2.0
# What bootstrap, test.sh, bench and demo.sh share: messages, the repository's root, how many compilers may run at once,
# configure and build. Sourced, never run. Nothing here knows a test, a benchmark or the demo.
# shellcheck shell=bash

repo=$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd)

say() { printf '%s\n' "$*"; }
warn() { printf '%s: %s\n' "${0##*/}" "$*" >&2; }
die() { warn "$*"; exit 1; }
# A bad option or argument: one line that names it and what is allowed.
usage_error() { warn "$*"; exit 2; }

# need_value OPTION COUNT: an option that takes a value must have one.
need_value() { [ "$2" -ge 2 ] || usage_error "$1 needs a value; see --help"; }

# A compiler of this project takes up to 1.5 GB: as many at once as processors and free memory allow.
build_jobs() {
    local cpus memory_kb fit
    cpus=$(nproc)
    memory_kb=$(awk '/^MemAvailable:/ { print $2 }' /proc/meminfo)
    fit=$((memory_kb / 1572864))
    [ "$fit" -ge 1 ] || fit=1
    if [ "$fit" -lt "$cpus" ]; then echo "$fit"; else echo "$cpus"; fi
}

# configure_and_build PRESET FOLDER [TARGET...]: ninja shows its own progress; configuring speaks only when it fails.
configure_and_build() {
    local preset=$1 folder=$2 log
    shift 2
    log=$folder/configure.log
    mkdir -p "$folder"
    say "== configuring $preset in ${folder#"$repo"/}"
    if ! (cd "$repo" && cmake --preset "$preset" -B "$folder") >"$log" 2>&1; then
        cat "$log" >&2
        die "configuring preset $preset failed (above; also in $log)"
    fi
    say "== building $preset with $(build_jobs) at a time"
    cmake --build "$folder" --parallel "$(build_jobs)" ${1:+--target "$@"} || die "building preset $preset failed"
}
