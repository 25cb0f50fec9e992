"""An experiment's table as figures, tables and claims read it: the observations, and what follows from them row by row."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from draftlab.core import theory
from draftlab.errors import UserError
from draftlab.files.tables import read_table
from draftlab.latency.comparison import compare
from draftlab.latency.summary import block_ratios, summarise_length


def latency(rows: pd.DataFrame) -> pd.DataFrame:
    """Times per token in ms and speed-ups of each block, and what Eq. 1 (OSD) promises more than was measured."""
    rows = block_ratios(rows)
    promised = [
        theory.speedup(*cell) for cell in zip(rows["alpha"], rows["draft_len"], rows["cost_ratio"], strict=True)
    ]
    return rows.assign(
        plain_ms=1e3 * rows["plain"],
        speculative_ms=1e3 * rows["speculative"],
        eq1=promised,
        eq1_gap=promised - rows["speedup"],
    )


def best_draft_len(rows: pd.DataFrame) -> pd.DataFrame:
    """Each block once per ``way`` to know its seconds a token: measured, by Eq. 1, and by Eq. 1 with the measured cost of verifying."""
    rows = latency(rows).assign(at="alpha = " + rows["alpha"].astype(str))
    names = ["alpha", "draft_len", "cost_ratio", "verify_ratio"]
    refined = [theory.speedup(*cell) for cell in rows[names].itertuples(index=False)]
    ways = {"measured": rows["speculative"], "refined": rows["plain"] / refined, "eq1": rows["plain"] / rows["eq1"]}
    return pd.concat([rows.assign(way=way, token_seconds=seconds) for way, seconds in ways.items()], ignore_index=True)


def weights(rows: pd.DataFrame) -> pd.DataFrame:
    """``latency``, and as draft length 0 the plain steps around each block."""
    measured = latency(rows)
    plain = measured.assign(
        draft_len=0, speculative=measured["plain"], speculative_ms=measured["plain_ms"], speedup=1.0
    )
    return pd.concat([plain, measured], ignore_index=True)


def length(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds to decode ``length`` tokens plainly and speculatively, per block."""
    return summarise_length(rows)


def requests(rows: pd.DataFrame) -> pd.DataFrame:
    """Beside the seconds of each contender those of plain decoding of the same request."""
    keys = [key for key in ("dataset", "temperature", "request") if key in rows]
    plain = rows[rows["contender"] == "none"].set_index(keys)["seconds"]
    plain_seconds = plain.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy()
    return rows.assign(plain_seconds=plain_seconds, milliseconds=1e3 * rows["seconds"])


def update(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of the target for all requests between two updates."""
    return rows.assign(interval_seconds=rows["target_request_seconds"] * rows["update_interval"])


def cost(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of one plain step of the target around each probe."""
    return rows.assign(plain_seconds=(rows["plain_before_seconds"] + rows["plain_after_seconds"]) / 2)


def noise(rows: pd.DataFrame) -> pd.DataFrame:
    """A repeat is a block of pairs of equal measurements; ``winner``: whether its pairs, compared, name one of the two, which are the same."""
    named = {repeat: compare(own["a_seconds"], own["b_seconds"]).differs for repeat, own in rows.groupby("repeat")}
    winner = rows["repeat"].map(named).astype(float)
    return rows.assign(block=rows["repeat"], winner=winner, measured="the same plain steps, twice")


def live(rows: pd.DataFrame) -> pd.DataFrame:
    """All seconds of a request, and whether its drafts were of one temperature."""
    seconds = rows["draft_seconds"] + rows["target_seconds"] + rows["select_seconds"]
    return rows.assign(seconds=seconds, identical=rows["first_temperature"] == rows["draft_temperature"])


def acceptance(rows: pd.DataFrame) -> pd.DataFrame:
    """What each row lacks to the optimal scheme on the same request, temperature and number of drafts."""
    keys = ["dataset", "request", "draft_temperature", "num_drafts"]
    best = rows[rows["scheme"] == "optimal"].set_index(keys)["acceptance_sum"]
    return rows.assign(
        shortfall_sum=best.reindex(pd.MultiIndex.from_frame(rows[keys])).to_numpy() - rows["acceptance_sum"]
    )


ENTROPIES = ("under 0.1 nats", "0.1 to 0.5", "0.5 to 1", "1 to 2", "over 2 nats")
"""The classes of target entropy, in words."""


def regime(rows: pd.DataFrame) -> pd.DataFrame:
    """What importance sampling accepts more than K-SEQ, and the target's entropy in words."""
    words = rows["entropy_class"].map(dict(enumerate(ENTROPIES)))
    rows = rows.sort_values("entropy_class", kind="stable")
    return rows.assign(over_k_seq=rows["importance_truncated"] - rows["k_seq"], entropy=words)


def region(rows: pd.DataFrame) -> pd.DataFrame:
    """Whether nothing is ever rejected at a target."""
    return rows.assign(certain=(rows["acceptance"] > 1 - 1e-9).astype(float), one=1.0)


def quality(rows: pd.DataFrame) -> pd.DataFrame:
    """The score of each answer by the metric of its task: BLEU of translations, else ROUGE-L."""
    translated = rows["dataset"] == "wmt16"
    metric = translated.map({True: "BLEU", False: "ROUGE-L"})
    return live(rows).assign(metric=metric, score=rows["bleu"].where(translated, rows["rouge_l"]))


def break_even(rows: pd.DataFrame) -> pd.DataFrame:
    """Seconds of a request with its share of the training."""
    return rows.assign(cost_seconds=rows["serve_seconds"] + rows["update_seconds"])


def medusa(rows: pd.DataFrame) -> pd.DataFrame:
    """Sizes and times in the units of the papers, and requests that read as plainly decoded."""
    return rows.assign(parameters_billion=rows["parameters"] / 1e9, epoch_minutes=rows["epoch_seconds"] / 60)


def classes(rows: pd.DataFrame) -> pd.DataFrame:
    """``among``: the requests of a slice that OSD's Figure 2 shares out, those of every topic, those of every language but English;
    and the ``half`` of the time that a slice lies in."""
    half = (2 * rows["slice"] > rows["slice"].max()).map({True: "second", False: "first"})
    named = rows["count"].where(rows["group"] != "English", 0)
    return rows.assign(half=half, among=named.groupby([rows["group_by"], rows["slice"]]).transform("sum"))


def cone(rows: pd.DataFrame) -> pd.DataFrame:
    """How many of the facets that Theorem 2 names were not found."""
    return rows.assign(missing_subsets=rows["expected_subsets"] - rows["subsets"])


def recall(rows: pd.DataFrame) -> pd.DataFrame:
    """The rank of each token by how often the target writes it, per dataset, from 1; and each row once per ``statistic``, whose
    denominator is ``over``: precision over what was proposed, recall over what was written."""
    written = rows[rows["method"] == "original"].groupby(["dataset", "token"])["generated"].sum()
    rank = written.groupby(level="dataset").rank(method="first", ascending=False)
    found = rank.reindex(pd.MultiIndex.from_frame(rows[["dataset", "token"]])).fillna(np.inf).to_numpy()
    common = found <= 100
    rows = rows.assign(rank=found, common=common, common_generated=rows["generated"].where(common, 0))
    statistics = {"precision": "proposed", "recall": "generated"}
    return pd.concat(
        [rows.assign(statistic=name, over=rows[key]) for name, key in statistics.items()], ignore_index=True
    )


def draft_length(rows: pd.DataFrame, cost_ratio: float = 0.1) -> pd.DataFrame:
    """Time of a request in target steps, with draft steps of ``cost_ratio`` (Eq. 1's denominator, OSD)."""
    return rows.assign(cost=rows["blocks"] * (rows["draft_len"] * cost_ratio + 1))


def compute(rows: pd.DataFrame) -> pd.DataFrame:
    """FLOPs of training: forward and backward take 6 per parameter and token."""
    return rows.assign(training_flops=6.0 * rows["parameters"] * rows["tokens"])


ESTIMATORS = {
    "live": ("live", "accepted"),
    "accepted over visited": ("replay", "accepted"),
    "sum of minima": ("replay", "overlap"),
    "OSD's repository": ("replay", "overlap_repo"),
}
"""What is measured, and the column that is counted over the visited tokens; live decoding is the truth."""


def estimators(rows: pd.DataFrame) -> pd.DataFrame:
    """Each row once per ``estimator`` of alpha, whose numerator is ``counted``."""
    parts = []
    for name, (measured, column) in ESTIMATORS.items():
        own = rows[rows["measured"] == measured]
        parts.append(own.assign(estimator=name, counted=own[column]))
    return pd.concat(parts, ignore_index=True)


def update_interval(rows: pd.DataFrame) -> pd.DataFrame:
    """What each of the two sweeps varies beside the interval, in words."""
    rate, replay = (
        words + rows[key].map("{:g}".format)
        for words, key in (("learning rate ", "learning_rate"), ("replay ", "replay"))
    )
    return rows.assign(setting=rate.where(rows["sweep"] == "learning_rate", replay))


def stream_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Requests of each stream, CPU milliseconds for each of them, and for each that the next shorter stream lacks."""
    rows = rows.assign(served=rows.groupby("length")["record"].transform("max") + 1)
    runs = rows.groupby("served")["cpu_seconds"].mean()
    added = runs.diff() / runs.index.to_series().diff()
    return rows.assign(request_ms=1e3 * rows["cpu_seconds"] / rows["served"], added_ms=1e3 * rows["served"].map(added))


DERIVED: dict[str, Callable[[pd.DataFrame], pd.DataFrame]] = {
    "osd_latency_alpha": latency,
    "osd_latency_length": length,
    "osd_latency_dataset": requests,
    "osd_arena_classes": classes,
    "osd_medusa": medusa,
    "osd_update_cost": update,
    "mdss_acceptance": acceptance,
    "mdss_cone": cone,
    "mdss_draft_temperature": live,
    "mdss_drafts": live,
    "mdss_mixed_temperature": live,
    "mdss_quality": quality,
    "mdss_region": region,
    "mdss_target_temperature": live,
    "mdss_three_drafts": live,
    "mdss_topk": live,
    "mdss_truncation": live,
    "beyond_block_multidraft": live,
    "beyond_best_draft_len": best_draft_len,
    "beyond_break_even": break_even,
    "beyond_hybrid": acceptance,
    "beyond_noise_floor": noise,
    "beyond_regime": regime,
    "beyond_sinkhorn": acceptance,
    "beyond_context_batch": cost,
    "beyond_interference": latency,
    "beyond_sampled_latency": requests,
    "beyond_three_baselines": requests,
    "beyond_weights": weights,
    "beyond_draft_length": draft_length,
    "beyond_compute_matched": compute,
    "beyond_stream_length": stream_length,
    "beyond_temperature": estimators,
    "beyond_update_interval": update_interval,
    "osd_token_recall": recall,
}


def read(path: Path, experiment: str | None = None) -> pd.DataFrame:
    """Read ``<experiment>.csv`` and add its derived columns; a file that is no table is a ``UserError``."""
    experiment = path.stem if experiment is None else experiment
    rows = read_table(path)
    try:
        return derive(experiment, rows)
    except KeyError as error:
        raise UserError(f"no column {error}", file=path, remedy="delete it and run the experiment again") from None


def derive(experiment: str, rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with the derived columns of this experiment."""
    return DERIVED[experiment](rows) if experiment in DERIVED else rows


def unit(rows: pd.DataFrame) -> str | None:
    """The column whose values the bootstrap draws: requests, places (records) of a stream, or blocks; None for an exact table."""
    return next((column for column in ("request", "record", "block") if column in rows), None)


def units(rows: pd.DataFrame) -> str | None:
    """What the bootstrap draws, in words; None for an exact table. A row of a binned stream sums several ``requests``."""
    if {"record", "requests"} <= set(rows) and (size := int(rows["requests"].max())) > 1:
        return f"groups of up to {size} requests"
    column = unit(rows)
    return None if column is None else f"{column}s"


def clusters(rows: pd.DataFrame) -> pd.Series:
    """One name per unit of the bootstrap: the same request number of two datasets is two requests."""
    column = unit(rows)
    if column is None:
        raise UserError("an exact table has no requests to draw", remedy="leave the interval out")
    return (
        rows["dataset"].astype(str) + "/" + rows[column].astype(str) if "dataset" in rows else rows[column].astype(str)
    )


def in_window(rows: pd.DataFrame, start: float, end: float) -> pd.Series[bool]:
    """Which rows lie in this part of their stream, as fractions of its length; held-out requests (``offline``) always do.

    Every column of words names a stream, but those that tell its requests apart.
    """
    words = [key for key in rows if pd.api.types.is_string_dtype(rows[key]) and key not in ("group", "text")]
    length = (
        rows["record"].groupby([rows[key] for key in words]).transform("max") + 1 if words else rows["record"].max() + 1
    )
    place = rows["record"] / length
    inside = (place >= start) & (place < end)
    return inside | (rows["method"] == "offline") if "method" in rows else inside


def paired(one: pd.DataFrame, two: pd.DataFrame) -> tuple[pd.DataFrame, pd.DataFrame]:
    """Both frames over the units of either, 0 where a unit is absent: what both have is drawn together."""
    units = one.index.union(two.index, sort=False)
    return one.reindex(units, fill_value=0.0), two.reindex(units, fill_value=0.0)


def records(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """One dict per row."""
    return [{str(key): value for key, value in row.items()} for row in rows.to_dict("records")]
