"""What a stage says of its table holds together, and what it derives is what it adds to the tables that are published."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType

import pandas as pd
import pytest

from draftlab.files.tables import read_table, tables_in
from draftlab.report import tidy
from draftlab.stages import STAGES, latency_length, latency_null, shares
from draftlab.stages._stage import columns_of
from tests.conftest import ROOT

PUBLISHED = tables_in(ROOT / "paper_figures/laptop/data")


@pytest.mark.parametrize("name", STAGES)
def test_measures_read_columns_that_the_stage_or_its_views_write(name: str) -> None:
    stage = STAGES[name]
    assert stage.measures
    read = {column for measure in stage.measures.values() for column in measure.columns}
    assert read <= set(stage.all_columns)


def test_the_published_tables_hold_those_of_every_latency_stage() -> None:
    stages = {tidy.plan_of(name).stage for name in PUBLISHED}
    assert len([name for name in stages if name.startswith("latency_")]) == 8


@pytest.mark.parametrize(("name", "path"), PUBLISHED.items(), ids=PUBLISHED.keys())
def test_derived_columns_are_declared(name: str, path: Path) -> None:
    plan, rows = tidy.plan_of(name), read_table(path)
    stage = plan.stage_kind
    declared = columns_of(stage.derived)
    derived = stage.derive(rows)
    assert set(derived) - set(rows) == {name for name, own in declared.items() if not own.optional}
    shown = stage.views[plan.view](derived) if plan.view else derived
    assert set(shown) - set(derived) <= {*declared}


def test_shares_of_two_datasets_are_counted_apart() -> None:
    counts = {"slice": 0, "group_by": "topic", "group": ["a", "b"], "count": [3, 1], "total": 4}
    one = pd.DataFrame(counts).assign(dataset="one")
    both = shares.derive(pd.concat([one, one.assign(dataset="two", count=[1, 7])], ignore_index=True))
    assert both["among"].tolist() == [4, 4, 8, 8]


@pytest.mark.parametrize(
    ("stage", "name"), [(latency_length, "osd_latency_length"), (latency_null, "beyond_noise_floor")]
)
def test_times_of_each_value_of_an_axis_are_derived_apart(stage: ModuleType, name: str) -> None:
    rows = read_table(PUBLISHED[name])
    slow = rows.assign(**{str(column): 3 * rows[column] for column in rows.filter(like="seconds")})
    parts = {"f16": rows, "q8_0": slow}
    both = stage.derive(pd.concat([part.assign(weights=weights) for weights, part in parts.items()]))
    for weights, part in parts.items():
        found = both[both["weights"] == weights].drop(columns="weights").reset_index(drop=True)
        pd.testing.assert_frame_equal(found, stage.derive(part), check_like=True)
