#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# scripts/simgpu-run: exit status, signals, environment, machines that stay, nothing left behind.
# Usage: run_test.sh PATH_OF_SIMGPU_RUN, with SIMGPU_BUILD set.
set -u

run=$1
scratch=$(mktemp -d)
export TMPDIR=$scratch/tmp
mkdir "$TMPDIR"
trap 'rm -rf "$scratch"' EXIT
unset SIMGPU_DIR CROSSOVER_DIR LD_LIBRARY_PATH
failures=0
check() {  # what, expected, got
    [[ $2 == "$3" ]] && return
    echo "FAILED: $1: expected '$2', got '$3'"
    failures=$((failures + 1))
}
# Until a condition holds, within 20 s.
await() {
    for ((i = 0; i < 400; ++i)); do
        "$@" && return
        sleep 0.05
    done
    echo "FAILED: waited in vain for: $*"
    failures=$((failures + 1))
}

"$run" -- bash -c 'exit 7'
check 'exit status' 7 $?
"$run" -- bash -c 'kill -KILL $$'
check 'status of a killed command' 137 $?
"$run" -- "$scratch/none" 2>/dev/null
check 'status of a command that is not there' 127 $?
# shellcheck disable=SC2016
check 'standard input and arguments' 'in: text, a b|c' "$(echo text | "$run" -- bash -c 'read -r line; echo "in: $line, $1|$2"' x 'a b' c)"
# shellcheck disable=SC2016
check 'environment' "$SIMGPU_BUILD/tests/simgpu/lib yes yes" \
    "$("$run" --devices 3 -- bash -c 'echo "$LD_LIBRARY_PATH $([[ -S $SIMGPU_DIR/server ]] && echo yes) $([[ -d $CROSSOVER_DIR && $CROSSOVER_DIR == "$SIMGPU_DIR"/* ]] && echo yes)"')"
check 'the own CROSSOVER_DIR stays' "$scratch" "$(CROSSOVER_DIR=$scratch "$run" -- printenv CROSSOVER_DIR)"
# shellcheck disable=SC2016
check 'a machine inside a machine is a new one' new \
    "$("$run" -- bash -c 'outer=$SIMGPU_DIR outer_crossover=$CROSSOVER_DIR
        "$0" -- bash -c "[[ \$SIMGPU_DIR != $outer && \$CROSSOVER_DIR != $outer_crossover ]] && echo new"' "$run")"
check 'nothing left behind' '' "$(ls "$TMPDIR")"

for option in '--devices 0' '--nosuch' '--join /nonexistent' '--background' '--print-env' '--stop /nonexistent' '--parent 3'; do
    # shellcheck disable=SC2086
    message=$("$run" $option -- true 2>&1)
    check "$option: exit status" 2 $?
    check "$option: one line" 1 "$(wc -l <<<"$message")"
    [[ $message == *${option%% *}* ]]
    check "$option: is named" 0 $?
done
"$run" >/dev/null 2>&1
check 'no command' 2 $?

# A shell turns SIGINT off for its background commands; this turns it on again for the wrapper.
readonly reset='import os, signal, sys; signal.signal(signal.SIGINT, signal.SIG_DFL); os.execv(sys.argv[1], sys.argv[1:])'
for signal in TERM INT HUP; do
    python3 -c "$reset" "$run" -- python3 -c "
import signal, sys, time
signal.signal(signal.SIG$signal, lambda *_: sys.exit(9))
open('$scratch/up', 'w').close()
time.sleep(60)" &
    wrapper=$!
    await test -e "$scratch/up"
    rm "$scratch/up"
    kill "-$signal" $wrapper
    wait $wrapper
    check "SIG$signal is passed on" 9 $?
done
check 'nothing left after signals' '' "$(ls "$TMPDIR")"

# shellcheck disable=SC2016
"$run" -- bash -c 'echo "$SIMGPU_DIR" >"$0"; sleep 60 & echo $! >"$0.pid"; wait' "$scratch/machine" &
wrapper=$!
await test -s "$scratch/machine.pid"
machine=$(<"$scratch/machine")
kill -KILL $wrapper
wait $wrapper 2>/dev/null
await test ! -e "$machine/server"
kill "$(<"$scratch/machine.pid")"

stays=$scratch/stays
variables=$("$run" --background --dir "$stays" --devices 2)
check 'background: exit status' 0 $?
check 'background: the folder' "$stays" "$(eval "$variables"; echo "$SIMGPU_DIR")"
check 'print-env says the same' "$variables" "$("$run" --print-env --join "$stays")"
check 'join' "$stays" "$("$run" --join "$stays" -- printenv SIMGPU_DIR)"
"$run" --background --dir "$stays" 2>/dev/null
check 'second server in a folder' 2 $?
test -S "$stays/server"
check 'join leaves it running' 0 $?
"$run" --stop "$stays"
check 'stop' 0 $?
test -e "$stays/server"
check 'stopped' 1 $?
"$run" --join "$stays" -- true 2>/dev/null
check 'join of a stopped machine' 2 $?

((failures == 0)) && echo 'all passed'
exit $((failures > 0))
