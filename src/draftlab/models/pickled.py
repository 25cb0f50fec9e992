"""Pickled checkpoints are read once: a process that can open no file and no socket converts each to safetensors, and only these are opened afterwards.

python -m draftlab.models.pickled < pytorch_model.bin > model.safetensors
"""

from __future__ import annotations

import io
import resource
import shutil
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_dir
from draftlab.files.digests import sha256
from draftlab.files.json_files import write_json

PICKLED = "pytorch_model*.bin"


def convert(source: Path, out: Path) -> None:
    """Write the pickled weights of a folder as safetensors into ``out``, with the folder's other small files; ``converted.json`` has both digests.

    **Raises:** ``UserError`` for a file that holds anything but tensors by name.
    """
    files = sorted(source.glob(PICKLED))
    index: dict[str, str] = {}
    digests = {}
    with atomic_dir(out, sum(file.stat().st_size for file in files)) as folder:
        for file in files:
            made = folder / f"{file.stem.removeprefix('pytorch_')}.safetensors"
            print(
                f"{file.name}: pickled; only its weights were read, and written as {made.name}",
                file=sys.stderr,
                flush=True,
            )
            _convert_file(file, made)
            index |= dict.fromkeys(_names_in(made), made.name)
            digests[made.name] = {"sha256": sha256(made), "pickled": file.name, "pickled_sha256": sha256(file)}
        if len(files) > 1:
            write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
        write_json(folder / "converted.json", digests)
        for file in source.iterdir():
            if file.suffix in (".json", ".txt", ".model", ".jinja") and not file.name.startswith("pytorch_model"):
                shutil.copyfile(file, folder / file.name)


def _convert_file(file: Path, made: Path) -> None:
    with file.open("rb") as pickled, made.open("wb") as weights:
        command = [sys.executable, "-m", "draftlab.models.pickled"]
        done = subprocess.run(command, stdin=pickled, stdout=weights, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        reason = (done.stderr.strip() or f"it ended with {done.returncode}").splitlines()[-1]
        raise UserError(f"not a file of weights alone: {reason}", file=file, remedy="use a revision with safetensors")


def _names_in(file: Path) -> list[str]:
    with safe_open(file, "pt") as opened:
        return list(opened.keys())


def open_nothing_more() -> None:
    """Prevent this process from opening any file or socket from now on; this cannot be undone."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Read a pickle on standard input, write safetensors to standard output."""
    import torch
    from safetensors.torch import save

    for is_zip in (True, False):  # what the libraries import when they are first asked is imported now
        torch.save({"": torch.zeros(1)}, small := io.BytesIO(), _use_new_zipfile_serialization=is_zip)
        small.seek(0)
        save(torch.load(small, map_location="cpu", weights_only=True))
    open_nothing_more()
    try:
        found = torch.load(sys.stdin.buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # of a damaged file any
        sys.exit((str(error).strip() or type(error).__name__).splitlines()[0])
    if not isinstance(found, dict) or not all(isinstance(value, torch.Tensor) for value in found.values()):
        sys.exit("it does not hold tensors by name")
    tensors: dict[str, torch.Tensor] = {}
    known: set[int] = set()
    for name, value in found.items():  # safetensors refuses two names for one memory, as tied weights have
        place = value.untyped_storage().data_ptr()
        tensors[str(name)] = value.clone() if place in known else value.contiguous()
        known.add(place)
    sys.stdout.buffer.write(save(tensors, {"format": "pt"}))


if __name__ == "__main__":
    main()
