"""What a stage says that it derives is what it adds to the tables that are published."""

from __future__ import annotations

from pathlib import Path

import pytest

from draftlab.files.tables import read_table, tables_in
from draftlab.report import tidy
from draftlab.stages._stage import NoColumns, columns_of
from tests.conftest import ROOT

PUBLISHED = {name: path for name, path in tables_in(ROOT / "paper_figures/laptop/data").items() if tidy.plan_of(name)}


def test_the_published_tables_hold_those_of_every_latency_stage() -> None:
    stages = {plan.stage for plan in map(tidy.plan_of, PUBLISHED) if plan is not None}
    assert len([name for name in stages if name.startswith("latency_")]) == 8


@pytest.mark.parametrize(("name", "path"), PUBLISHED.items(), ids=PUBLISHED.keys())
def test_derived_columns_are_declared(name: str, path: Path) -> None:
    plan = tidy.plan_of(name)
    assert plan is not None
    stage = plan.stage_kind
    if stage.derived is NoColumns and not stage.name.startswith("latency_"):
        pytest.skip("declares nothing yet")
    rows = read_table(path)
    declared = columns_of(stage.derived)
    derived = stage.derive(rows)
    assert set(derived) - set(rows) == {name for name, own in declared.items() if not own.optional}
    shown = stage.views[plan.view](derived) if plan.view else derived
    assert set(shown) - set(derived) <= {*declared}
