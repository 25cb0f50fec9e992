"""``draftlab verdict``: runs the workflow on a user's log, and judges each draft from its tables."""

from __future__ import annotations

import base64
import hashlib
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from draftlab import __version__
from draftlab.core.settings import Flat
from draftlab.core.stats import ENOUGH
from draftlab.data import check
from draftlab.data.classify import languages
from draftlab.data.prompts import Prompt
from draftlab.engine.answers import Answer, recorded_name
from draftlab.errors import UserError
from draftlab.files.atomic import write_text
from draftlab.files.checkout import ROOT
from draftlab.files.json_files import read_jsonl, read_object
from draftlab.files.tables import read_table
from draftlab.models.ngrams import NGRAM
from draftlab.report.page import templates
from draftlab.serving import costs as block_costs
from draftlab.serving import traces, verdict
from draftlab.serving.verdict import Asked
from draftlab.serving.verdict_format import NAMES, Range, Verdict

NO_DRAFT = Range(estimate=1, low=1, high=1)
FIGURES = {
    "length": "Speed-up over no draft by draft length, one request at a time, with each option's better way to propose. Below 1, the draft makes requests slower.",
    "load": "Speed-up of a whole request, including waiting, by load, at the best draft length for each; 1 if no length pays off.",
    "time": "Acceptance along the log; for a draft distilled on the log, along the held-out requests.",
}
HALF = 2 * ENOUGH
"""The fewest requests that a log must have; at most half of them are held out."""


def run(asked: Asked, out: Path | None) -> list[tuple[Path, Verdict | None]]:
    """Judge each draft; return the folder that each verdict is written to with the verdict, None if the log is too short."""
    rate = _rate(asked.load)
    trace = traces.read_trace(asked.trace) if asked.trace else None
    if asked.temperature not in (0, 1):
        raise UserError(f"temperature is {asked.temperature}", remedy="give 0 or 1")
    counted = check.check(asked.traffic)
    if not counted.usable:
        reasons = ", ".join(f"{n} {why}" for why, n in counted.rejected.items()) or "it is empty"
        raise UserError(f"no usable request: {reasons}", file=asked.traffic, remedy="see draftlab data check FILE")
    distinct = counted.kept - counted.duplicates
    left_out = dict(counted.rejected) | ({"duplicates": counted.duplicates} if counted.duplicates else {})
    judged: list[tuple[Path, Verdict | None]] = []
    for draft in asked.draft or ("",):
        name = _name(asked, draft)
        folder = (out or Path("results") / name) / (_short(draft) if len(asked.draft) > 1 else "")
        if distinct < HALF:
            print(f"{distinct} usable requests, but {HALF} are needed: half of them are held out", file=sys.stderr)
            judged.append((folder, None))
            continue
        result = judge(_run_workflow(asked, draft, name, out or Path()), asked, draft, left_out, rate, trace)
        write_text(folder / "verdict.json", result.model_dump_json(indent=1) + "\n")
        write_text(folder / "verdict.html", page(result, asked, folder))
        judged.append((folder, result))
    return judged


def judge(
    run: Path, asked: Asked, draft: str, left_out: dict[str, int], rate: float | None, trace: traces.Arrivals | None
) -> Verdict:
    """Judge one draft from the tables of a finished run."""
    cell = run / "cells/traffic_verdict" / f"prompts.{asked.temperature}"
    rows, facts = read_table(cell / "rows.csv"), read_object(cell / "run.json")["runs"][0]
    answers = _answers(run, asked.temperature)
    rows = _with_language(rows, run, answers)
    held_out = rows[rows["split"] == "eval"]
    context = float((held_out["prompt_tokens"] + held_out["emitted"] / 2).mean())
    if asked.hardware:
        weights = facts["parameters"]
        costs = block_costs.from_profile(asked.hardware, context, weights["draft"] / weights["target"])
    else:
        costs = block_costs.from_probes(read_table(run / "traffic_cost.csv"), context)
    return verdict.decide(
        rows,
        costs,
        facts,
        log=asked.traffic.name,
        target=Path(asked.target).name,
        draft=Path(draft).name or "made of the target's first layers",
        temperature=asked.temperature,
        left_out=left_out,
        cut=sum(not answer.finished for answer in answers),
        rate=rate,
        trace=trace,
    )


def _answers(run: Path, temperature: int) -> list[Answer]:
    """The target's answers to the held-out requests."""
    folder = run / "main/answers" / recorded_name("prompts", "eval", temperature)
    return list(read_jsonl(folder / "answers.jsonl", Answer))


def _with_language(rows: pd.DataFrame, run: Path, answers: Sequence[Answer]) -> pd.DataFrame:
    """Add a column with the language of each held-out request."""
    texts = {prompt.id: prompt.text for prompt in read_jsonl(run / "data/prompts/eval.jsonl", Prompt)}
    names = languages([texts[answer.id] for answer in answers])
    return rows.assign(language=rows["request_id"].where(rows["split"] == "eval").map(dict(enumerate(names))))


def page(result: Verdict, asked: Asked, folder: Path) -> str:
    """Render the verdict as one self-contained HTML page."""
    parts = [part for part in FIGURES if part != "load" or result.load]
    prefix = "data:image/svg+xml;base64,"
    template = templates().get_template("verdict.html.j2")
    return template.render(
        v=result,
        names=NAMES,
        enough=ENOUGH,
        figures=[(prefix + base64.b64encode(draw(result, part)).decode(), FIGURES[part]) for part in parts],
        commands=commands(result, asked, folder),
        version=__version__,
    )


def commands(result: Verdict, asked: Asked, folder: Path) -> list[str]:
    """The commands to run next: write the engine's settings, then monitor whether production reaches the predicted speed-up."""
    if result.monitor is None:
        return [shlex.join(["draftlab", "data", "check", str(asked.traffic)])]
    draft = asked.draft[0] if asked.draft else "DRAFT"
    length, out = str(result.monitor.draft_len), str(folder / "engines")
    emit = ["draftlab", "emit", "--draft-len", length, "--target", asked.target, "--draft", draft, "--out", out]
    emit += ["--confidence", f"{result.monitor.threshold:g}"] if result.monitor.threshold else []
    monitor = ["draftlab", "monitor", "http://localhost:8000/metrics", "--verdict", str(folder / "verdict.json")]
    if result.monitor.option == "lookup":  # lookup has no draft model: use vLLM's own, matching as many tokens as ours
        ngram = {"method": "ngram", "num_speculative_tokens": result.monitor.draft_len}
        ngram |= {"prompt_lookup_max": NGRAM, "prompt_lookup_min": NGRAM}
        emit = ["vllm", "serve", asked.target, "--speculative-config", json.dumps(ngram)]
    return [shlex.join(emit), shlex.join(monitor)]


def draw(result: Verdict, part: str) -> bytes:
    """Draw one of ``FIGURES`` as SVG, narrow enough for a phone; bands are 95 % intervals."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 3.6), layout="constrained")
    axes = figure.subplots()
    for number, option in enumerate(result.options):
        if part == "length":
            best = option.proposal, option.threshold
            same = (at for at in option.by_length if (at.proposal, at.threshold) == best)
            each = sorted(same, key=lambda at: at.draft_len)
            points = [(0.0, NO_DRAFT), *((float(at.draft_len), at.speedup) for at in each)]
            axes.set(xlabel="tokens drafted at once", ylabel="speed-up over no draft")
        elif part == "time":
            points = [((i + 0.5) / len(option.over_time), at) for i, at in enumerate(option.over_time)]
            axes.set(xlabel="share of the log", ylabel="acceptance")
        else:
            points = [(at.rate, at.speedup) for at in result.load.get(option.name, [])]
            axes.set(xlabel="requests a second", ylabel="speed-up of a request")
        if points:
            x = [place for place, _ in points]
            axes.plot(x, [at.estimate for _, at in points], f"C{number}o-", ms=3, label=NAMES[option.name])
            band = [at.low for _, at in points], [at.high for _, at in points]
            axes.fill_between(x, *band, color=f"C{number}", alpha=0.18, lw=0)
    axes.set_ylim(bottom=0)
    if part != "time":
        axes.axhline(1, color="0.4", lw=0.8)
    figure.legend(loc="outside lower center", ncols=2, fontsize=8)
    out = io.BytesIO()
    figure.savefig(out, format="svg", metadata={"Date": None})
    return out.getvalue()


def lines(result: Sequence[tuple[Path, Verdict | None]]) -> list[str]:
    """Three lines of text for each draft, the last with the path of its page."""
    texts = []
    for folder, judged in result:
        if judged is None:
            texts.append(f"Not yet known: too few requests ({HALF} are needed, half of which are held out)")
        else:
            *first, last = verdict.lines(judged)
            texts += [*first, f"{last}; {folder / 'verdict.html'}"]
    return texts


def _run_workflow(asked: Asked, draft: str, name: str, folder: Path) -> Path:
    """Run the workflow below ``folder`` up to the tables; a later call with the same files continues where this one stopped."""
    run = Path("results") / name
    config = {"scale": asked.scale, "dataset": os.path.abspath(asked.traffic), "target": _absolute(asked.target)}
    config |= {"name": name, "experiments": "traffic_verdict,traffic_cost"}
    config |= ({"draft": _absolute(draft)} if draft else {}) | ({"template": asked.template} if asked.template else {})
    wanted = [run / "cells/traffic_verdict" / f"prompts.{asked.temperature}" / "rows.csv"]
    wanted += [] if asked.hardware else [run / "traffic_cost.csv"]
    command: list[Any] = [sys.executable, "-m", "snakemake", "--snakefile", ROOT / "Snakefile"]
    command += ["--directory", folder, "--workflow-profile", ROOT / "profiles/default", "--cores", asked.cores or "all"]
    command += ["--config", *(f"{key}={value}" for key, value in config.items()), "--", *wanted]
    folder.mkdir(parents=True, exist_ok=True)
    path = (
        f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', '')}"  # the workflow's rules call draftlab
    )
    finished = subprocess.run(
        list(map(str, command)), stdout=sys.stderr, stderr=sys.stderr, check=False, env=os.environ | {"PATH": path}
    )
    if finished.returncode:
        remedy = "see the message above; the same command resumes"
        raise UserError("the workflow stopped", file=folder / run / "logs", remedy=remedy)
    return folder / run


def _absolute(model: str) -> str:
    return os.path.abspath(model) if os.path.exists(model) else model


def _name(asked: Asked, draft: str) -> str:
    """A name for the run, unique to the log, target, draft and scale."""
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
        raise UserError(f"load is {load!r}", remedy="give a number of requests per second above 0, such as 4/s")
    return rate


def verdict_of(asked: Flat[Asked], *, out: Path | None = None) -> None:
    """Say whether a draft would make your traffic faster, which draft, at what length, and what would change the answer."""
    print(*lines(run(asked, out)), sep="\n")
