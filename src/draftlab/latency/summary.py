"""Measured speed-up beside the two formulas, from the rows of a latency table."""

from __future__ import annotations

import pandas as pd

from draftlab.core.theory import expected_block_length, speedup

QUIET = 0.10
"""A cell whose block ratios have an interquartile range over this (relative to their median) is marked as not quiet."""


def summarise(rows: pd.DataFrame) -> pd.DataFrame:
    """One row per (alpha, draft_len): medians over blocks of ratios taken inside a block.

    ``speedup`` = E plain / round, with E the expected tokens per block at alpha; ``eq1`` = E / (k c + 1) (OSD, Eq. 1);
    ``calibrated`` = E / (k c + v(k+1)) with the measured cost of verifying k+1 tokens; ``calibrated_in_loop`` with the draft
    time inside the loop; ``noise`` = median relative difference of the plain steps before and after (same against same).
    """
    blocks = block_ratios(rows)
    found = []
    for _, cell in blocks.groupby(["alpha", "draft_len"]):
        alpha, draft_len = float(cell["alpha"].iloc[0]), int(cell["draft_len"].iloc[0])
        median = cell.median(numeric_only=True)
        quartiles = cell["speedup"].quantile([0.25, 0.75])
        found.append(
            {
                "alpha": alpha,
                "draft_len": draft_len,
                "speedup": median["speedup"],
                "iqr": float(quartiles[0.75] - quartiles[0.25]) / median["speedup"],
                "eq1": speedup(alpha, draft_len, median["cost_ratio"]),
                "calibrated": speedup(alpha, draft_len, median["cost_ratio"], median["verify_ratio"]),
                "calibrated_in_loop": speedup(alpha, draft_len, median["in_loop_cost_ratio"], median["verify_ratio"]),
                "cost_ratio": median["cost_ratio"],
                "verify_ratio": median["verify_ratio"],
                "plain_ms": 1e3 * median["plain"],
                "speculative_ms": 1e3 * median["speculative"],
                "noise": median["noise"],
                "disagreement": cell["disagreements"].sum() / cell["rounds"].sum(),
                "blocks": len(cell),
            }
        )
    frame = pd.DataFrame(found)
    return frame.assign(quiet=frame["iqr"] <= QUIET)


def block_ratios(rows: pd.DataFrame) -> pd.DataFrame:
    """``rows`` with seconds per step and the ratios of each block as columns."""
    plain = (rows["plain_before_seconds"] + rows["plain_after_seconds"]) / rows["plain_steps"]
    speculative = rows["seconds"] / rows["rounds"] / _expected(rows)
    return rows.assign(
        plain=plain,
        speculative=speculative,
        speedup=plain / speculative,
        cost_ratio=rows["draft_probe_seconds"] / rows["draft_probes"] / plain,
        in_loop_cost_ratio=rows["draft_seconds"] / rows["draft_steps"] / plain,
        verify_ratio=rows["verify_probe_seconds"] / rows["verify_probes"] / plain,
        noise=(rows["plain_before_seconds"] / rows["plain_after_seconds"] - 1).abs(),
    )


def summarise_length(rows: pd.DataFrame) -> pd.DataFrame:
    """Per (alpha, length, block): seconds to decode ``length`` tokens plainly and speculatively, and their ratio."""
    expected = _expected(rows)
    width = rows["end"] - rows["begin"]
    plain = (rows["plain_before_seconds"] + rows["plain_after_seconds"]) / rows["plain_steps"] * width
    speculative = rows["seconds"] / rows["rounds"] / expected * width
    found = rows.assign(plain=plain, speculative=speculative, length=rows["end"]).sort_values("end")
    by = [found[key] for key in ("alpha", "block")]
    found = found.assign(
        plain=found["plain"].groupby(by).cumsum(), speculative=found["speculative"].groupby(by).cumsum()
    )
    return found.assign(speedup=found["plain"] / found["speculative"])[
        ["alpha", "draft_len", "length", "block", "plain", "speculative", "speedup"]
    ].reset_index(drop=True)


def _expected(rows: pd.DataFrame) -> pd.Series[float]:
    """Expected tokens per block of each row."""
    cells = zip(rows["alpha"], rows["draft_len"], strict=True)
    return pd.Series([expected_block_length(alpha, draft_len) for alpha, draft_len in cells], index=rows.index)
