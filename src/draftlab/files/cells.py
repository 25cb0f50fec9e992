"""One cell of an experiment on disk: its rows, and the record of how they were measured."""

from __future__ import annotations

import itertools
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from draftlab import __version__
from draftlab.errors import UserError
from draftlab.files.atomic import SEAL, atomic_path
from draftlab.files.digests import code_digest, sha256
from draftlab.files.json_files import write_json
from draftlab.files.machine import machine
from draftlab.files.seals import seal
from draftlab.files.tables import quoting_of
from draftlab.files.weights import weights_digest

if TYPE_CHECKING:
    import pandas as pd


def write_cell(folder: Path | str, rows: pd.DataFrame, run: Mapping[str, Any], **inputs: Iterable[Path]) -> None:
    """Write one cell of an experiment: ``rows.csv`` with the observations, and ``run.json``.

    ``run.json`` holds ``run``, facts about the machine, and the digests of the ``inputs`` by kind (models, answers, data, ...).
    """
    folder = Path(folder)
    if rows.empty:
        raise UserError("no rows were measured", file=folder, remedy="give the cell at least one request")
    # Until the new files are sealed, they are not those of an old seal: another run that starts now would take them for damaged.
    (folder / SEAL).unlink(missing_ok=True)
    with atomic_path(folder / "rows.csv") as temporary:
        texts = itertools.chain.from_iterable(column for _, column in rows.select_dtypes(exclude="number").items())
        rows.to_csv(temporary, index=False, lineterminator="\n", quoting=quoting_of(texts))
    facts = {"draftlab": __version__, "code": _code(), **run, "inputs": digests(folder / "../../..", **inputs)}
    write_json(folder / "run.json", facts | {"machine": machine()})
    seal(folder, ["rows.csv", "run.json"])


def split_common(runs: Sequence[Mapping[str, Any]]) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Split the settings of several runs into the shared ones, and for each run the others."""
    keys = list(dict.fromkeys(key for run in runs for key in run))
    same = [key for key in keys if key != "cell" and all(run.get(key) == runs[0].get(key) for run in runs)]
    varied = [key for key in keys if key not in same]
    return {key: runs[0].get(key) for key in same}, [{key: run.get(key) for key in varied} for run in runs]


def digests(run: Path, **inputs: Iterable[Path]) -> dict[str, dict[str, str | None]]:
    """Return the SHA-256 of each input by kind and by path relative to the folder ``run``.

    The digest is None for an input that is not a file, such as the name of an architecture.
    """
    return {
        kind: {os.path.relpath(path, run) if path.exists() else str(path): _digest(path) for path in sorted(paths)}
        for kind, paths in inputs.items()
    }


def _digest(path: Path) -> str | None:
    """The digest of a file, or of the weights in a model's folder; None if there is neither."""
    if not path.exists():
        return None
    return weights_digest(path) if path.is_dir() else sha256(path)


def _code() -> str:
    """The digest of the code behind a cell: of all draftlab modules that this process has loaded."""
    loaded = {name for name in sys.modules if name.startswith("draftlab.")}
    return code_digest(*sorted(loaded - {"draftlab.cli", "draftlab.__main__"}))
