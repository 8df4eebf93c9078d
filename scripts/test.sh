#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Builds everything and runs the tests: bootstrap, configure, build, ctest. The last line is "N passed, N failed", with
# ", N skipped" after it where tests were. Exit status 0 only if nothing failed. No test is listed here: ctest knows them.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

help() {
    cat <<'TXT'
usage: scripts/test.sh [options]

  --sanitizers    after the tests, the unit tests again under the address and the thread sanitizer (presets asan, tsan)
  --all           everything: long tests too, and all tests under both sanitizers
  --preset NAME   only this preset: dev, asan or tsan (with its tests, long ones excepted)
  --build DIR     build folder instead of build/NAME, for a single preset
  -R REGEX        only tests whose name matches
  -L REGEX        only tests with a matching label (unit, process, preload, program, long, ...)
  -j N            tests at once (default 2)
TXT
}

sanitizers=false all=false preset="" folder="" tests_at_once=2
select=()
while [ $# -gt 0 ]; do
    case $1 in
        --sanitizers) sanitizers=true ;;
        --all) all=true ;;
        --preset | --build | -R | -L | -j)
            need_value "$1" $#
            case $1 in
                --preset) preset=$2 ;;
                --build) folder=$(realpath -m "$2") ;;
                -R | -L) select+=("$1" "$2") ;;
                -j) tests_at_once=$2 ;;
            esac
            shift ;;
        -h | --help) help; exit 0 ;;
        *) usage_error "unknown argument '$1'; see --help" ;;
    esac
    shift
done
case $preset in
    "" | dev | asan | tsan) ;;
    *) usage_error "--preset is '$preset'; allowed: dev, asan, tsan" ;;
esac
[[ $tests_at_once =~ ^[1-9][0-9]*$ ]] || usage_error "-j is '$tests_at_once'; allowed: a whole number from 1"
if [ -n "$preset" ] && { $all || $sanitizers; }; then usage_error "--preset goes with neither --all nor --sanitizers"; fi
if [ -n "$folder" ] && { $all || $sanitizers; }; then usage_error "--build goes with neither --all nor --sanitizers"; fi

passed=0 failed=0 skipped=0

# count_results FILE: adds up a JUnit file. A missing file, or one without a test, is a failure and not a pass; so is a
# test that could not be started, which ctest files under "skipped" too.
count_results() {
    local pass fail skip
    [ -s "$1" ] || die "ctest left no results in $1"
    read -r pass fail skip < <(python3 - "$1" <<'PY'
import sys, xml.etree.ElementTree as tree
counts = dict(run=0, fail=0, skip=0)
for case in tree.parse(sys.argv[1]).iter("testcase"):
    status, skipped = case.get("status"), case.find("skipped")
    if status == "disabled" or (skipped is not None and skipped.get("message", "").startswith("SKIP_")):
        status = "skip"
    counts[status if status in counts else "fail"] += 1
print(*counts.values())
PY
    )
    [ $((pass + fail + skip)) -gt 0 ] || die "no test matched"
    passed=$((passed + pass)) failed=$((failed + fail)) skipped=$((skipped + skip))
}

# run_preset PRESET FOLDER [ctest option...]
run_preset() {
    local name=$1 build=$2
    shift 2
    configure_and_build "$name" "$build"
    say "== testing $name"
    rm -f "$build/results.xml"
    # ctest's status says only that some test failed, which the results say too, by number.
    (cd "$build" && CROSSOVER_BUILD=$build SIMGPU_BUILD=$build \
        ctest --output-on-failure --no-tests=ignore -j "$tests_at_once" --output-junit results.xml \
        ${select[@]+"${select[@]}"} "$@") || true
    count_results "$build/results.xml"
}

"$repo/scripts/bootstrap"
start=$SECONDS
long=(-LE '^long$')
$all && long=()
if [ -n "$preset" ]; then
    run_preset "$preset" "${folder:-$repo/build/$preset}" "${long[@]}"
else
    run_preset dev "${folder:-$repo/build/dev}" ${long[@]+"${long[@]}"}
    if $all; then
        run_preset asan "$repo/build/asan"
        run_preset tsan "$repo/build/tsan"
    elif $sanitizers; then
        [ ${#select[@]} -gt 0 ] || select=(-L '^unit$')
        run_preset asan "$repo/build/asan" "${long[@]}"
        run_preset tsan "$repo/build/tsan" "${long[@]}"
    fi
fi

say "took $((SECONDS - start)) s"
line="$passed passed, $failed failed"
[ "$skipped" -eq 0 ] || line="$line, $skipped skipped"
say "$line"
[ "$failed" -eq 0 ]
