#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# The demo: bootstrap, build, then two training jobs on the same devices in four modes, as one table. Options are those
# of scripts/demo/__main__.py; what is measured and how stands there.
set -euo pipefail
. "$(dirname "$0")/lib/common.sh"

for argument in "$@"; do
    case $argument in
        -h | --help) exec python3 "$repo/scripts/demo" --help ;;
    esac
done
"$repo/scripts/bootstrap"
build=${CROSSOVER_BUILD:-$repo/build/dev}
configure_and_build dev "$build"
export CROSSOVER_BUILD=$build SIMGPU_BUILD=$build
exec python3 "$repo/scripts/demo" "$@"
