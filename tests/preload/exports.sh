#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exports.sh LIBRARY SHIM_FOLDER
# The library exports the rows of the tables and what programs look up and load with, nothing more: once each, the
# runtime's also in the version of each release. It needs the C library alone; asks for no private
# symbol of it; and its thread-local storage is small.
set -u
library=$1 shim=$2
failed=0
complain() { echo "$1"; failed=1; }

expected=$( { printf '%s\n' dlsym dlvsym; sed -nE 's/^CX_[A-Z]+\(([A-Za-z0-9_]+).*/\1/p' "$shim"/intercepts_[!r]*.def; } | sort)
symbols=$(nm -D --defined-only "$library" | awk '$2 != "A" {print $NF}')
found=$(grep -v @ <<<"$symbols" | sort)
difference=$(diff <(echo "$expected") <(echo "$found")) || complain "exports differ from the tables:
$difference"

expected=$(for version in 11.0 12 13; do
    sed -nE "s/^CX_RUNTIME\(([A-Za-z0-9_]+).*/\1@libcudart.so.$version/p" "$shim"/intercepts_runtime.def
done | sort
sed -nE "s/^CX_RUNTIME\(([A-Za-z0-9_]+).*/\1@@CROSSOVER/p" "$shim"/intercepts_runtime.def)
expected=$(sort <<<"$expected")
difference=$(diff <(echo "$expected") <(grep @ <<<"$symbols" | sort)) || complain "versions differ from the releases:
$difference"

needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' |
         grep -vE '^(libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|ld-linux.*)$')
[ -z "$needed" ] || complain "needs more than the C library: $needed"

private=$(nm -D --undefined-only "$library" | grep GLIBC_PRIVATE)
[ -z "$private" ] || complain "uses private symbols of the C library: $private"

tls=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
[ $((tls)) -le 128 ] || complain "thread-local storage of $((tls)) bytes; at most 128 are allowed"
exit $failed
