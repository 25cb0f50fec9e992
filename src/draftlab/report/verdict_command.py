"""``draftlab verdict``: runs the workflow on a user's log, and judges each draft from its tables."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence
from pathlib import Path

from draftlab.core.settings import Flat
from draftlab.core.stats import ENOUGH
from draftlab.data import check
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.models.config import head_in
from draftlab.report import card
from draftlab.report.verdict_page import commands, page
from draftlab.report.verdict_run import judge_run, replayed, run_workflow
from draftlab.report.verdict_settings import VerdictSettings, check_bounds, name_of, setting_folders, short
from draftlab.serving import profiles, traces, verdict
from draftlab.serving.verdict_format import Verdict

LEAST = 2 * ENOUGH
"""The fewest requests that a log must have; at most half of them are held out."""


def run(settings: VerdictSettings, out: Path | None) -> list[tuple[Path, Verdict | None]]:
    """Judge each draft; return the folder that each verdict is written to with the verdict, None if the log is too short."""
    rate = settings.rate
    trace = traces.read_trace(settings.trace) if settings.trace else None
    if trace is not None and not math.isfinite(trace.rate):
        raise UserError(
            "all its requests come at once", file=settings.trace, remedy="give one with several times, or --load"
        )
    if settings.hardware:
        profiles.load(settings.hardware)  # a wrong name is said before hours of work
    elif head := next(filter(head_in, settings.draft), None):
        what = "a head on its target's states (EAGLE-3, DFlash), which draftlab does not time in llama.cpp"
        raise UserError(what, file=head, remedy="give a machine's costs: --hardware PROFILE (draftlab load --help)")
    check_bounds(settings)
    distinct, left_out = _usable(settings.traffic, settings.cleaner or "")
    verdicts: list[tuple[Path, Verdict | None]] = []
    for draft in settings.draft or ("",):
        name = name_of(settings, draft)
        digest = name.rpartition("-")[2]  # two drafts may have the same short name
        folder = (out or Path("results") / name) / (f"{short(draft)}-{digest}" if len(settings.draft) > 1 else "")
        folder = folder.joinpath(*setting_folders(settings))  # beside the verdict without these settings
        judged = None
        if distinct < LEAST:
            without = "".join(f"; left out: {count} {why}" for why, count in left_out.items())
            what = f"{distinct} usable requests, but {LEAST} are needed: half of them are held out{without}"
            print(what, file=sys.stderr)
        else:
            results = run_workflow(settings, draft, name, out or Path())
            judged = judge_run(results, settings, draft, left_out, rate, trace)
            judged = judged.model_copy(update={"commands": commands(judged, folder, draft, results)})
            shown = page(judged)  # before anything is written: both files are of one verdict
            write_text(folder / "verdict.json", judged.model_dump_json(indent=1) + "\n")
            write_text(folder / "verdict.html", shown)
            card.write(judged, draft, replayed(results, settings.temperature))
        verdicts.append((folder, judged))
    return verdicts


def _usable(traffic: Path, cleaner: str) -> tuple[int, dict[str, int]]:
    """How many different requests of a log are usable, and how many are left out, by reason."""
    log = check.check(traffic, cleaner=cleaner)
    distinct = log.kept - log.duplicates
    if not log.usable:
        reasons = ", ".join(f"{n} {why}" for why, n in log.rejected.items())
        what = f"usable requests: {distinct} of {log.read}" + (f"; {reasons}" if reasons else "")
        raise UserError(
            what, file=traffic, remedy="see draftlab data check FILE; for a format of yours: --cleaner FILE.py:OBJECT"
        )
    return distinct, dict(log.rejected) | ({"duplicates": log.duplicates} if log.duplicates else {})


def lines(verdicts: Sequence[tuple[Path, Verdict | None]]) -> list[str]:
    """Lines of text for each draft: the verdict, if a draft would help what to run next, and the path of its page."""
    texts = []
    for folder, judged in verdicts:
        if judged is None:
            texts.append(f"Not yet known: too few requests ({LEAST} are needed, half of which are held out)")
        else:
            *first, last = verdict.lines(judged)
            texts += [*first, *(f"Next: {command}" for command in judged.commands if judged.monitor)]
            texts.append(f"{last}; {folder / 'verdict.html'}")
    return texts


def verdict_of(settings: Flat[VerdictSettings], *, out: Path | None = None) -> None:
    """Say whether a draft would make your traffic faster, which draft, at what length, and what would change the answer.

    **Arguments:**
    - `out`: the folder for the verdict and, below it, the run; without one, both go into a folder below results/
    """
    print(*lines(run(settings, out)), sep="\n")
