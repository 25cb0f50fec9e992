#!/bin/sh
# up.sh FOLDER: a Slurm of one node on this machine, all of it below FOLDER; no systemd, cgroups, database or fixed ports needed.
# Prints the variables that a client needs. Stop it with down.sh FOLDER. With --install the Debian packages are installed first.
set -eu
if [ "$1" = --install ]; then
    shift
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends slurmctld slurmd slurm-client munge >/dev/null
fi
folder=$(realpath -m "$1")
port=${SLURM_TEST_PORT:-16817}
host=$(hostname -s)
user=$(id -un)
mkdir -p "$folder/state" "$folder/spool" "$folder/log" "$folder/run" "$folder/bin"
chmod 755 "$folder"
chmod 711 "$folder/run"
cpus=${SLURM_TEST_CPUS:-$(nproc)}
memory=$(awk '/MemTotal/ { print int($2 / 1024 * 0.9) }' /proc/meminfo)

# Two devices that Slurm hands out as GPUs: they must be character devices, or jobs get no CUDA_VISIBLE_DEVICES.
printf 'Name=gpu Type=fake File=/dev/null\nName=gpu Type=fake File=/dev/zero\n' >"$folder/gres.conf"
cat >"$folder/slurm.conf" <<CONF
ClusterName=draftlab
SlurmctldHost=$host
SlurmctldPort=$port
SlurmdPort=$((port + 1))
SlurmUser=$user
SlurmdUser=$user
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket=$folder/run/munge.socket
StateSaveLocation=$folder/state
SlurmdSpoolDir=$folder/spool
SlurmctldPidFile=$folder/run/slurmctld.pid
SlurmdPidFile=$folder/run/slurmd.pid
SlurmctldLogFile=$folder/log/slurmctld.log
SlurmdLogFile=$folder/log/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
# Memory is enforced by sampling, as there may be no cgroups.
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=1
JobAcctGatherParams=OverMemoryKill,UsePss
AccountingStorageType=accounting_storage/none
JobCompType=jobcomp/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
SchedulerParameters=sched_interval=1,bf_interval=1
ReturnToService=2
InactiveLimit=0
# squeue must still show jobs that ended: there is no accounting to ask.
MinJobAge=600
KillWait=5
SlurmctldTimeout=10
GresTypes=gpu
NodeName=$host NodeAddr=127.0.0.1 CPUs=$cpus RealMemory=$memory Gres=gpu:fake:2 State=UNKNOWN
PartitionName=work Nodes=$host Default=YES MaxTime=INFINITE State=UP
CONF
# The job step drops every SLURM_ variable, SLURM_CONF too, before it calls srun.
printf '#!/bin/sh\nSLURM_CONF=%s exec /usr/bin/srun "$@"\n' "$folder/slurm.conf" >"$folder/bin/srun"
chmod +x "$folder/bin/srun"

export SLURM_CONF="$folder/slurm.conf"
(umask 077 && head -c 128 /dev/urandom >"$folder/munge.key")
munged --force --key-file="$folder/munge.key" --socket="$folder/run/munge.socket" --pid-file="$folder/run/munged.pid" \
    --log-file="$folder/log/munged.log" --seed-file="$folder/run/munged.seed"
slurmctld -i
slurmd
for _ in $(seq 100); do
    [ "$(sinfo -h -o %T | sort -u)" = idle ] && break
    sleep 0.1
done
[ "$(sinfo -h -o %T | sort -u)" = idle ] || { echo "Slurm did not start: see $folder/log" >&2; exit 1; }
echo "export SLURM_CONF='$folder/slurm.conf' PATH='$folder/bin':\"\$PATH\""
