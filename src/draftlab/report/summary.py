"""The last lines of a run: where its report lies, and its headline numbers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pandas as pd

from draftlab.core import stats, theory
from draftlab.errors import UserError
from draftlab.latency.summary import summarise
from draftlab.report import tidy

SCHEMES = ("optimal", "importance_truncated", "k_seq", "specinfer", "single")


def newest_run(results: Path) -> Path:
    """The run whose report was written last."""
    reports = sorted(results.glob("*/report.html"), key=lambda path: path.stat().st_mtime)
    if not reports:
        raise UserError("no finished run", file=results, remedy="run `snakemake --cores all` first")
    return reports[-1].parent


def headlines(run: Path) -> Iterator[str]:
    """Headline numbers of one run, a line each; an experiment that did not run has no line."""
    for name, headline in HEADLINES.items():
        table = run / f"{name}.csv"
        if table.exists():
            yield from headline(tidy.read(table))


def lines(run: Path) -> Iterator[str]:
    """Headline numbers of one run, then where to look."""
    yield from headlines(run)
    yield f"Report   {run / 'report.html'}"
    yield f"Tables   {run}/*.csv, with every published number beside ours in {run / 'claims.csv'}"
    yield f"Figures  {run / 'figures'}/"


def _interval(found: stats.Interval, digits: int = 2) -> str:
    return f"{found.estimate:.{digits}f} [{found.low:.{digits}f}, {found.high:.{digits}f}]"


def _pooled(rows: pd.DataFrame, numerator: str, denominator: str) -> stats.Interval:
    sums = rows.groupby(tidy.clusters(rows))[[numerator, denominator]].sum()
    return stats.ratio(sums[numerator], sums[denominator])


def _alpha(rows: pd.DataFrame) -> str:
    return _interval(_pooled(rows, "overlap", "visited"))


def _offline(table: pd.DataFrame) -> Iterator[str]:
    before = table[table["sample_source"] == "none"]
    after = table[(table["sample_source"] == "teacher") & (table["loss"] == "forward_kl")]
    n = before["dataset"].nunique()
    yield f"Offline  alpha {_alpha(before)} before, {_alpha(after)} after distillation, {n} dataset{'s' * (n > 1)}, held-out requests"


def _online(table: pd.DataFrame) -> Iterator[str]:
    end = table[table["method"] != "offline"]
    end = end[end["record"] >= 0.9 * (end["record"].max() + 1)]
    online, static = (_alpha(end[end["method"] == method]) for method in ("online", "static_10"))
    yield f"Online   alpha {online} on the last tenth of the stream; static draft {static}"


def _traffic(table: pd.DataFrame) -> Iterator[str]:
    """Whether the distilled draft pays on each request's own text: measured, and what theory makes of the measured acceptance and costs."""
    plain = table[table["contender"] == "none"]
    step = plain["seconds"].sum() / plain["tokens"].sum()
    told = {}
    for contender in ("before", "distilled"):
        rows = table[table["contender"] == contender]
        sums, draft_len = rows.sum(numeric_only=True), int(rows["draft_len"].iloc[0])
        alpha = sums["accepted"] / sums["visited"]
        costs = sums["draft_seconds"] / sums["drafted"] / step, sums["verify_seconds"] / sums["blocks"] / step
        found = stats.ratio(rows["plain_seconds"], rows["seconds"])
        told[contender] = (
            found,
            (
                f"{_interval(found)} times (alpha {alpha:.2f}; Eq. 1 says {theory.speedup(alpha, draft_len, costs[0]):.2f}, "
                f"with the measured cost of verification {theory.speedup(alpha, draft_len, *costs):.2f})"
            ),
        )
    after = told["distilled"][0]
    helps = "pays" if after.low > 1 else "does not pay" if after.high < 1 else "is not shown to pay"
    yield (
        f"Traffic  an adapted draft {helps}: against no draft {told['distilled'][1]}, the draft as it was {told['before'][1]}, "
        f"in llama.cpp on {after.n} requests"
    )


def _latency(table: pd.DataFrame) -> Iterator[str]:
    cells = summarise(table)
    cells = cells[(cells["alpha"] - 0.8).abs() < 1e-9]
    if len(cells):
        best = cells.nlargest(1, "speedup").iloc[0]
        yield (
            f"Latency  {best['speedup']:.2f}x measured in llama.cpp at alpha = 0.8 and draft_len {best['draft_len']:.0f}; "
            f"Eq. 1 says {best['eq1']:.2f}x, with the measured cost of verification {best['calibrated']:.2f}x"
        )


def _acceptance(table: pd.DataFrame) -> Iterator[str]:
    """At the fewest drafts and the temperature nearest to 1.2, on texts: RRS has an optimum of its own, a path is another quantity."""
    rows = table[(table["dataset"] != "synthetic") & table["scheme"].isin(SCHEMES)]
    drafts, heat = rows["num_drafts"].min(), min(rows["draft_temperature"], key=lambda heat: abs(heat - 1.2))
    rows = rows[(rows["num_drafts"] == drafts) & (rows["draft_temperature"] == heat)]
    found = (
        f"{scheme} {_interval(_pooled(group, 'acceptance_sum', 'positions'), 3)}"
        for scheme, group in rows.groupby("scheme", sort=False)
    )
    yield f"Drafts   accepted with {drafts} drafts at temperature {heat:g}: {', '.join(found)}"


HEADLINES = {
    "osd_latency_dataset": _traffic,
    "osd_offline": _offline,
    "osd_online": _online,
    "osd_latency_alpha": _latency,
    "mdss_acceptance": _acceptance,
}
