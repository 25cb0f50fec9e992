"""Converts a pickled checkpoint to safetensors, in a process that can open no file and no socket.

python -m draftlab.models.pickled < pytorch_model.bin > model.safetensors
"""

from __future__ import annotations

import io
import resource
import subprocess
import sys
from pathlib import Path

from safetensors import safe_open

from draftlab.errors import UserError, first_line
from draftlab.files.atomic import atomic_dir
from draftlab.files.digests import sha256
from draftlab.files.json_files import write_json
from draftlab.files.weights import check_no_pointer, parts_of
from draftlab.models.config import TOOL_TEMPLATE, copy_files

PICKLED = "pytorch_model*.bin"
PICKLED_INDEX = "pytorch_model.bin.index.json"


def convert(source: Path, out: Path) -> None:
    """Write the pickled weights of a folder as safetensors to ``out``, and copy its small files; ``converted.json`` has the digests of both.

    **Raises:** ``UserError`` for a file that holds anything but tensors by name, and for one that the index names and the folder lacks.
    """
    if (source / PICKLED_INDEX).is_file():
        parts_of(source / PICKLED_INDEX)
    files, index, digests = sorted(source.glob(PICKLED)), dict[str, str](), {}
    with atomic_dir(out, sum(file.stat().st_size for file in files), ours=lambda _: True) as folder:  # in a cache
        for file in files:
            safe = folder / f"{file.stem.removeprefix('pytorch_')}.safetensors"
            note = f"{file.name}: pickled; only its weights were read, and written as {safe.name}"
            print(note, file=sys.stderr, flush=True)
            _convert_file(file, safe)
            with safe_open(safe, "pt") as weights:
                index |= dict.fromkeys(weights.keys(), safe.name)
            digests[safe.name] = {"sha256": sha256(safe), "pickled": file.name, "pickled_sha256": sha256(file)}
        if len(files) > 1:
            write_json(folder / "model.safetensors.index.json", {"metadata": {}, "weight_map": index})
        write_json(folder / "converted.json", digests)
        suffixes = (".json", ".txt", ".model", ".jinja")
        others = [file.name for file in source.iterdir() if file.suffix in suffixes]
        others = [name for name in others if not name.startswith("pytorch_model")]
        copy_files(source, folder, [*others, TOOL_TEMPLATE])


def _convert_file(file: Path, safe: Path) -> None:
    check_no_pointer(file)
    with file.open("rb") as pickled, safe.open("wb") as weights:
        command = [sys.executable, "-m", "draftlab.models.pickled"]
        child = subprocess.run(command, stdin=pickled, stdout=weights, stderr=subprocess.PIPE, text=True, check=False)
    if child.returncode:
        reason = (child.stderr.strip() or f"it ended with {child.returncode}").splitlines()[-1]
        raise UserError(f"not a file of weights alone: {reason}", file=file, remedy="use a revision with safetensors")


def open_nothing_more() -> None:
    """Prevent this process from opening any file or socket; this cannot be undone."""
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, 0))


def main() -> None:
    """Read a pickle on standard input, write safetensors to standard output."""
    import torch
    from safetensors.torch import save

    for is_zip in (True, False):  # the libraries open files at their first call, which is not possible later
        torch.save({"": torch.zeros(1)}, small := io.BytesIO(), _use_new_zipfile_serialization=is_zip)
        small.seek(0)
        save(torch.load(small, map_location="cpu", weights_only=True))
    open_nothing_more()
    try:
        weights = torch.load(sys.stdin.buffer, map_location="cpu", weights_only=True)
    except Exception as error:  # a damaged file may raise anything
        sys.exit(first_line(error))
    if not isinstance(weights, dict) or not all(isinstance(value, torch.Tensor) for value in weights.values()):
        sys.exit("it does not hold tensors by name")
    tensors: dict[str, torch.Tensor] = {}
    used: set[int] = set()
    for name, value in weights.items():  # safetensors refuses two names for one memory, as tied weights have
        address = value.untyped_storage().data_ptr()
        tensors[str(name)] = value.clone() if address in used else value.contiguous()
        used.add(address)
    sys.stdout.buffer.write(save(tensors, {"format": "pt"}))


if __name__ == "__main__":
    main()
