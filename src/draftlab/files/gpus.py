"""``python -m draftlab.files.gpus N COMMAND`` runs a command on N GPUs that no other such command on this machine uses.

Snakemake counts the GPUs that jobs ask for but does not assign them, and CUDA always takes the first. If a scheduler has already
assigned GPUs, ``CUDA_VISIBLE_DEVICES`` names exactly N, and the command gets those.
"""

from __future__ import annotations

import fcntl
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

VISIBLE = "CUDA_VISIBLE_DEVICES"
LOCKS = Path(tempfile.gettempdir())


def visible() -> list[str]:
    """The GPUs that this process may use, by their CUDA names; empty if nvidia-smi is missing."""
    if (named := os.environ.get(VISIBLE)) is not None:
        return [name.strip() for name in named.split(",") if name.strip()]
    try:
        command = ["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]
        return subprocess.run(command, capture_output=True, text=True, check=True, timeout=60).stdout.split()
    except (OSError, subprocess.SubprocessError):
        return []


def claim(count: int, gpus: list[str]) -> list[str]:
    """Lock ``count`` of ``gpus`` until this process (also after ``exec``) ends; wait until that many are free."""
    said = False
    while True:
        locked: dict[str, int] = {}
        for gpu in gpus:
            lock = LOCKS / f"draftlab-gpu-{os.getuid()}-{gpu}.lock"
            handle = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW, 0o600)
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(handle)
                continue
            locked[gpu] = handle
            if len(locked) == count:
                for kept in locked.values():
                    os.set_inheritable(kept, True)
                return list(locked)
        for handle in locked.values():  # release them, so that others can use them while this process waits
            os.close(handle)
        if not said:
            print(
                f"waiting until {count} of the GPUs {', '.join(gpus)} {'is' if count == 1 else 'are'} free",
                file=sys.stderr,
                flush=True,
            )
        said = True
        time.sleep(1.0)


def main() -> None:
    count, *command = sys.argv[1:]
    gpus = visible()
    assigned = VISIBLE in os.environ and len(gpus) == int(count)
    if len(gpus) >= int(count) and not assigned:
        os.environ[VISIBLE] = ",".join(claim(int(count), gpus))
    os.execvp(command[0], command)


if __name__ == "__main__":
    main()
