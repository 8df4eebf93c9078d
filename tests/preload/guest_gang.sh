#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# guest_gang.sh LIBRARY DP_TRAIN
# Two jobs of two ranks on the same two devices, one of them with its ranks the other way round. Whatever the order in
# which the four processes come, all end, and with the losses of a run alone.
set -u
library=$1 train=$2
work=$(mktemp -d) || exit 2
trap 'rm -rf "$work"' EXIT

# rank RUN JOB NUMBER DEVICE SEED
rank() {
    "$train" --rank "$3" --world-size 2 --device "$4" --seed "$5" --iterations 6 --warmup 1 --compute-ms 4 --comm-mb 4 \
        --burn-per-ms 1 --id-file "$work/$1.$2.id" >"$work/$1.$2.$3.out" 2>"$work/$1.$2.$3.err"
    echo $? >"$work/$1.$2.$3.status"
}
losses() { sed -n 's/^rank [0-9]* \(loss [^ ]* parameters [^ ]*\) .*/\1/p' "$work/$1.$2.0.out"; }

rank alone a 0 0 1 & rank alone a 1 1 1 & wait
rank alone b 0 1 2 & rank alone b 1 0 2 & wait
failed=0
for job in a b; do
    [ -n "$(losses alone $job)" ] || { echo "job $job alone says no loss"; cat "$work"/alone.$job.*; failed=1; }
done
orders=0
for first in a0 a1 b0 b1; do for second in a0 a1 b0 b1; do for third in a0 a1 b0 b1; do for fourth in a0 a1 b0 b1; do
    [ "$(printf '%s\n' $first $second $third $fourth | sort -u | wc -l)" = 4 ] || continue
    run=$first$second$third$fourth
    orders=$((orders + 1))
    for each in $first $second $third $fourth; do
        job=${each:0:1} number=${each:1}
        device=$number seed=1
        [ "$job" = a ] || { device=$((1 - number)); seed=2; }
        LD_PRELOAD=$library CROSSOVER_JOB=$job rank "$run" "$job" "$number" "$device" "$seed" &
        sleep 0.02
    done
    wait
    for job in a b; do
        for number in 0 1; do
            [ "$(cat "$work/$run.$job.$number.status")" = 0 ] && [ ! -s "$work/$run.$job.$number.err" ] && continue
            echo "order $run: rank $number of job $job: status $(cat "$work/$run.$job.$number.status")"
            head -5 "$work/$run.$job.$number.err"
            failed=1
        done
        [ "$(losses "$run" $job)" = "$(losses alone $job)" ] || { echo "order $run: losses of job $job differ"; failed=1; }
    done
done; done; done; done
[ $orders = 24 ] || { echo "$orders orders"; failed=1; }
exit $failed
