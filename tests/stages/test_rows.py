"""What every stage says of its table holds together."""

import pytest

from draftlab.stages import STAGES


@pytest.mark.parametrize("name", STAGES)
def test_measures_read_columns_that_the_stage_or_its_views_write(name):
    stage = STAGES[name]
    assert stage.measures
    read = {column for measure in stage.measures.values() for column in measure.columns}
    assert read <= set(stage.all_columns)


@pytest.mark.parametrize("name", ["offline", "online", "tokens", "medusa", "break_even"])
def test_every_column_has_a_meaning(name):
    assert [column for column, own in STAGES[name].all_columns.items() if not own.meaning] == []
