"""``draftlab verdict``: the workflow on a log of one's own, and what its tables say of each draft."""

from __future__ import annotations

import hashlib
import os
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from draftlab.data import check
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.json_files import read_object
from draftlab.files.tables import read_table
from draftlab.plan import WORKFLOW
from draftlab.serving import traces, verdict
from draftlab.serving.load import ENOUGH
from draftlab.serving.verdict import Asked, Verdict

HALF = 2 * ENOUGH
"""Requests of a log of which half, at most, are held out."""


def run(asked: Asked, out: Path | None) -> list[tuple[Path, Verdict | None]]:
    """The verdict on each draft and the folder that it is written to; None where the log is too short to ask."""
    rate = _rate(asked.load)
    trace = traces.read_trace(asked.trace) if asked.trace else None
    if asked.temperature not in (0, 1):
        raise UserError(f"temperature {asked.temperature}", remedy="give 0 or 1")
    counted = check.check(asked.traffic)
    if not counted.usable:
        reasons = ", ".join(f"{n} {why}" for why, n in counted.rejected.items()) or "it is empty"
        raise UserError(f"no usable request: {reasons}", file=asked.traffic, remedy="see draftlab data check FILE")
    distinct = counted.kept - counted.duplicates
    left_out = dict(counted.rejected) | ({"duplicates": counted.duplicates} if counted.duplicates else {})
    found: list[tuple[Path, Verdict | None]] = []
    for draft in asked.draft or ("",):
        name = _name(asked, draft)
        folder = (out or Path("results") / name) / (_short(draft) if len(asked.draft) > 1 else "")
        if distinct < HALF:
            print(f"{distinct} usable requests, half of them held out at most; it takes {HALF}", file=sys.stderr)
            found.append((folder, None))
            continue
        said = judge(_workflow(asked, draft, name), asked, draft, left_out, rate, trace)
        write_text(folder / "verdict.json", said.model_dump_json(indent=1) + "\n")
        found.append((folder, said))
    return found


def judge(
    run: Path, asked: Asked, draft: str, left_out: dict[str, int], rate: float | None, trace: traces.Arrivals | None
) -> Verdict:
    """The verdict from the tables of a finished run."""
    cell = run / "cells/traffic_verdict" / f"prompts.{asked.temperature}"
    rows, facts = read_table(cell / "rows.csv"), read_object(cell / "run.json")["runs"][0]
    held_out = rows[rows["split"] == "eval"]
    context = float((held_out["prompt_tokens"] + held_out["emitted"] / 2).mean())
    if asked.hardware:
        weights = facts["parameters"]
        costs = verdict.from_profile(asked.hardware, context, weights["draft"] / weights["target"])
    else:
        costs = verdict.from_probes(read_table(run / "cells/traffic_cost/all/rows.csv"), context)
    return verdict.decide(
        rows,
        costs,
        facts,
        log=asked.traffic.name,
        target=Path(asked.target).name,
        draft=Path(draft).name or "made of the target's first layers",
        temperature=asked.temperature,
        left_out=left_out,
        rate=rate,
        trace=trace,
    )


def lines(found: Sequence[tuple[Path, Verdict | None]]) -> list[str]:
    """Three lines for each draft, and where the rest lies."""
    said = []
    for folder, own in found:
        if own is None:
            said.append(f"Not yet known: too few requests (it takes {HALF}, half of which are held out)")
        else:
            said += [*verdict.lines(own)[:2], f"{verdict.lines(own)[2]}; {folder / 'verdict.json'}"]
    return said


def _workflow(asked: Asked, draft: str, name: str) -> Path:
    """Run the workflow as far as the tables; a later call with the same files goes on where this one stopped."""
    run = Path("results") / name
    given = {
        "scale": asked.scale,
        "dataset": os.path.abspath(asked.traffic),
        "target": _absolute(asked.target),
        "name": name,
    }
    given |= {"experiments": "traffic_verdict,traffic_cost"} | ({"draft": _absolute(draft)} if draft else {})
    wanted = [run / "cells/traffic_verdict" / f"prompts.{asked.temperature}" / "rows.csv"]
    wanted += [] if asked.hardware else [run / "cells/traffic_cost/all/rows.csv"]
    command: list[Any] = [sys.executable, "-m", "snakemake", "--snakefile", WORKFLOW.parent / "Snakefile"]
    command += ["--workflow-profile", WORKFLOW.parent / "profiles/default", "--cores", asked.cores or "all"]
    command += ["--config", *(f"{key}={value}" for key, value in given.items()), "--", *wanted]
    done = subprocess.run([str(part) for part in command], stdout=sys.stderr, stderr=sys.stderr, check=False)
    if done.returncode:
        raise UserError(
            "the workflow stopped", file=run / "logs", remedy="see the message above; the same command goes on"
        )
    return run


def _absolute(model: str) -> str:
    return os.path.abspath(model) if os.path.exists(model) else model


def _name(asked: Asked, draft: str) -> str:
    """One run for each log, target, draft and scale."""
    parts = [os.path.abspath(asked.traffic), _absolute(asked.target), _absolute(draft), asked.scale]
    digest = hashlib.blake2b("\n".join(parts).encode(), digest_size=3).hexdigest()
    return f"verdict-{_short(str(asked.traffic))}-{_short(asked.target)}-{digest}"


def _short(path: str) -> str:
    return re.sub(r"[^A-Za-z0-9]+", "_", Path(path).stem)[:24].strip("_")


def _rate(load: str | None) -> float | None:
    if load is None:
        return None
    try:
        rate = float(load.removesuffix("/s"))
    except ValueError:
        rate = 0.0
    if not 0 < rate < float("inf"):
        raise UserError(f"load {load!r}", remedy="give requests a second above 0, as in 4/s")
    return rate
