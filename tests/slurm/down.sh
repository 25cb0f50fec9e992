#!/bin/sh
# down.sh FOLDER: cancel what runs in the Slurm that up.sh started there, and stop it.
SLURM_CONF="$1/slurm.conf" timeout 10 scancel --full --user "$(id -un)"
for daemon in slurmd slurmctld munged; do
    [ -s "$1/run/$daemon.pid" ] && kill "$(cat "$1/run/$daemon.pid")"
done
exit 0
