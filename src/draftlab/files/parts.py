"""Keeps the finished parts of a long job on disk, so that it resumes from them after a kill."""

from __future__ import annotations

import hashlib
import shutil
from pathlib import Path


def open_parts(folder: Path, identity: str) -> Path:
    """Create the folder for the parts of a job with this ``identity`` (settings, inputs, code) below ``folder``.

    Parts of jobs with another identity are removed; another process of the job may do so at the same time.
    Every part is written by ``atomic_path``, so an existing part is complete.
    """
    parts = folder / hashlib.sha256(identity.encode()).hexdigest()
    for other in folder.glob("*"):
        if other != parts:
            shutil.rmtree(other, ignore_errors=True)
    parts.mkdir(parents=True, exist_ok=True)
    return parts
