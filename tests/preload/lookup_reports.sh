#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lookup_reports.sh LIBRARY deepbind|deepbind2|dlmopen|none PROGRAM [ARGUMENT...]
# What passes the library is said once at CROSSOVER_LOG=info, and not otherwise; without it the program's result is
# the same.
set -u
library=$1 kind=$2; shift 2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT
export CROSSOVER_DIR=$work/segments
failed=0
lines() { grep -c "^crossover: .*$1" "$work/err"; }

LD_PRELOAD=$library CROSSOVER_LOG=info "$@" >"$work/out" 2>"$work/err" || { cat "$work/out" "$work/err"; exit 1; }
! grep -q 'Running 0 tests' "$work/out" || { echo "no case of that name"; exit 1; }
case $kind in
    deepbind) expected=1; pattern='libplugin_12.*calls cuda[A-Za-z]* past.*RTLD_DEEPBIND' ;;
    deepbind2) expected=1; pattern='libcudart.*looks functions up.*RTLD_DEEPBIND' ;;
    dlmopen) expected=1; pattern='libcudart.*dlmopen' ;;
    none) expected=0; pattern='past this library\|dlmopen\|RTLD_DEEPBIND' ;;
esac
[ "$(lines "$pattern")" = "$expected" ] || { echo "$expected lines like '$pattern' expected:"; cat "$work/err"; failed=1; }

for level in none fault; do
    LD_PRELOAD=$library CROSSOVER_LOG=$level "$@" >"$work/out" 2>"$work/err" || failed=1
    [ "$(lines .)" = 0 ] || { echo "at $level nothing is expected:"; cat "$work/err"; failed=1; }
done
exit $failed
