"""Predictions beside published measurements: the leave-out really leaves out, and the published page is what the data give."""

from __future__ import annotations

import json
from pathlib import Path

import pandas as pd
import pytest
from numpy.testing import assert_allclose

from benchmarks import load_validate as validate

ROOT = Path(__file__).resolve().parents[2]


def cells(costs: dict[tuple[str, int], float]) -> pd.DataFrame:
    """Cells of one pair whose blocks cost what ``costs`` say of (benchmark, steps), at an acceptance length of 2."""
    shared = {"target": "T", "draft": "D", "batch_size": 1, "topk": 1, "plain": 100.0, "length": 2.0}
    return pd.DataFrame(
        [
            {**shared, "benchmark": b, "steps": s, "num_draft_tokens": s + 1, "measured": 200.0 / cost}
            for (b, s), cost in costs.items()
        ]
    )


def test_a_cell_is_predicted_from_other_benchmarks_only() -> None:
    one = validate.specbundle(cells({("a", 3): 1.5, ("b", 3): 1.5, ("c", 3): 9.0}))
    assert_allclose(one["error"].iloc[2], 9.0 / 1.5 - 1)
    assert_allclose(one["error"].iloc[0], 1.5 / 5.25 - 1)  # the median of 1.5 and 9


def test_a_length_is_predicted_from_other_lengths_only() -> None:
    straight = {(b, s): 1.0 + 0.1 * s for b in "ab" for s in (3, 5, 7)}
    assert_allclose(validate.specbundle(cells(straight), other_lengths=True)["error"], 0, atol=1e-9)
    bent = {**straight, ("b", 5): 4.0}  # the other benchmark's cost at the same length must not matter
    found = validate.specbundle(cells(bent), other_lengths=True)
    assert_allclose(found[(found["benchmark"] == "a") & (found["steps"] == 5)]["error"], 0, atol=1e-9)


def test_specbundle_is_met_within_a_tenth(shared: Path) -> None:
    found = validate.specbundle(validate.specbundle_cells(shared / "data/serving/specbundle/data.json"))
    assert len(found) == 150
    assert found["error"].abs().median() < 0.1
    assert json.loads(found["error"].abs().to_json(orient="values"))[0] > 0


@pytest.mark.parametrize("case", validate._crossings(), ids=lambda case: case.setting)
def test_published_crossings_fall_on_their_side(case: validate.Crossing) -> None:
    assert (case.predict() > 1) == case.pays
    assert case.length <= max(case.reads, case.draft_len + 1)


def test_the_published_page_is_what_the_data_give(shared: Path) -> None:
    assert (ROOT / "docs/serving_validation.md").read_text() == validate.as_markdown(
        validate.everything(shared / "data/serving")
    )
