#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# exports.sh LIBRARY SHIM_FOLDER
# The library exports the rows of the tables and dlsym, nothing more; needs the C library alone; asks for no private
# symbol of it; and its thread-local storage is small.
set -u
library=$1 shim=$2
failed=0
complain() { echo "$1"; failed=1; }

expected=$( { echo dlsym; sed -nE 's/^CX_[A-Z]+\(([A-Za-z0-9_]+).*/\1/p' "$shim"/intercepts_*.def; } | sort)
found=$(nm -D --defined-only "$library" | awk '{print $NF}' | sed 's/@.*//' | sort)
difference=$(diff <(echo "$expected") <(echo "$found")) || complain "exports differ from the tables:
$difference"

needed=$(readelf -d "$library" | sed -nE 's/.*NEEDED.*\[(.*)\]/\1/p' |
         grep -vE '^(libc\.so\.6|libdl\.so\.2|libpthread\.so\.0|librt\.so\.1|ld-linux.*)$')
[ -z "$needed" ] || complain "needs more than the C library: $needed"

private=$(nm -D --undefined-only "$library" | grep GLIBC_PRIVATE)
[ -z "$private" ] || complain "uses private symbols of the C library: $private"

tls=$(readelf -lW "$library" | awk '$1 == "TLS" {print $6}')
[ $((tls)) -le 128 ] || complain "thread-local storage of $((tls)) bytes; at most 128 are allowed"
exit $failed
