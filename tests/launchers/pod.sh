#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# pod.sh ROOT [--own-shm] [--mount FOLDER PATH rw|ro]... -- COMMAND...
# Inside namespaces of its own (unshare --mount --pid --mount-proc ...): makes a container's root in the empty folder
# ROOT, of this machine's own folders and the given mounts, and runs a command there. No network, no image, no limits.
set -u
PATH=$PATH:/usr/sbin:/sbin

die() { echo "pod.sh: cannot $*" >&2; exit 1; }

root=$1 own_shm=0 folders=() paths=() modes=()
shift
while [[ $1 != -- ]]; do
    case $1 in
        --own-shm) own_shm=1; shift ;;
        --mount) folders+=("$2") paths+=("$3") modes+=("$4"); shift 4 ;;
        *) die "understand $1" ;;
    esac
done
shift

# What a path given to --mount lies in is made anew, so that the mount's place exists; all else is the machine's.
fill() {
    local entry path inside
    for entry in "$1"/*; do
        inside=0
        for path in "${paths[@]}"; do
            [[ $path/ == "$entry"/* ]] && inside=1
        done
        if [[ -L $entry ]]; then
            cp -a "$entry" "$root$entry"
        elif ((inside)); then
            mkdir "$root$entry" && fill "$entry"
        elif [[ -d $entry ]]; then
            { mkdir "$root$entry" && mount --rbind "$entry" "$root$entry"; } || die "bind $entry"
        fi
    done
}

{ mount -t tmpfs -o mode=755 tmpfs "$root" && mount --make-unbindable "$root"; } || die "mount a root"
fill ""
for index in "${!paths[@]}"; do
    place=$root${paths[index]}
    { mkdir -p "$place" && mount --bind "${folders[index]}" "$place"; } || die "bind ${folders[index]}"
    [[ ${modes[index]} == rw ]] || mount -o "remount,bind,${modes[index]}" "$place" || die "make $place read-only"
done
if ((own_shm)); then
    mount -t tmpfs -o mode=1777 tmpfs "$root/dev/shm" || die "mount /dev/shm"
fi
exec chroot "$root" "$@"
