"""The last lines of a run: its headline numbers, and where its report is."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pandas as pd

from draftlab.core import theory
from draftlab.core.measure import Measure
from draftlab.core.stats import ENOUGH, Interval
from draftlab.data import dropped
from draftlab.errors import UserError
from draftlab.plan.run import run_of
from draftlab.report import tidy
from draftlab.report.contrast import Contrast, Selection, Tables, compute, compute_each
from draftlab.report.intervals import decide, show
from draftlab.stages.latency_alpha import summarise

SCHEMES = ("optimal", "importance_truncated", "k_seq", "specinfer", "single")


def newest_run(results: Path) -> Path:
    """The folder of the run below ``results`` whose report was written last, or ``results`` itself if it is the folder of a run."""
    if (results / "report.html").is_file():
        return results
    reports = sorted(results.glob("*/report.html"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise UserError("no finished run", file=results, remedy="run `snakemake --cores all` first")
    return reports[-1].parent


def headlines(run: Path) -> Iterator[str]:
    """Headline numbers of one run, one line each; an experiment that did not run has no line."""
    for name, headline in HEADLINES.items():
        table = run / f"{name}.csv"
        if table.exists():
            for line in headline(tidy.read(table)):
                left = dropped.unread(run) if headline is _traffic else 0
                yield line + (f"; left out: {left} prompts {dropped.UNREAD.format('the target')}" if left else "")


def lines(run: Path) -> Iterator[str]:
    """Headline numbers of one run, then where to look."""
    yield from headlines(run)
    yield from dropped.lines(run)
    yield f"Report   {run / 'report.html'}"
    yield f"Tables   {run}/*.csv, with every published number beside ours in {run / 'claims.csv'}"
    yield f"Figures  {run / 'figures'}/"


def answers(run: Path) -> Iterator[str]:
    """The headline about the user's prompts, in one sentence, and where the report is."""
    yield from (line for line in headlines(run) if line.startswith("Traffic"))
    yield f"Report   {run / 'report.html'}"


ALPHA = Measure("overlap", "visited")
UNDISTILLED, DISTILLED = {"sample_source": "none"}, {"sample_source": "teacher", "loss": "forward_kl"}


def _measure(table: pd.DataFrame, measure: Measure, **where: Any) -> Interval:
    """Estimate a measure over the rows that ``where`` selects; NaN if there are none."""
    result = compute(Contrast(Selection("", measure, where)), Tables({"": table}))
    return Interval(math.nan, math.nan, math.nan, 0) if result is None else result.value


def _alphas(table: pd.DataFrame, *wheres: dict[str, Any]) -> list[str]:
    """Alpha over the rows that each filter selects, as text."""
    return [show(_measure(table, ALPHA, **where), 2) for where in wheres]


def _offline(table: pd.DataFrame) -> Iterator[str]:
    before, after = _alphas(table, UNDISTILLED, DISTILLED)
    n = table.loc[table["sample_source"] == "none", "dataset"].nunique()
    yield f"Offline  alpha {before} before, {after} after distillation, {n} dataset{'s' * (n > 1)}, held-out requests"
    if loops := looping(table):
        yield f"Loops    {loops}"


def looping(table: pd.DataFrame) -> str:
    """How many of the target's answers repeat themselves, and alpha before and after distillation without them; empty if none does."""
    if "looping" not in table or not table["looping"].any():
        return ""
    requests = table.drop_duplicates(["dataset", "request_id"])
    parts = []
    for dataset, answers in requests.groupby("dataset"):
        parts.append(f"{dataset} {answers['looping'].sum()} of {len(answers)}")
        rest = table[(table["dataset"] == dataset) & ~table["looping"].astype(bool)]
        if len(rest) and answers["looping"].any():
            before, after = _alphas(rest, UNDISTILLED, DISTILLED)
            parts[-1] += f", without them alpha {before} before, {after} after"
    return f"answers that repeat some six tokens in a row at least three times: {'; '.join(parts)}"


def _online(table: pd.DataFrame) -> Iterator[str]:
    online, static = _alphas(table, *({"method": method, "window": [0.9, 1.0]} for method in ("online", "static_10")))
    yield f"Online   alpha {online} on the last tenth of the stream; static draft {static}"


def _traffic(table: pd.DataFrame) -> Iterator[str]:
    """Whether the distilled draft pays off on the user's prompts: as measured, and as predicted from the measured acceptance and costs."""
    step = _measure(table, Measure("seconds", "tokens"), contender=["none", "none_again"]).estimate
    speedups, texts = {}, {}
    for contender in ("before", "distilled"):
        rows = table[table["contender"] == contender]
        if rows.empty:  # an experiment of a user's own may leave it out
            continue
        pairs = {
            "alpha": ("accepted", "visited"),
            "draft": ("draft_seconds", "drafted"),
            "verify": ("verify_seconds", "blocks"),
        }
        measured = {name: _measure(table, Measure(*pair), contender=contender).estimate for name, pair in pairs.items()}
        draft_len = int(rows["draft_len"].iloc[0])
        alpha, costs = measured["alpha"], (measured["draft"] / step, measured["verify"] / step)
        speedups[contender] = _measure(table, Measure("plain_seconds", "seconds"), contender=contender)
        texts[contender] = (
            f"{show(speedups[contender], 2)} times as fast (alpha {alpha:.2f}; "
            f"Eq. 1 predicts {theory.speedup(alpha, draft_len, costs[0]):.2f}, "
            f"with the measured cost of verification {theory.speedup(alpha, draft_len, *costs):.2f})"
        )
    if "distilled" not in speedups:
        return
    after = speedups["distilled"]
    helps = {"more": "pays off", "less": "does not pay off", "level": "is not shown to pay off"}[decide(after, 1.0)]
    verdict = f"an adapted draft {helps}"
    if after.n < ENOUGH:
        verdict = f"not yet known whether an adapted draft pays off, at least {ENOUGH} requests are needed; so far"
    undistilled = f", the undistilled draft {texts['before']}" if "before" in texts else ""
    yield (
        f"Traffic  {verdict}: compared with no draft {texts['distilled']}{undistilled}, "
        f"in llama.cpp on {after.n} request{'s' * (after.n != 1)}"
    )


def _latency(table: pd.DataFrame) -> Iterator[str]:
    cells = summarise(table)
    cells = cells[(cells["alpha"] - 0.8).abs() < 1e-9]
    if len(cells):
        best = cells.nlargest(1, "speedup").iloc[0]
        yield (
            f"Latency  {best['speedup']:.2f}x measured in llama.cpp at alpha = 0.8 and draft_len {best['draft_len']:.0f}; "
            f"Eq. 1 predicts {best['eq1']:.2f}x, with the measured cost of verification {best['calibrated']:.2f}x"
        )


def _acceptance(table: pd.DataFrame) -> Iterator[str]:
    """Acceptance of the main schemes on real texts, with the fewest drafts and the draft temperature nearest to 1.2.

    RRS is left out because it has its own optimum, and path schemes because they measure another quantity.
    """
    rows = table[(table["dataset"] != "synthetic") & table["scheme"].isin(SCHEMES)]
    if rows.empty:
        return
    drafts, temperature = rows["num_drafts"].min(), min(rows["draft_temperature"], key=lambda value: abs(value - 1.2))
    chosen = Selection(
        "", Measure("acceptance_sum", "positions"), {"num_drafts": drafts, "draft_temperature": temperature}
    )
    schemes = compute_each(Contrast(chosen, each=["scheme"]), Tables({"": rows}))
    texts = (f"{result.group['scheme']} {show(result.value, 3)}" for result in schemes)
    yield f"Drafts   accepted with {drafts} drafts at temperature {temperature:g}: {', '.join(texts)}"


HEADLINES = {
    "osd_latency_dataset": _traffic,
    "osd_offline": _offline,
    "osd_online": _online,
    "osd_latency_alpha": _latency,
    "mdss_acceptance": _acceptance,
}


def print_summary(*, results: Path = Path("results"), config: tuple[str, ...] = (), answer: bool = False) -> None:
    """Print the headline numbers of a run, and the path of its report.

    **Arguments:**
    - `results`: the folder of all runs
    - `config`: the settings that the run was given, each KEY=VALUE, as for snakemake; without one, the newest run
    - `answer`: print only what the run says about your prompts
    """
    run = newest_run(results / run_of(config).name if config else results)
    print(*(answers(run) if answer else lines(run)), sep="\n")
