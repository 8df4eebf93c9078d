#!/bin/bash
# SPDX-License-Identifier: Apache-2.0
# Starts a private Slurm of one node in the folder $1 (ports $2 and $3), runs the rest of its arguments with SLURM_CONF
# set, and ends it. No authentication, nothing of a Slurm that is installed for use.
set -u

PATH=$PATH:/usr/sbin:/sbin
folder=$1 controller_port=$2 daemon_port=$3
shift 3
die() { echo "slurm.sh: $*" >&2; tail -n 3 "$folder"/*.log >&2; exit 1; }

mkdir -p "$folder/state" "$folder/spool" || exit 1
export SLURM_CONF=$folder/slurm.conf
cat >"$SLURM_CONF" <<END
ClusterName=crossover
SlurmctldHost=$(hostname -s)(127.0.0.1)
SlurmctldPort=$controller_port
SlurmdPort=$daemon_port
SlurmUser=$(id -un)
SlurmdUser=$(id -un)
AuthType=auth/none
CredType=cred/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SwitchType=switch/none
MpiDefault=none
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/slurmctld.pid
SlurmdPidFile=$folder/slurmd.pid
SlurmctldLogFile=$folder/slurmctld.log
SlurmdLogFile=$folder/slurmd.log
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName=$(hostname -s) NodeAddr=127.0.0.1 CPUs=8 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=10 State=UP
END

slurmctld -D >/dev/null 2>&1 &
controller=$!
slurmd -D >/dev/null 2>&1 &
daemon=$!
end() {
    kill "$daemon" "$controller" 2>/dev/null
    wait "$daemon" "$controller"
}
trap end EXIT

for ((try = 0; ; ++try)); do
    [[ $(sinfo --noheader --format=%t 2>/dev/null) == idle ]] && break
    kill -0 "$controller" 2>/dev/null || die "slurmctld ended"
    kill -0 "$daemon" 2>/dev/null || die "slurmd ended"
    ((try < 600)) || die "the node does not get ready: $(sinfo --noheader --format='%t %E' 2>&1)"
    sleep 0.1
done
"$@"
