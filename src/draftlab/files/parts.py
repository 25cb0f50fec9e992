"""What a long job has finished, part by part on the disk: after a kill it goes on from there."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path


def open_parts(folder: Path, identity: str) -> Path:
    """The folder for the parts of a job of this ``identity`` (settings, inputs, code) below ``folder``; those of any other are removed.

    A part is a file written by ``atomic_path``: what is there is whole.
    """
    own = folder / hashlib.sha256(identity.encode()).hexdigest()
    for other in folder.glob("*"):
        if other != own:
            shutil.rmtree(other)
    own.mkdir(parents=True, exist_ok=True)
    return own
