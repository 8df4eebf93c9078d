#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# lookup_paths.sh LIBRARY PROGRAM [ARGUMENT...]
# Runs the program with the library preloaded under other names and paths: a link, another file name, and a file
# that the program removes (LOADER_REMOVES) while it runs.
set -eu
library=$1; shift
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
mkdir "$work/an,odd+%folder"
ln -s "$library" "$work/link.so"
cp "$library" "$work/an,odd+%folder/other-name.so.1"
cp "$library" "$work/gone.so"
LD_PRELOAD=$work/link.so "$@"
LD_PRELOAD="$work/an,odd+%folder/other-name.so.1" "$@"
LOADER_REMOVES=$work/gone.so LD_PRELOAD=$work/gone.so "$@"
[ ! -e "$work/gone.so" ]
