"""Curves handed to TensorBoard are the curves of the tables."""

import collections
import sys
import types

import pytest

from draftlab.core import stats
from draftlab.errors import UserError
from draftlab.report import tensorboard
from tests.synthetic import TABLES


def test_curves_are_moving_averages_of_the_stream(tmp_path):
    rows = TABLES["osd_online"]().drop(columns="requests")  # which only a binned stream has
    rows.to_csv(tmp_path / "osd_online.csv", index=False)
    points = list(tensorboard.curves(tmp_path / "osd_online.csv", "osd_online"))
    curve = [(record, value) for tag, record, value in points if tag == "osd_online/spider/online/0"]
    table = rows[(rows["dataset"] == "spider") & (rows["method"] == "online") & (rows["seed"] == 0)]
    expected = stats.moving_ratio(table["overlap"], table["visited"], tensorboard.WINDOW)
    assert curve == list(zip(range(60), expected.tolist(), strict=True))
    assert not any("offline" in tag for tag, _, _ in points)


@pytest.mark.parametrize("name", ["osd_shift_smooth", "beyond_update_interval"])
def test_streams_that_differ_in_another_column_have_tags_of_their_own(name, tmp_path):
    rows = TABLES[name]()
    rows.to_csv(tmp_path / f"{name}.csv", index=False)
    tags = collections.Counter((tag, record) for tag, record, _ in tensorboard.curves(tmp_path / f"{name}.csv", name))
    assert set(tags.values()) == {1}
    for value in ("sharp", "smooth") if name == "osd_shift_smooth" else ("learning_rate", "buffer"):
        assert any(value in tag.split("/") for tag, _ in tags)


def test_the_window_counts_requests_not_rows(tmp_path):
    rows = TABLES["osd_online"]().assign(requests=10)
    rows.to_csv(tmp_path / "osd_online.csv", index=False)
    curve = [
        value
        for tag, _, value in tensorboard.curves(tmp_path / "osd_online.csv", "osd_online")
        if "spider/online/0" in tag
    ]
    table = rows[(rows["dataset"] == "spider") & (rows["method"] == "online") & (rows["seed"] == 0)]
    assert curve == stats.moving_ratio(table["overlap"], table["visited"], tensorboard.WINDOW // 10).tolist()


def test_events_can_be_read_back(tmp_path):
    accumulator = pytest.importorskip(
        "tensorboard.backend.event_processing.event_accumulator", reason="tensorboard is not installed"
    )
    rows = TABLES["osd_online"](stream_index=20)
    rows.to_csv(tmp_path / "osd_online.csv", index=False)
    count = tensorboard.write(tmp_path, tmp_path / "events")
    events = accumulator.EventAccumulator(str(tmp_path / "events"), {"tensors": 0})
    events.Reload()
    tags = events.Tags()["tensors"]
    assert "osd_online/gsm8k/online/0" in tags
    assert sum(len(events.Tensors(tag)) for tag in tags) == count == 20 * 4 * 3 * (rows["method"].nunique() - 1)


def test_a_table_of_an_earlier_run_is_left_out(tmp_path, monkeypatch):
    for name in ("osd_online", "osd_shift_sharp"):
        TABLES[name](stream_index=20).to_csv(tmp_path / f"{name}.csv", index=False)
    written = []
    writer = types.SimpleNamespace(add_scalar=lambda tag, *_: written.append(tag.partition("/")[0]), close=lambda: None)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", types.SimpleNamespace(Writer=lambda folder: writer))
    tensorboard.write(tmp_path, tmp_path / "events", ("osd_online",))
    assert set(written) == {"osd_online"}


def test_without_streams_or_without_the_package_it_says_so(tmp_path, monkeypatch):
    TABLES["mdss_region"]().to_csv(tmp_path / "mdss_region.csv", index=False)
    with pytest.raises(UserError, match="no table with a stream"):
        tensorboard.write(tmp_path, tmp_path / "events")
    TABLES["osd_online"](stream_index=20).to_csv(tmp_path / "osd_online.csv", index=False)
    monkeypatch.setitem(sys.modules, "tensorboard.summary", None)
    with pytest.raises(UserError, match="pip install"):
        tensorboard.write(tmp_path, tmp_path / "events")
