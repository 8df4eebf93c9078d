#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Inside namespaces of its own (unshare -Urnm): makes two hosts, 10.77.0.2 and .3, joined to this one (.1), writes a
# remote shell for them to $CX_AGENT, and runs a command. Like ssh it passes no environment on.
set -u

die() { echo "hosts.sh: cannot $*" >&2; exit 1; }

ip link set lo up || die "configure a network here"
ip link add bridge0 type bridge || die "make a bridge"
ip addr add 10.77.0.1/24 dev bridge0 || die "give an address"
ip link set bridge0 up || die "start the bridge"

holders=()
trap 'kill "${holders[@]}" 2>/dev/null' EXIT
for number in 2 3; do
    unshare -nu sleep 600 &
    pid=$!
    holders+=("$pid")
    for ((try = 0; try < 500; ++try)); do
        [[ $(readlink "/proc/$pid/ns/net") != "$(readlink /proc/self/ns/net)" ]] && break
        sleep 0.01
    done
    ip link add "host$number" type veth peer name eth0 netns "$pid" || die "join two namespaces"
    ip link set "host$number" master bridge0 up || die "join the bridge"
    nsenter --net="/proc/$pid/ns/net" --uts="/proc/$pid/ns/uts" sh -c "hostname host$number && ip link set lo up &&
        ip addr add 10.77.0.$number/24 dev eth0 && ip link set eth0 up" || die "set up host $number"
    printf '%s\n' "$pid" >"$CX_AGENT.10.77.0.$number"
done

cat >"$CX_AGENT" <<'END'
#!/bin/bash
while [[ $1 == -* ]]; do shift; done
host=$1
shift
read -r pid <"$0.$host" || exit 255
exec env -i PATH="$PATH" HOME="${HOME:-/}" OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 \
    nsenter --net="/proc/$pid/ns/net" --uts="/proc/$pid/ns/uts" sh -c "$*"
END
chmod +x "$CX_AGENT"
"$@"
